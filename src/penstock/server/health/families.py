"""Every metric that a node tells: its name, kind, labels and meaning.

`docs/guide/metrics.md` has the same table, which a test holds against this one. Names follow the
conventions of Prometheus: counters end in `_total`, units are whole seconds, bytes and ratios.
Counters begin again when their shared tables do (after a boot, or a clean stop without clients) and
those of the gateway with its process.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
_PARTITION: Final = ("topic", "partition")
_GROUP: Final = ("group", "topic", "partition")
_SHARE_GROUP: Final = ("group", "topic")
_CONSUMER: Final = ("consumer", "pid")
_PRODUCER: Final = ("producer", "pid")
_LANE: Final = ("producer", "pid", "writer")


class Family(NamedTuple):
    kind: str
    labels: tuple[str, ...]
    help: str


def _named(rows: dict[str, tuple[str, tuple[str, ...], str]]) -> dict[str, Family]:
    return {f"penstock_{name}": Family(*row) for name, row in rows.items()}


FAMILIES: Final = _named({
    # --- partitions ---
    "appended_records_total": (COUNTER, _PARTITION, "Records appended."),
    "appended_bytes_total": (COUNTER, _PARTITION, "Bytes appended, with batch headers."),
    "appended_batches_total": (COUNTER, _PARTITION, "Batches appended."),
    "duplicate_batches_total": (
        COUNTER, _PARTITION, "Batches that came again and were answered with their first offset.",
    ),
    "refused_batches_total": (COUNTER, _PARTITION, "Batches refused for good; the log says why."),
    "throttled_appends_total": (
        COUNTER, _PARTITION, "Appends put off because the storage was full.",
    ),
    "expired_producers_total": (
        COUNTER, _PARTITION, "Producers forgotten: silent for 7 days, or longest of too many.",
    ),
    "log_start_offset": (GAUGE, _PARTITION, "First offset that is kept."),
    "log_end_offset": (GAUGE, _PARTITION, "Next offset to be given."),
    "high_watermark_offset": (GAUGE, _PARTITION, "Offset up to which consumers may read."),
    "last_stable_offset": (
        GAUGE, _PARTITION, "Offset up to which transactions are decided.",
    ),
    "durable_offset": (GAUGE, _PARTITION, "Offset up to which the log is on the device."),
    "partition_online": (
        GAUGE, _PARTITION, "1 if it takes records, of producers or as a follower; else 0.",
    ),
    "open_transaction_seconds": (
        GAUGE, _PARTITION, "Age of the oldest open transaction; 0 if there is none.",
    ),
    "deleted_segments_total": (COUNTER, _PARTITION, "Segments deleted by retention and trims."),
    "deleted_bytes_total": (COUNTER, _PARTITION, "Bytes deleted by retention and trims."),
    "compacted_records_total": (COUNTER, _PARTITION, "Records that compaction took out."),
    "cleaning_errors_total": (COUNTER, _PARTITION, "Cleanings of the partition that failed."),
    "leader_elections_total": (
        COUNTER, _PARTITION,
        "Leader epochs: elections of its leaders, and in a node alone its starts.",
    ),
    "partitions": (GAUGE, ("status",), "Partitions by their status."),
    "sync_seconds": (HISTOGRAM, (), "Time that syncs of logs to the device took."),
    # --- consumers and groups ---
    "consumer_lag_records": (
        GAUGE, (*_CONSUMER, "topic"),
        "Records between the positions of an attached consumer and the high watermarks.",
    ),
    "consumer_lag_seconds": (
        GAUGE, (*_CONSUMER, "topic"),
        "Age of the oldest record that an attached consumer has before it.",
    ),
    "consumer_assigned_partitions": (GAUGE, _CONSUMER, "Partitions that the consumer reads."),
    "consumer_skipped_records_total": (
        COUNTER, _CONSUMER, "Records that its latest_only left out.",
    ),
    "group_lag_records": (
        GAUGE, _GROUP, "Records between what is committed and the high watermark.",
    ),
    "group_lag_seconds": (GAUGE, _GROUP, "Age of the first record that is not committed."),
    "group_committed_offset": (GAUGE, _GROUP, "Next offset that the group wants."),
    "group_status": (
        GAUGE, _GROUP,
        "What its last commits tell: 0 it moves on, 1 it falls behind (WARN), 2 it went back "
        "(REWIND), 3 it stopped (STOP).",
    ),
    "group_retention_left_seconds": (
        GAUGE, _GROUP,
        "Until the topic's retention may delete the first record that is not committed; absent "
        "where nothing is behind, or the topic keeps records for ever.",
    ),
    "group_members": (GAUGE, ("group",), "Members of the group."),
    "group_moving": (GAUGE, ("group",), "1 while partitions change hands, else 0."),
    "group_skipped_records_total": (
        COUNTER, ("group",), "Records that an at-most-once group knows it never handed out.",
    ),
    "share_group_records": (
        GAUGE, (*_SHARE_GROUP, "state"),
        "Records by what they wait for: a worker (ready; new: nobody had them yet), their time "
        "(waiting), an answer (leased), their dead letter (condemned), another of their key "
        "(behind).",
    ),
    "share_group_lag_records": (GAUGE, _SHARE_GROUP, "Records that are not done: all of these."),
    "share_group_oldest_seconds": (
        GAUGE, _SHARE_GROUP, "Age of the first record that is not done; 0 if all are.",
    ),
    "share_group_paused": (
        GAUGE, ("group",), "1 while nobody gets its records: paused by somebody or its breaker.",
    ),
    "share_group_events_total": (
        COUNTER, ("group", "event"), "Records by what became of a delivery, since it serves.",
    ),
    # --- producers ---
    "lane_used_bytes": (GAUGE, _LANE, "Bytes in the lane that its writer has not taken yet."),
    "lane_capacity_bytes": (GAUGE, _LANE, "Bytes that the lane takes."),
    "lane_written_bytes_total": (COUNTER, _LANE, "Bytes that were put into the lane."),
    "producer_dropped_records_total": (
        COUNTER, _PRODUCER, "Records that the producer's own on_full gave up.",
    ),
    "clients": (GAUGE, ("kind",), "Attached producers and consumers, remote ones included."),
    "attach_events_total": (
        COUNTER, ("event",),
        "Requests refused, connections dropped as broken, and clients that an operator kicked.",
    ),
    # --- processes ---
    "node_up": (GAUGE, (), "1 if the node's process lives and is not stopped, else 0."),
    "node_answers": (GAUGE, (), "1 if the node answers requests, else 0."),
    "node_start_time_seconds": (GAUGE, (), "When the node started, since the epoch."),
    "node_cpu_seconds_total": (COUNTER, (), "Processor time of the node's process."),
    "node_resident_memory_bytes": (GAUGE, (), "Memory of the node's process."),
    "node_info": (GAUGE, ("version", "python", "layout"), "1; the labels tell the versions."),
    "clock_ahead_seconds": (
        GAUGE, (), "How far the wall clock is ahead of the clock by which things expire.",
    ),
    "clock_jumps_total": (
        COUNTER, (), "Jumps of the wall clock that the node saw in all its runs.",
    ),
    "writer_up": (
        GAUGE, ("writer",), "1 if the writer lives and gives signs of life, else 0.",
    ),
    "writer_restarts_total": (
        COUNTER, ("writer",), "Writers that died in this place since the node started.",
    ),
    "writer_heartbeat_age_seconds": (GAUGE, ("writer",), "Since its last sign of life."),
    "writer_passes_total": (COUNTER, ("writer",), "Passes over its lanes."),
    "writer_cpu_seconds_total": (COUNTER, ("writer",), "Processor time of the writer's process."),
    "writer_resident_memory_bytes": (GAUGE, ("writer",), "Memory of the writer's process."),
    "cleaner_up": (GAUGE, (), "1 if the cleaner lives, else 0; absent where none is needed."),
    "cleaner_heartbeat_age_seconds": (GAUGE, (), "Since the cleaner's last sign of life."),
    "cleaner_runs_total": (COUNTER, (), "Rounds of the cleaner."),
    "cleaner_unread_records_total": (
        COUNTER, (), "Offsets that retention took though a group had not finished them."
    ),
    "cleaner_held_bytes": (GAUGE, (), "What groups that are behind keep from retention."),
    "cleaner_errors_total": (COUNTER, (), "Partitions that it could not look at or clean."),
    "disk_free_bytes": (GAUGE, (), "Room on the disk of the data folder."),
    "disk_size_bytes": (GAUGE, (), "Size of that disk."),
    "disk_warn_below_bytes": (GAUGE, (), "Room below which the node warns."),
    "disk_stop_below_bytes": (GAUGE, (), "Room below which nothing is appended."),
    "coordinator_serving": (
        GAUGE, (), "1 if the coordinator serves, else 0; absent until somebody uses it.",
    ),
    "coordinator_in_flight": (GAUGE, (), "Decisions that are not in its log yet."),
    "coordinator_members": (GAUGE, (), "Members of all groups whose process is watched."),
    "coordinator_seconds": (
        HISTOGRAM, (), "Time that the coordinator took to answer, since the node's start.",
    ),
    "coordinator_events_total": (
        COUNTER, ("event",), "What the coordinator did, as `penstock node describe` counts it.",
    ),
    # --- a broker of a cluster ---
    "broker_fenced": (GAUGE, (), "1 while the controller counts this broker as gone, else 0."),
    "broker_controller_active": (GAUGE, (), "1 if this broker's controller decides, else 0."),
    "broker_replicas": (GAUGE, (), "Partitions of which this broker has a replica."),
    "broker_led_partitions": (GAUGE, (), "Partitions that this broker leads."),
    "broker_underreplicated_partitions": (
        GAUGE, (), "Of those that it leads, how many have replicas that are not in sync.",
    ),
    "broker_below_min_insync_partitions": (
        GAUGE, (), "Of those that it leads, how many commit nothing: min_insync_replicas.",
    ),
    "broker_offline_replicas": (
        GAUGE, (), "Of its replicas, how many take nothing: their logs are offline.",
    ),
    "cluster_leaderless_partitions": (
        GAUGE, (), "Partitions of the cluster that nobody leads, as this broker has heard.",
    ),
    "isr_shrinks_total": (
        COUNTER, (), "Times that a partition led here lost a replica from its ISR.",
    ),
    "isr_grows_total": (COUNTER, (), "Times that a replica came back to such an ISR."),
    "controller_events_total": (
        COUNTER, ("event",), "What the controller decided here, since it became the active one.",
    ),
    "replica_lag_offsets": (
        GAUGE, (*_PARTITION, "broker"),
        "Offsets that a follower is behind a partition led here: those furthest behind.",
    ),
    "replicator_events_total": (
        COUNTER, ("event",), "What the replicator did, since its start.",
    ),
    # --- gateway ---
    "gateway_connections": (GAUGE, (), "Connections of remote clients."),
    "gateway_connections_opened_total": (COUNTER, (), "Connections that were ever opened."),
    "gateway_endpoints": (GAUGE, (), "Remote producers, consumers and admins."),
    "gateway_cursors": (GAUGE, (), "Partitions that remote consumers fetch."),
    "gateway_requests_total": (COUNTER, ("type",), "Messages that came, by their type."),
    "gateway_produced_batches_total": (COUNTER, (), "Batches of remote producers, appended."),
    "gateway_produced_records_total": (COUNTER, (), "Records in them."),
    "gateway_produced_bytes_total": (COUNTER, (), "Bytes of them, with batch headers."),
    "gateway_received_bytes_total": (COUNTER, (), "Bytes that came from remote clients."),
    "gateway_sent_bytes_total": (COUNTER, (), "Bytes that were sent to remote clients."),
    "gateway_outbox_bytes": (GAUGE, (), "Bytes that wait for clients that read slowly."),
    "key_expires_timestamp_seconds": (
        GAUGE, ("key",), "When a client's key expires, if it does; also in the past.",
    ),
    "gateway_refusals_total": (COUNTER, ("reason",), "What was asked for and not done."),
    "gateway_dropped_connections_total": (
        COUNTER, ("reason",), "Connections that the gateway gave up.",
    ),
    "gateway_throttles_total": (
        COUNTER, ("what",),
        "How often a quota held an endpoint back, a flood was read slowly (`messages`), or an "
        "address was kept waiting that connected too often (`connections`).",
    ),
    "gateway_throttled_seconds_total": (
        COUNTER, ("what",), "For how long quotas held endpoints back.",
    ),
    "gateway_request_seconds": (
        HISTOGRAM, ("type",), "Time from the coming of a request to its answer.",
    ),
    "gateway_acknowledge_seconds": (
        HISTOGRAM, ("topic",), "Time from the coming of a batch to its acknowledgement.",
    ),
    "gateway_delivery_seconds": (
        HISTOGRAM, ("topic",), "Age of batches when they were sent to a consumer.",
    ),
    "principal_bytes_total": (
        COUNTER, ("principal", "what"),
        "Bytes that a principal produced and consumed by the gateway.",
    ),
    # --- this page ---
    "http_replies_total": (COUNTER, ("status",), "HTTP requests by the status of their answer."),
    "sampling_seconds": (GAUGE, (), "Time that it took to make this page."),
    "omitted_series": (GAUGE, (), "Lines that found no room on this page."),
})  # fmt: skip
