"""The messages on the node's sockets: client <-> node (attach) and node <-> writer (control).

Structs only. Every message is small (`channel.MESSAGE_BYTES_MAX`); lists come in pages.
Descriptors that travel with a message are named in its docstring, in their order.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.ipc import accessing, clustering, coordination, lookups, operating, sharing
from penstock.ipc.names import PartitionName

PROTOCOL_VERSION: Final = 1
TOPICS_PER_PAGE: Final = 80


DELETE_RETENTION: Final = 86_400.0
HOLD_BYTES: Final = 10 << 30
"""Seconds, where a topic says nothing else."""


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic's configuration as it travels and is kept. Seconds and bytes; None = default.

    A further field also goes into `client.admin.topic_config`, `server.node.topic_catalog` (its
    bounds) and `cli.topics`. Its effect goes into `ipc.logrole` (`log_config`), `server.cleaner`,
    or `server.broker.topics` in a cluster. `docs/limits.md`, `docs/protocol.md`, the guide and a
    test with the marker `setting` follow. An older node refuses a field that it does not know.
    """

    partitions: int = 1
    segment_bytes: int | None = None
    segment_age: float | None = None
    durability: str = "os"  # "os" | "interval" | "fsync"
    flush_interval: float | None = None
    timestamp_type: str = "create"  # "create" | "append"
    record_bytes_max: int | None = None
    retention: float | None = None
    retention_bytes: int | None = None
    cleanup: str = "delete"  # "delete" | "compact" | "compact,delete"
    min_compaction_lag: float | None = None
    delete_retention: float | None = None
    min_dirty_ratio: float | None = None
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    hold_for: str = "nobody"  # "nobody" | "groups"
    hold_bytes_max: int | None = None

    @property
    def hold_bytes(self) -> int | None:
        """How large a partition grows before retention takes what a group has not finished; None:
        groups hold nothing."""
        if self.hold_for != "groups":
            return None
        return HOLD_BYTES if self.hold_bytes_max is None else self.hold_bytes_max

    @property
    def deletes(self) -> bool:
        """Whether retention takes segments away."""
        limited = self.retention is not None or self.retention_bytes is not None
        return limited and "delete" in self.cleanup

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup

    @property
    def tombstones_kept(self) -> float:
        """Seconds for which a tombstone stays that was compacted."""
        return DELETE_RETENTION if self.delete_retention is None else self.delete_retention


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic: its 16-byte id, one state page per partition, and each partition's folder name."""

    name: str
    topic_id: bytes
    pages: list[int]
    settings: TopicSettings


# --- client -> node -----------------------------------------------------------------------------
class RemotePeer(msgspec.Struct, frozen=True):
    """For whom the gateway attaches: a client on the network. `incarnation`: 16 random bytes that
    name its process, over reconnects too."""

    principal: str
    address: str
    incarnation: bytes


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a client. `kind`: layout.KIND_*. `resume` names the producer id that a
    producer had before the node went away; `start_time` is the caller's own, to be compared.
    `remote`: the caller is the node's gateway, and attaches for that client."""

    version: int
    kind: int
    start_time: int
    client_id: str
    resume: int | None = None
    remote: RemotePeer | None = None


class OpenLane(msgspec.Struct, frozen=True, tag="open_lane"):
    writer: int
    capacity: int | None = None


class FindTopic(msgspec.Struct, frozen=True, tag="find_topic", omit_defaults=True):
    """`purpose`: what the topic is looked up for. It takes `describe`, which `read` and `write`
    allow as well; a refusal names the right that the purpose needs."""

    name: str
    purpose: Literal["describe", "read", "write"] = "describe"


class ListTopics(msgspec.Struct, frozen=True, tag="list_topics"):
    """At most `TOPICS_PER_PAGE` topics whose names sort after `after`. `internal`: the node's own
    as well, which are for the cleaner."""

    after: str = ""
    internal: bool = False


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    name: str
    settings: TopicSettings


class AlterTopic(msgspec.Struct, frozen=True, tag="alter_topic"):
    """New settings; `partitions` may only grow."""

    name: str
    settings: TopicSettings


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete_topic"):
    name: str


class TrimPartition(msgspec.Struct, frozen=True, tag="trim_partition"):
    """Let a partition's log start at `before`. `topic_id` not empty: of that topic only, and not of
    one that was made under its name since."""

    name: str
    partition: int
    before: int
    topic_id: bytes = b""


class CleanedSegment(msgspec.Struct, frozen=True):
    """`core.swapping.Prepared` as it travels; a source is (base, position, header checksum)."""

    base: int
    end: int
    length: int
    sources: list[tuple[int, int, int]]


