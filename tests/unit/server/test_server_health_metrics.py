"""The metrics page: what is written can be parsed, and the guide's table is the code's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.server.gateway.counts import KEYS_MAX, GatewayCounts
from penstock.server.health import page as pages
from penstock.server.health import wire
from penstock.server.health.families import COUNTER, FAMILIES
from penstock.server.health.histogram import Histogram
from penstock.server.health.page import Page, labels

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide"
ROW = re.compile(r"^\| `(penstock_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)


def parsed(page: Page) -> dict[str, float]:
    """Value by sample name and labels."""
    return {
        f"{sample.name}{dict(sorted(sample.labels.items())) or ''}": sample.value
        for family in text_string_to_metric_families(page.text().decode())
        for sample in family.samples
    }


def test_the_guide_lists_every_metric_as_it_is():
    listed = {
        name: (kind, tuple(re.findall(r"`(\w+)`", names)), text)
        for name, kind, names, text in ROW.findall((GUIDE / "metrics.md").read_text())
    }
    assert listed == {name: tuple(family) for name, family in FAMILIES.items()}


def test_names_follow_the_conventions():
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"penstock(_[a-z]+)+", name), name
        assert name.endswith("_total") == (family.kind == COUNTER), name
        assert family.help.endswith("."), name
        assert not re.search(r"_(ms|us|millis|kb|mb)(_|$)", name), name


def test_alert_rules_name_metrics_and_labels_that_are_there():
    text = (GUIDE / "alerts.yml").read_text()
    for name in set(re.findall(r"\bpenstock_\w+", text)):
        assert name.removesuffix("_bucket") in FAMILIES, name
    rules = re.findall(r"alert: (\w+)\n\s+expr: (.+)\n(?:\s+for: .+\n)?\s+annotations:\n(.+)", text)
    assert len(rules) == text.count("alert:") > 0
    for alert, expression, annotation in rules:
        used = {
            label
            for name in re.findall(r"penstock_\w+", expression)
            for label in FAMILIES[name.removesuffix("_bucket")].labels
        }
        named = set(re.findall(r"\$labels\.(\w+)", annotation))
        assert named <= used | {"instance"}, alert


def test_a_page_is_parsed_back_to_what_was_added():
    page = Page()
    page.add("penstock_disk_free_bytes", 1 << 40)
    odd = 'a "b" \\ c\nd'
    page.add("penstock_group_members", 3, labels(group=odd))
    page.rows(
        "penstock_log_end_offset",
        [(labels(topic="t", partition=n), n * 0.5) for n in range(2)],
    )
    assert parsed(page) == {
        "penstock_disk_free_bytes": float(1 << 40),
        f"penstock_group_members{ {'group': odd} }": 3,
        "penstock_log_end_offset{'partition': '0', 'topic': 't'}": 0.0,
        "penstock_log_end_offset{'partition': '1', 'topic': 't'}": 0.5,
    }


def test_a_histogram_is_cumulative():
    one = Histogram((0.1, 1))
    for value in (0.05, 0.1, 0.5, 7.0):
        one.observe(value)
    page = Page()
    page.histogram("penstock_sync_seconds", one.bounds, one.counts, one.total)
    found = parsed(page)
    buckets = [found[f"penstock_sync_seconds_bucket{ {'le': le} }"] for le in ("0.1", "1", "+Inf")]
    assert buckets == [2, 3, 4]
    assert found["penstock_sync_seconds_count"] == 4
    assert math.isclose(found["penstock_sync_seconds_sum"], 7.65)


def test_what_finds_no_room_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(pages, "SERIES_MAX", 10)
    page = Page()
    page.rows("penstock_log_end_offset", [(labels(partition=n), n) for n in range(25)])
    page.add("penstock_disk_free_bytes", 1)
    assert page.omitted == 16
    assert len(parsed(page)) == 10


def test_a_family_that_is_not_in_the_table_is_refused():
    with pytest.raises(AssertionError):
        Page().add("penstock_something", 1)


def test_the_gateway_tells_what_it_counts():
    counts = GatewayCounts()
    counts.connections, counts.received_bytes = 2, 1 << 33
    counts.requests["produce"] += 5
    counts.refusals["no access"] += 1
    counts.throttled_seconds["consume"] += 0.25
    counts.latencies["ask"].observe(0.002)
    counts.acknowledged.of(bytes(16)).observe(0.002)
    counts.delivered.of(b"of one that is deleted").observe(0.002)
    counts.use("ann", "produce", 7)
    page = Page()
    wire.write(page, counts, {bytes(16).hex(): "orders"})
    found = parsed(page)
    assert found["penstock_gateway_acknowledge_seconds_count{'topic': 'orders'}"] == 1
    assert not [name for name in found if "delivery" in name]
    assert found["penstock_principal_bytes_total{'principal': 'ann', 'what': 'produce'}"] == 7
    assert found["penstock_gateway_connections"] == 2
    assert found["penstock_gateway_received_bytes_total"] == 1 << 33
    assert found["penstock_gateway_requests_total{'type': 'produce'}"] == 5
    assert found["penstock_gateway_refusals_total{'reason': 'no access'}"] == 1
    assert found["penstock_gateway_throttled_seconds_total{'what': 'consume'}"] == 0.25
    assert found["penstock_gateway_request_seconds_bucket{'le': '0.0025', 'type': 'ask'}"] == 1
    assert found["penstock_gateway_request_seconds_count{'type': 'ask'}"] == 1


def test_topics_and_principals_beyond_the_bound_are_counted_together():
    counts = GatewayCounts()
    for number in range(KEYS_MAX + 5):
        counts.acknowledged.of(number.to_bytes(16, "big")).observe(0.01)
        for what in ("produce", "consume"):
            counts.use(f"user-{number}", what, 10)
    page = Page()
    wire.write(page, counts, {bytes(16).hex(): "orders"})
    found = parsed(page)
    name = "penstock_gateway_acknowledge_seconds_count{'topic': '(others)'}"
    assert found[name] == 5
    assert found["penstock_principal_bytes_total{'principal': '(others)', 'what': 'produce'}"] == 50
    assert len(counts.used) == 2 * KEYS_MAX + 2
