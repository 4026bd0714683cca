"""`penstock bench scale`: what is refused, what its page says bends a curve, and how results of
several runs become one."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.bench import scale, scalepage
from penstock.bench.cli import main
from penstock.bench.errors import BenchError
from penstock.bench.options import ThroughputOptions
from penstock.bench.scale import CURVES, ScaleOptions
from penstock.bench.scalecost import cost_of

MACHINE = {"cpu": "C", "cores": 2, "memory_gb": 8.0, "kernel": "K", "python": "P",
           "penstock": "0", "date": "2026-11-24"}  # fmt: skip


def turn(rate: int, batch: float = 200.0, **us: float) -> dict[str, Any]:
    cores = {kind: used * rate / 1e6 for kind, used in us.items()}
    return {"records_per_second": rate, "mb_per_second": rate / 1000, "batch": batch,
            "sleeps": 1.0, "preempted": 1.0, "page_faults": 0.0, "cores": cores, "us": us,
            "lost": 0}  # fmt: skip


def result_of(*points: tuple[str, float, list[dict[str, Any]]], lost: int = 0) -> dict[str, Any]:
    told = [{"line": line, "x": x, "turns": turns} for line, x, turns in points]
    return {
        "benchmark": "scale", "curves": {"partitions": told}, "lost": lost, "left_out": [],
        "pwrite_mb_per_second": 3000.0, "filesystem": "ext4", "machine": MACHINE,
        "options": ScaleOptions().stated(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"turns": 0}, "--turns 0: from 1 to"),
        ({"records": 10}, "--records 10"),
        ({"seconds": 0.0}, "--seconds and --timeout"),
        ({"gb": 11.0}, "--gb 11: more than 0, to 10"),
        ({"only": "nosuch"}, "--only nosuch --at 0: no such point; lines: producers/send"),
        ({"only": "producers", "at": 3.0}, "--at 3: no such point"),
    ],
)
def test_what_cannot_be_run_is_refused(given, said):
    with pytest.raises(BenchError, match=said):
        ScaleOptions(**given).check()


def test_curves_reach_as_far_as_they_are_to():
    ends = {curve.key: (curve.xs[0], curve.xs[-1]) for curve in CURVES}
    assert ends == {
        "producers": (1, 8), "consumers": (1, 8), "partitions": (1, 1000),
        "connections": (1, 1000), "size": (16, 1_000_000), "backlog": (0.1, 10),
    }  # fmt: skip
    chosen = ScaleOptions(only="partitions/small", at=1000.0)
    [partitions] = chosen.chosen()
    assert chosen.points_of(partitions) == [("small", 1000.0)]


def test_a_backlog_that_does_not_fit_is_left_out_with_the_reason(monkeypatch):
    left_out: list[str] = []
    assert not scale._has_room(ScaleOptions(gb=3.0), 10.0, left_out)
    free = SimpleNamespace(free=3 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert scale._has_room(ScaleOptions(records=100_000), 1.0, left_out)
    assert not scale._has_room(ScaleOptions(records=100_000), 10.0, left_out)
    assert left_out[0] == "backlog of 10 GB: longer than --gb 3"
    assert left_out[1].endswith("GB of disk, 3.2 GB are free")


def test_a_pool_is_as_long_as_it_takes_to_tell_records_apart():
    assert ThroughputOptions(pool=30_000).pool_values == 30_000
    apart = ThroughputOptions(partitions=100, records=50_000).pool_values
    assert apart == 50_000  # each record has a value of its own
    assert ThroughputOptions(partitions=100, records=1_000_000).pool_values == 8 * 100 * 256


def test_the_cost_of_a_turn_is_summed_by_kind():
    cost = cost_of(
        {
            "records": 1000,
            "cpu_seconds": {"producer-0": 1.0, "producer-1": 2.0, "writer-0": 0.5, "node": 0.0},
            "producer_metrics": {"records": 1100, "batches": 11},
            "machine_cpu_seconds": 4.5,
            "sleeps": {"producer-0": 5, "consumer-0": 2},
        },
        2.0,
    )
    assert cost == {
        "cores": {"producers": 1.5, "writers": 0.25, "node": 0.0},
        "us": {"producers": 3000.0, "writers": 500.0, "node": 0.0},
        "others": 0.5,
        "batch": 100.0,
        "sleeps": 7.0,
    }


def test_the_page_says_by_the_cost_what_bends_a_line():
    page = scalepage.as_page(
        scalepage.merged(
            [
                result_of(
                    ("send", 1.0, [turn(800_000, producers=1.0, writers=0.5)]),
                    ("send", 1000.0, [turn(780_000, producers=1.0, writers=0.5)]),
                    ("small", 1.0, [turn(400_000, producers=2.0, writers=2.5)]),
                    ("small", 1000.0, [turn(100_000, 20.0, producers=10.0, writers=2.0)]),
                )
            ]
        ),
        {"partitions": "A profile said why."},
    )
    assert "- *batches of 256 KiB*: nearly flat: the slower end has 98% of the best rate." in page
    assert (
        "- *batches of 16 KiB*: 1 to 1,000: 25% of the rate; CPU a record 4.50 to 12.00 µs "
        "(producers +8.00, writers −0.50); batches are shorter: 200 to 20 records. "
        "At 1,000, 1.20 of 2 cores are busy: cores are left."
    ) in page
    assert "A profile said why." in page
    assert "| 1 | batches of 16 KiB | **400,000** (400,000 to 400,000) | 1 | 1.80, 0.00 |" in page
    assert "## Producers" not in page  # no point of it is in the results
    assert len(page.splitlines()) < 250


def test_of_sizes_the_bytes_count():
    points = [
        {"x": x, **told, "cores": {"producers": 1.0}}
        for x, told in (
            (100.0, turn(2_000_000, producers=0.5) | {"mb_per_second": 200.0}),
            (1000.0, turn(1_000_000, producers=1.0) | {"mb_per_second": 1000.0}),
        )
    ]
    assert scalepage.bend(points, 2, by_bytes=True).startswith(
        "1,000 to 100: 20% of MB/s; CPU a KB 1.00 to 5.00 µs (producers +4.00)"
    )


def test_turns_of_one_point_in_several_results_are_put_together():
    one = result_of(("send", 1.0, [turn(300, producers=1.0)]))
    other = result_of(
        ("send", 1.0, [turn(100, producers=3.0), turn(200, producers=2.0)]),
        ("send", 4.0, [turn(50, producers=2.0)]), lost=3,
    )  # fmt: skip
    found = scalepage.merged([one, other])
    first, second = found["curves"]["partitions"]
    assert (first["records_per_second"], first["low"], first["high"]) == (200, 100, 300)
    assert (first["turns"], first["us"]) == (3, {"producers": 2.0})
    assert second["x"] == 4.0
    assert found["lost"] == 3
    assert "| Records, all checked | 3 lost |" in scalepage.as_page(found, {})
    other["machine"] = {**MACHINE, "python": "another"}
    with pytest.raises(BenchError, match="different machines"):
        scalepage.merged([one, other])


@pytest.mark.parametrize(
    ("text", "said"), [("[", "is not TOML"), ('nosuch = "text"', "nosuch"), ("size = 3", "a text")]
)
def test_notes_are_a_text_for_each_curve(text, said, tmp_path, capsys):
    result, notes = tmp_path / "result.json", tmp_path / "notes.toml"
    result.write_text(json.dumps(result_of(("send", 1.0, [turn(300, producers=1.0)]))))
    notes.write_text(text)
    words = ["scale-page", str(result), "--output", str(tmp_path / "scale.md")]
    assert main([*words, "--notes", str(notes)]) == 1
    assert said in capsys.readouterr().err
    notes.write_text('partitions = "Because."')
    assert main([*words, "--notes", str(notes)]) == 0
    assert "Because." in (tmp_path / "scale.md").read_text()
    assert (tmp_path / "scale-partitions.png").read_bytes().startswith(b"\x89PNG")