class SwapSegments(msgspec.Struct, frozen=True, tag="swap_segments"):
    """Put a cleaned segment in the place of its sources; without any: drop it. `records` are those
    that are not in it any more. From the cleaner."""

    name: str
    partition: int
    topic_id: bytes
    segment: CleanedSegment
    records: int


class FindFloor(msgspec.Struct, frozen=True, tag="find_floor"):
    """How far all groups are in a partition. From the cleaner."""

    topic_id: bytes
    partition: int


class DescribeNode(msgspec.Struct, frozen=True, tag="describe_node"):
    pass


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The client is done: its lanes hold nothing it still waits for."""


ClientMessage = (
    Hello | OpenLane | FindTopic | ListTopics | CreateTopic | AlterTopic | DeleteTopic
    | TrimPartition | SwapSegments | FindFloor | DescribeNode | Bye | coordination.Request
    | lookups.Request | accessing.Request | clustering.Request | operating.Request
    | sharing.Request
)  # fmt: skip


# --- node -> client -----------------------------------------------------------------------------
class LaneInfo(msgspec.Struct, frozen=True):
    name: str
    writer: int


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Descriptors: state table (read-only), client table, the client's own doorbell.

    `lanes` are those a resuming producer still has; for each its writer's doorbell follows in the
    same order. `remote`: where clients of a cluster connect to this broker by TCP, which they all
    do; empty for a node that is alone."""

    version: int
    node_uuid: bytes
    boot_id: str
    data_folder: str
    slot: int
    writers: int
    lane_capacity: int
    producer_id: int = 0
    lanes: list[LaneInfo] = []
    remote: str = ""


class LaneOpened(msgspec.Struct, frozen=True, tag="lane_opened"):
    """Descriptors: the lane's memory, its writer's doorbell."""

    name: str
    writer: int


class TopicFound(msgspec.Struct, frozen=True, tag="topic_found"):
    topic: TopicInfo


class Topics(msgspec.Struct, frozen=True, tag="topics"):
    topics: list[TopicInfo]
    more: bool


class WriterInfo(msgspec.Struct, frozen=True):
    writer: int
    pid: int
    generation: int
    restarts: int
    partitions: int
    lanes: int


class NodeDescription(msgspec.Struct, frozen=True, tag="node"):
    pid: int
    node_uuid: bytes
    data_folder: str
    started_at: float
    writers: list[WriterInfo]
    topics: int
    clients: int
    lanes: int
    partitions: int = 0
    coordinator: dict[str, int] = {}
    versions: dict[str, str] = {}
    settings: dict[str, str | int | float | bool | None] = {}
    listen: str = ""
    gateway: dict[str, int] = {}
    access: dict[str, int] = {}
    metrics: str = ""
    cluster: dict[str, int] = {}
    replicator: dict[str, int] = {}
    lags: list[tuple[int, int, int]] = []
    controller: dict[str, int] = {}
    clock: dict[str, int] = {}
    keys: dict[str, str] = {}
    attach: dict[str, int] = {}
    coordinator_seconds: list[float] = []


class Cleaned(msgspec.Struct, frozen=True, tag="cleaned"):
    """A partition's log start from now on; the segments that went and the bytes of their files.
    `done` false: the log has changed since the cleaned segment was made."""

    log_start: int
    segments: int
    freed: int
    done: bool = True


