"""What an audit finds: each kind of finding in ledgers and logs made for it, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from penstock.core.errors import ConfigError
from penstock.spark.jobs import audit
from penstock.spark.jobs.auditing import LOG, Audit, judge, read_ledgers, topics_of


def sent(value: str, partition: int = 0, offset: int = -1, key: str | None = None):
    return {
        "timestamp": 1, "name": "producer_send_success", "topic": "t", "partition": partition,
        "offset": offset, "key": key, "value": value,
    }  # fmt: skip


def failed(value: str, exception: str = "DeliveryTimeout", key: str | None = None):
    return {
        "timestamp": 1, "name": "producer_send_error", "topic": "t", "key": key, "value": value,
        "exception": exception, "message": "as it was",
    }  # fmt: skip


def ledger(folder: Path, *events, name: str = "ledger.jsonl") -> str:
    lines = [
        {"timestamp": 0, "name": "startup_complete"}, *events, {"name": "tool_data", "sent": 9},
    ]  # fmt: skip
    file = folder / name
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


@pytest.fixture
def judged(spark, tmp_path):
    def judge_events(*events, log, starts=None) -> Audit:
        """`log`: of each partition (first offset, values), a value with `/` being key and value."""
        rows = []
        for partition, (first, values) in log.items():
            for offset, text in enumerate(values, first):
                key, slash, value = text.rpartition("/")
                rows.append(
                    (key.encode() if slash else None, value.encode(), "t", partition, offset)
                )
        book = read_ledgers(spark, [ledger(tmp_path, *events)])
        frame = spark.createDataFrame(rows, LOG)
        return judge(book, frame, topics_of(book) or ["t"], starts or {})

    return judge_events


def test_a_whole_log_is_clean(judged):
    found = judged(
        *(sent(str(n), n % 2, n // 2, key="k") for n in range(20)),
        log={
            0: (0, [f"k/{n}" for n in range(0, 20, 2)]),
            1: (0, [f"k/{n}" for n in range(1, 20, 2)]),
        },
    )
    assert found.is_clean()
    assert found.totals() == {
        "acked": 20, "found": 20, "expired": 0, "unsure": 0, "lost": 0, "doubled": 0,
        "reordered": 0, "misplaced": 0, "phantom": 0, "failed": 0,
    }  # fmt: skip
    assert [(one.partition, one.acked, one.found) for one in found.partitions] == [
        (0, 10, 10),
        (1, 10, 10),
    ]


def test_each_kind_is_found_where_it_is(judged):
    found = judged(
        sent("a", 0, 0), sent("b", 0, 1), sent("c", 0, 2), sent("d", 0, 3), sent("lost", 1, 0),
        sent("x", 2, 0), sent("y", 2, 1),
        log={0: (0, ["a", "c", "b", "a", "d"]), 1: (7, ["nobody's"]), 2: (0, ["x", "y"])},
    )  # fmt: skip
    kinds = ("lost", "doubled", "reordered", "misplaced", "phantom")
    assert [tuple(getattr(one, kind) for kind in kinds) for one in found.partitions] == [
        (0, 1, 1, 3, 0),  # b and c changed places, so d is not where it was told to be
        (1, 0, 0, 0, 1),
        (0, 0, 0, 0, 0),
    ]
    assert not found.is_clean()
    assert not found.is_clean(["lost", "doubled", "reordered", "misplaced"])
    assert found.is_clean(kinds)
    said = [(one.kind, one.partition, one.offset, one.value) for one in found.findings]
    assert ("lost", 1, 0, "lost") in said
    assert ("doubled", 0, 3, "a") in said
    assert ("phantom", 1, 7, "nobody's") in said


def test_equal_records_are_told_apart_by_their_number(judged):
    events = [sent("v", part, n, key=str(part)) for part in range(4) for n in range(3)]
    found = judged(
        *events,
        log={
            0: (0, ["0/v"] * 3),
            1: (0, ["1/v"] * 2),
            2: (0, ["2/v"] * 5),
            3: (0, ["3/v", "3/v", "v"]),  # without a key it is another one
        },
    )
    assert [(one.lost, one.doubled, one.phantom) for one in found.partitions] == [
        *((0, 0, 0), (1, 0, 0), (0, 2, 0), (1, 0, 1)),
    ]


def test_a_send_that_failed_may_be_there_once_unless_it_was_not_written(judged):
    found = judged(
        sent("a", 0, 0), failed("maybe"), failed("not there"), failed("gone", "TransactionAborted"),
        log={0: (0, ["a", "maybe", "maybe", "gone"])},
    )  # fmt: skip
    assert (found.total("unsure"), found.total("doubled"), found.total("phantom")) == (1, 1, 1)
    assert (found.total("lost"), found.failed) == (0, 3)


def test_what_retention_took_is_expired_and_not_lost(judged):
    found = judged(
        *(sent(str(n), 0, n) for n in range(10)),
        log={0: (6, ["6", "7", "8"])},
        starts={("t", 0): 6},
    )
    [one] = found.partitions
    assert (one.acked, one.expired, one.found, one.lost) == (10, 6, 3, 1)


def test_a_ledger_is_asked_for_what_it_lacks(spark, tmp_path):
    empty = ledger(tmp_path)
    with pytest.raises(ConfigError, match="no event tells of a topic"):
        audit(spark, "shm://", [empty])
    with pytest.raises(ConfigError, match="name one"):
        audit(spark, None, [empty])
    with pytest.raises(ConfigError, match="a list of files"):
        audit(spark, "shm://", "ledger.jsonl")
