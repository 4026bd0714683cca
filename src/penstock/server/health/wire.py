"""Metrics of the gateway, from what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.server.gateway.counts import OTHERS
from penstock.server.health.page import Page, labels

if TYPE_CHECKING:
    from penstock.server.gateway.counts import GatewayCounts


def write(page: Page, counts: GatewayCounts, topics: Mapping[str, str]) -> None:
    """The loop may count on meanwhile: what it may add keys to is copied first. `topics`: names by
    id; what was counted of others, which are deleted, is left out."""
    page.add("penstock_gateway_connections", counts.connections)
    page.add("penstock_gateway_connections_opened_total", counts.connections_opened)
    page.add("penstock_gateway_endpoints", counts.endpoints)
    page.add("penstock_gateway_cursors", counts.cursors)
    page.add("penstock_gateway_produced_batches_total", counts.produced_batches)
    page.add("penstock_gateway_produced_records_total", counts.produced_records)
    page.add("penstock_gateway_produced_bytes_total", counts.produced_bytes)
    page.add("penstock_gateway_received_bytes_total", counts.received_bytes)
    page.add("penstock_gateway_sent_bytes_total", counts.sent_bytes)
    page.add("penstock_gateway_outbox_bytes", counts.outbox_bytes)
    for name, label, found in (
        ("requests_total", "type", counts.requests),
        ("refusals_total", "reason", counts.refusals),
        ("dropped_connections_total", "reason", counts.drops),
        ("throttles_total", "what", counts.throttles),
        ("throttled_seconds_total", "what", counts.throttled_seconds),
    ):
        rows = sorted(dict(found).items())
        page.rows(f"penstock_gateway_{name}", [(labels(**{label: key}), n) for key, n in rows])
    expire = [(labels(key=key), at) for key, at in sorted(counts.keys_expire.items())]
    page.rows("penstock_key_expires_timestamp_seconds", expire)
    used = sorted(dict(counts.used).items())
    page.rows(
        "penstock_principal_bytes_total",
        [(labels(principal=who, what=what), nbytes) for (who, what), nbytes in used],
    )
    for name, latencies in (
        ("acknowledge_seconds", counts.acknowledged), ("delivery_seconds", counts.delivered),
    ):  # fmt: skip
        for topic_id, one in dict(latencies.by_topic).items():
            topic = topics.get(topic_id.hex()) if topic_id else OTHERS
            if topic is not None:
                page.histogram(
                    f"penstock_gateway_{name}", one.bounds, list(one.counts), one.total,
                    labels(topic=topic),
                )  # fmt: skip
    for kind, one in sorted(dict(counts.latencies).items()):
        page.histogram(
            "penstock_gateway_request_seconds", one.bounds, list(one.counts), one.total,
            labels(type=kind),
        )  # fmt: skip