class FloorFound(msgspec.Struct, frozen=True, tag="floor_found"):
    """The first offset that some group has not finished; -1: there is no group."""

    offset: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    pass


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`error` is the name of a class in `penstock.core.errors`."""

    error: str
    message: str


NodeMessage = (
    Welcome | LaneOpened | TopicFound | Topics | NodeDescription | Cleaned | FloorFound | Done
    | Refused | coordination.Reply | lookups.Reply | accessing.Reply | clustering.Reply
    | operating.Reply | sharing.Reply
)  # fmt: skip


# --- node -> writer -----------------------------------------------------------------------------
class OpenPartition(msgspec.Struct, frozen=True, tag="open_partition"):
    """`replicated`: it takes its role, its leader epochs and its high watermark from a replication
    lane; until that says otherwise it follows nobody."""

    page: int
    topic: str
    topic_id: bytes
    partition: int
    folder: str
    settings: TopicSettings
    clean: bool
    boot_id: str
    replicated: bool = False

    @property
    def name(self) -> PartitionName:
        return PartitionName(self.topic, self.partition)


class ClosePartition(msgspec.Struct, frozen=True, tag="close_partition"):
    """Closes a partition. `delete`: its topic is gone, and later frames for it are refused for
    good. Otherwise this broker has no replica of it any more, and answers them NOT_LEADER."""

    page: int
    delete: bool


class AddLane(msgspec.Struct, frozen=True, tag="add_lane"):
    """`dead`: the producer is gone already, so acknowledgements are discarded. Descriptor: the
    producer's doorbell, unless `dead`. Sent again when a producer re-attaches with a new one.
    `replicates`: it is the replicator's, and may hold what `layout.KIND_REPLICA` and `KIND_ROLE`
    say; any other lane that does is dropped."""

    name: str
    dead: bool
    replicates: bool = False


class RetireLane(msgspec.Struct, frozen=True, tag="retire_lane"):
    """The producer is dead or closed: drain to the tail, detach, answer `LaneDrained`."""

    name: str


class AddClient(msgspec.Struct, frozen=True, tag="add_client"):
    """A consumer to wake. Descriptor: its doorbell."""

    slot: int


class RemoveClient(msgspec.Struct, frozen=True, tag="remove_client"):
    slot: int


class TrimLog(msgspec.Struct, frozen=True, tag="trim_log"):
    """Lets the log of a page start at `before`; `LogCleaned` with the same ticket answers."""

    page: int
    ticket: int
    before: int


class SwapLog(msgspec.Struct, frozen=True, tag="swap_log"):
    """`SwapSegments` for the log of a page; `LogCleaned` with the same ticket answers."""

    page: int
    ticket: int
    segment: CleanedSegment
    records: int


class StopWriter(msgspec.Struct, frozen=True, tag="stop_writer"):
    """Drain every lane to its tail, sync, close the logs clean, answer `Stopped`, exit 0."""


WriterOrder = (
    OpenPartition | ClosePartition | AddLane | RetireLane | AddClient | RemoveClient | TrimLog
    | SwapLog | StopWriter
)  # fmt: skip


# --- writer -> node -----------------------------------------------------------------------------
class PartitionOpened(msgspec.Struct, frozen=True, tag="partition_opened"):
    """`report`: one line about the recovery, empty where there was nothing to recover. `offline`:
    why it takes nothing all the same, where it was open before."""

    page: int
    log_end: int
    report: str
    offline: str = ""


class PartitionFailed(msgspec.Struct, frozen=True, tag="partition_failed"):
    page: int
    reason: str


class PartitionOffline(msgspec.Struct, frozen=True, tag="partition_offline"):
    """An open log takes nothing any more, until a writer opens it again."""

    page: int
    reason: str


class PartitionClosed(msgspec.Struct, frozen=True, tag="partition_closed"):
    page: int


class LogCleaned(msgspec.Struct, frozen=True, tag="log_cleaned"):
    """The result of the order with this ticket. `error`: the class of `core.errors` that refused
    it, empty where it was done."""

    page: int
    ticket: int
    log_start: int
    segments: int
    freed: int
    done: bool = True
    error: str = ""
    message: str = ""


class LaneDrained(msgspec.Struct, frozen=True, tag="lane_drained"):
    """Head has reached the tail of a retired lane: the node may unlink it."""

    name: str


class LaneDropped(msgspec.Struct, frozen=True, tag="lane_dropped"):
    """A frame header was garbage: the lane was dropped, its client must be told and sent away."""

    name: str
    reason: str


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    pass


PartitionReport = PartitionOpened | PartitionFailed | PartitionOffline | PartitionClosed
WriterReport = PartitionReport | LogCleaned | LaneDrained | LaneDropped | Stopped


# --- node -> gateway, over its lifeline ---------------------------------------------------------
class GatewayCluster(msgspec.Struct, frozen=True, tag="gateway_cluster"):
    """How the cluster is, at each change: `version` grows with each, on all brokers alike. `secret`
    signs resume tokens, `broker` is this one. `brokers`: (number, client url) of those that are
    there; `leaders`: (page, broker), pages without a leader left out; `coordinator`: the broker
    that answers for groups and transactions, -1 while there is none."""

    cluster_id: bytes
    secret: bytes
    version: int
    broker: int
    brokers: list[tuple[int, str]]
    leaders: list[tuple[int, int]]
    coordinator: int = -1


GatewayOrder = GatewayCluster


# --- gateway -> node, over its lifeline ---------------------------------------------------------
class GatewayListens(msgspec.Struct, frozen=True, tag="gateway_listens"):
    """The gateway's addresses with their real ports: clients are admitted at this URL, and metrics
    are served at that address. Empty where there is no such listener."""

    url: str
    metrics: str = ""


class GatewayFailed(msgspec.Struct, frozen=True, tag="gateway_failed"):
    """It cannot listen; it leaves after this."""

    error: str
    message: str


class GatewayLives(msgspec.Struct, frozen=True, tag="gateway_lives"):
    """A sign of life; who gives none is taken for stuck."""


GatewayReport = GatewayListens | GatewayFailed | GatewayLives
