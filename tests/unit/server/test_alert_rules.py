"""Alert rules by promtool: each fires where it should, and is quiet on a node that is well.

Series are written out here; `test_e2e_alerts.py` and `test_cluster_alerts.py` give promtool those
of real nodes.
"""

from __future__ import annotations

import re
from pathlib import Path

from alert_rules import RULES, fired, needs_promtool

TP = 'topic="t",partition="0"'
GTP = f'group="g",{TP}'
EVENTS = 'group="g",event='

FIRING = {
    "PenstockDown": {'up{job="penstock"}': "0x30"},
    "PenstockNodeDoesNotAnswer": {"penstock_node_answers": "0x30"},
    "PenstockPartitionNotOnline": {f"penstock_partition_online{{{TP}}}": "0x30"},
    "PenstockWriterNotUp": {'penstock_writer_up{writer="0"}': "0x30"},
    "PenstockWriterRestarts": {'penstock_writer_restarts_total{writer="0"}': "0+1x30"},
    "PenstockGroupBehind": {f"penstock_group_lag_seconds{{{GTP}}}": "61x30"},
    "PenstockGroupStopped": {f"penstock_group_status{{{GTP}}}": "3x30"},
    "PenstockRetentionNear": {f"penstock_group_retention_left_seconds{{{GTP}}}": "3599x30"},
    "PenstockGroupOvertaken": {
        f"penstock_group_committed_offset{{{GTP}}}": "5x30",
        f"penstock_log_start_offset{{{TP}}}": "6x30",
    },
    "PenstockGroupHasNoMembers": {
        'penstock_group_members{group="g"}': "0x30",
        f"penstock_group_lag_records{{{GTP}}}": "1x30",
    },
    "PenstockRecordsDropped": {
        'penstock_producer_dropped_records_total{producer="1",pid="2"}': "0+1x30"
    },
    "PenstockBatchesRefused": {f"penstock_refused_batches_total{{{TP}}}": "0+1x30"},
    "PenstockLaneFull": {
        'penstock_lane_used_bytes{producer="1",pid="2",writer="0"}': "95x30",
        'penstock_lane_capacity_bytes{producer="1",pid="2",writer="0"}': "100x30",
    },
    "PenstockSyncsSlow": {
        'penstock_sync_seconds_bucket{le="0.5"}': "0x30",
        'penstock_sync_seconds_bucket{le="1"}': "0+5x30",
        'penstock_sync_seconds_bucket{le="+Inf"}': "0+5x30",
    },
    "PenstockTransactionOpenForLong": {f"penstock_open_transaction_seconds{{{TP}}}": "901x30"},
    "PenstockDiskLow": {
        "penstock_disk_free_bytes": "9x30",
        "penstock_disk_warn_below_bytes": "10x30",
        "penstock_disk_stop_below_bytes": "5x30",
    },
    "PenstockDiskFull": {
        "penstock_disk_free_bytes": "4x30",
        "penstock_disk_stop_below_bytes": "5x30",
    },
    "PenstockCoordinatorNotServing": {"penstock_coordinator_serving": "0x30"},
    "PenstockCoordinatorSlow": {
        'penstock_coordinator_seconds_bucket{le="1"}': "0x30",
        'penstock_coordinator_seconds_bucket{le="2.5"}': "0+5x30",
        'penstock_coordinator_seconds_bucket{le="+Inf"}': "0+5x30",
    },
    "PenstockBrokerFenced": {"penstock_broker_fenced": "1x30"},
    "PenstockNoController": {"penstock_broker_controller_active": "0x30"},
    "PenstockReplicaOffline": {"penstock_broker_offline_replicas": "1x30"},
    "PenstockIsrShrinks": {"penstock_isr_shrinks_total": "0+1x30"},
    "PenstockUnderreplicated": {"penstock_broker_underreplicated_partitions": "1x30"},
    "PenstockNothingCommitted": {"penstock_broker_below_min_insync_partitions": "1x30"},
    "PenstockLeaderless": {"penstock_cluster_leaderless_partitions": "1x30"},
    "PenstockClockJumped": {"penstock_clock_ahead_seconds": "-3601x30"},
    "PenstockClientsDropped": {
        'penstock_gateway_dropped_connections_total{reason="slow"}': "0+5x30"
    },
    "PenstockClientsThrottled": {
        'penstock_gateway_throttled_seconds_total{what="produce"}': "0+40x30"
    },
    "PenstockJobsDie": {f'penstock_share_group_events_total{{{EVENTS}"condemned"}}': "0+2x30"},
    "PenstockDeadLetters": {
        'penstock_appended_records_total{topic="t.dlq",partition="0"}': "0+2x30"
    },
    "PenstockJobsPaused": {'penstock_share_group_paused{group="g"}': "1x30"},
    "PenstockJobsWait": {'penstock_share_group_oldest_seconds{group="g",topic="t"}': "3601x30"},
    "PenstockJobsLost": {f'penstock_share_group_events_total{{{EVENTS}"lost"}}': "0+1x30"},
    "PenstockUnreadDeleted": {"penstock_cleaner_unread_records_total": "0+1x30"},
    "PenstockKeyExpires": {'penstock_key_expires_timestamp_seconds{key="ann"}': "600000x30"},
}
"""Series, a value a minute, by the alert that they set off alone."""

WELL = {
    'up{job="penstock"}': "1x30",
    "penstock_node_answers": "1x30",
    f"penstock_partition_online{{{TP}}}": "1x30",
    'penstock_writer_up{writer="0"}': "1x30",
    'penstock_writer_restarts_total{writer="0"}': "2x30",
    f"penstock_group_lag_seconds{{{GTP}}}": "59x30",
    f"penstock_group_status{{{GTP}}}": "2x30",
    f"penstock_group_retention_left_seconds{{{GTP}}}": "3601x30",
    f"penstock_group_committed_offset{{{GTP}}}": "6x30",
    f"penstock_log_start_offset{{{TP}}}": "6x30",
    'penstock_group_members{group="g"}': "1x30",
    f"penstock_group_lag_records{{{GTP}}}": "1x30",
    "penstock_coordinator_serving": "1x30",
    "penstock_broker_controller_active": "1x30",
    "penstock_isr_shrinks_total": "3x30",
    'penstock_appended_records_total{topic="t",partition="0"}': "0+1000x30",
    'penstock_key_expires_timestamp_seconds{key="ann"}': "700000x30",
    'penstock_share_group_oldest_seconds{group="g",topic="t"}': "3599x30",
}


def test_every_rule_has_series_that_fire_it_and_a_section_of_the_runbook():
    text = RULES.read_text()
    names = re.findall(r"- alert: (\w+)", text)
    assert sorted(names) == sorted(FIRING)
    runbook = Path(RULES.parent, "runbook.md").read_text()
    assert re.findall(r"^## (\w+)$", runbook, re.MULTILINE) == names
    assert re.findall(r"runbook: runbook\.md#(\w+)", text) == [name.lower() for name in names]


@needs_promtool
def test_each_alert_fires_by_its_series_and_none_where_all_is_well(tmp_path):
    expected = {name: {name} for name in FIRING}
    series = {**FIRING, "nothing": WELL}
    assert fired(tmp_path, series) == {**expected, "nothing": set()}
