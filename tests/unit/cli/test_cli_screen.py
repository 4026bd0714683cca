"""How reports look: numbers for people, orders, and what a short screen leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.screen import Line, fit, lines, order
from penstock.observe.report import ConsumerRow, LogRow, NodeRow, Report
from penstock.operations.wording import human_age, human_count


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (7, "7"), (0.25, "0.2"), (950, "950"), (999.6, "1.00k"), (1234, "1.23k"),
     (12_345, "12.3k"), (1_020_000, "1.02M"), (5e12, "5000.0G")],
)  # fmt: skip
def test_counts_for_people(number, shown):
    assert human_count(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0.0s"), (0.44, "0.4s"), (59.9, "59s"), (200, "3m20s"), (7500, "2h05m"),
     (273_600, "3d04h")],
)  # fmt: skip
def test_ages_for_people(seconds, shown):
    assert human_age(seconds) == shown


def log_row(topic, partition=None, rate=0.0, lag=None, **fields):
    known: dict[str, Any] = dict.fromkeys(LogRow.__struct_fields__, 0)
    known |= {"topic": topic, "partition": partition, "status": "online", "lag_seconds": None}
    return LogRow(**{**known, "records_per_second": rate, "lag": lag, **fields})


def report(topics=(), partitions=(), warnings=(), consumers=()):
    node = NodeRow(7, "sleeping", "/data", 0.5, 1 << 20, 61.0)
    return Report(
        0.0, 1.0, node, list(warnings), log_row(""), list(topics), list(partitions),
        list(consumers), [], [],
    )  # fmt: skip


def test_the_busiest_come_first_or_names_in_order():
    rows = [log_row("b", rate=5.0, lag=1), log_row("a", rate=1.0, lag=9), log_row("c")]
    found = report(rows)
    for by, expected in (("records", "bac"), ("lag", "abc"), ("name", "abc"), ("bytes", "abc")):
        order(found, by)
        assert "".join(row.topic for row in found.topics) == expected


def test_a_report_in_lines():
    consumer = ConsumerRow(9, "worker.py", "busy", ["t"], 500, 12.0, 3, 1.5, None, [])
    texts = [
        line.text
        for line in lines(
            report([log_row("t", lag=3, lag_seconds=1.5)], (), ["look here"], [consumer]),
            wide=False,
        )
    ]
    assert texts[0].startswith("penstock top  00:00:00Z  node 7 sleeping  up 1m01s  cpu 50%")
    assert texts[2] == "! look here"
    assert any("t/0+500" in text and text.endswith("worker.py") for text in texts)
    assert not any(text.startswith("PRODUCER") for text in texts), "nothing of what is not there"
    by_partition = lines(report([log_row("t")], [log_row("t", 4)]), wide=True)
    assert any(line.text.startswith("t-4") for line in by_partition)


def section(name, count):
    return [Line(name), *(Line(f"{name}{i}", may_go=True) for i in range(count))]


def test_a_short_screen_shows_the_first_of_each_section():
    rows = [Line("head"), *section("a", 50), *section("b", 2), *section("c", 9)]
    assert fit(rows, 100) == rows
    shown = [line.text for line in fit(rows, 20)]
    assert len(shown) == 20
    assert shown[0] == "head"
    assert {"b0", "b1", "c0", "a0"} <= set(shown)
    a = [text for text in shown if text.startswith("a") and text != "a"]
    assert f"... {50 - len(a)} more" in shown
    for height in range(30):
        assert len(fit(rows, height)) <= height
