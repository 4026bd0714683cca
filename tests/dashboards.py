"""Grafana's dashboards in docs/guide/dashboards, made from the tables below.

python tests/dashboards.py --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "guide" / "dashboards"
SCHEMA_VERSION: Final = 39
"""Of Grafana 11; later ones read it and bring it up to date."""
WIDTH: Final = 24
HEIGHT: Final = 8
IN_A_ROW: Final = 3
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    """`legend`: Grafana's template of a series' name."""

    title: str
    query: str
    legend: str = ""
    unit: str = "short"
    kind: str = "timeseries"


def _slowest(name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    rate = f"rate({name}_bucket[$__rate_interval])"
    return f"histogram_quantile(0.99, sum by ({labels}) ({rate}))"


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}[$__rate_interval]))"


DASHBOARDS: Final[dict[str, tuple[str, list[Panel]]]] = {
    "node": ("Penstock: node", [
        Panel("Node answers", "min(penstock_node_answers)", kind="stat"),
        Panel("Writers that are not up", "count(penstock_writer_up == 0) or vector(0)",
              kind="stat"),
        Panel("Partitions that take nothing", "count(penstock_partition_online == 0) or vector(0)",
              kind="stat"),
        Panel("Records in", _rate("penstock_appended_records_total", "topic"), "{{topic}}"),
        Panel("Bytes in", _rate("penstock_appended_bytes_total", "topic"), "{{topic}}", "Bps"),
        Panel("Not durable yet",
              "sum by (topic) (penstock_log_end_offset - penstock_durable_offset)", "{{topic}}"),
        Panel("Syncs, p99", _slowest("penstock_sync_seconds"), "p99", "s"),
        Panel("Acknowledgements at the gateway, p99",
              _slowest("penstock_gateway_acknowledge_seconds", "topic"), "{{topic}}", "s"),
        Panel("Age of what consumers are sent, p99",
              _slowest("penstock_gateway_delivery_seconds", "topic"), "{{topic}}", "s"),
        Panel("Fullest lane",
              "max by (writer) (penstock_lane_used_bytes / penstock_lane_capacity_bytes)",
              "writer {{writer}}", "percentunit"),
        Panel("Free disk", "penstock_disk_free_bytes", "{{instance}}", "bytes"),
        Panel("Processor", 'sum by (writer) (rate(penstock_writer_cpu_seconds_total'
              "[$__rate_interval]))", "writer {{writer}}", "percentunit"),
        Panel("Use by principal", _rate("penstock_principal_bytes_total", "principal, what"),
              "{{principal}} {{what}}", "Bps"),
        Panel("Held back by quotas", _rate("penstock_gateway_throttled_seconds_total", "what"),
              "{{what}}", "percentunit"),
        Panel("Refused", _rate("penstock_gateway_refusals_total", "reason"), "{{reason}}"),
    ]),
    "groups": ("Penstock: groups and work queues", [
        Panel("Groups that stopped", "count(max by (group) (penstock_group_status) == 3) or "
              "vector(0)", kind="stat"),
        Panel("Longest lag", "max(penstock_group_lag_seconds)", unit="s", kind="stat"),
        Panel("Until retention takes unread records",
              "min(penstock_group_retention_left_seconds)", unit="s", kind="stat"),
        Panel("Lag", "sum by (group) (penstock_group_lag_records)", "{{group}}"),
        Panel("Lag in seconds", "max by (group) (penstock_group_lag_seconds)", "{{group}}", "s"),
        Panel("Commits (offsets a second)",
              "sum by (group) (deriv(penstock_group_committed_offset[5m]))", "{{group}}"),
        Panel("Jobs that wait or are worked on",
              "sum by (group, state) (penstock_share_group_records)", "{{group}} {{state}}"),
        Panel("Jobs by outcome", _rate("penstock_share_group_events_total", "group, event"),
              "{{group}} {{event}}"),
        Panel("Oldest job", "max by (group) (penstock_share_group_oldest_seconds)", "{{group}}",
              "s"),
        Panel("Dead letters",
              'sum by (topic) (rate(penstock_appended_records_total{topic=~".+[.]dlq"}'
              "[$__rate_interval]))", "{{topic}}"),
        Panel("Coordinator, p99", _slowest("penstock_coordinator_seconds"), "p99", "s"),
        Panel("Open transactions", "max by (topic) (penstock_open_transaction_seconds)",
              "{{topic}}", "s"),
    ]),
    "cluster": ("Penstock: cluster", [
        Panel("Active controllers", "sum(penstock_broker_controller_active)", kind="stat"),
        Panel("Partitions without a leader", "max(penstock_cluster_leaderless_partitions)",
              kind="stat"),
        Panel("Partitions that commit nothing",
              "sum(penstock_broker_below_min_insync_partitions)", kind="stat"),
        Panel("Led partitions", "penstock_broker_led_partitions", "{{instance}}"),
        Panel("Not in sync", "penstock_broker_underreplicated_partitions", "{{instance}}"),
        Panel("Fenced", "penstock_broker_fenced", "{{instance}}"),
        Panel("ISR shrinks", _rate("penstock_isr_shrinks_total", "instance"), "{{instance}}"),
        Panel("Elections", "sum by (topic) (delta(penstock_leader_elections_total"
              "[$__rate_interval]))", "{{topic}}"),
        Panel("Followers behind", "max by (broker) (penstock_replica_lag_offsets)",
              "broker {{broker}}"),
    ]),
}  # fmt: skip


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width = WIDTH // IN_A_ROW
    where = {
        "x": number % IN_A_ROW * width, "y": number // IN_A_ROW * HEIGHT, "w": width, "h": HEIGHT,
    }  # fmt: skip
    target = {"datasource": SOURCE, "expr": panel.query, "legendFormat": panel.legend, "refId": "A"}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": [target],
    }


def dashboard(name: str) -> dict[str, Any]:
    """One of `DASHBOARDS` as Grafana imports it; the data source is chosen there."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"penstock-{name}",
        "title": title,
        "tags": ["penstock"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource",
                 "query": "prometheus"}
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }  # fmt: skip


def text(name: str) -> str:
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    if "--write" not in sys.argv:
        sys.exit(f"{sys.argv[0]} --write makes the files in {FOLDER}")
    FOLDER.mkdir(exist_ok=True)
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text(each))
