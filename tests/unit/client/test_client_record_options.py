"""What `send` takes besides value and key: what it comes to, and what is refused."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from penstock.client.producer.record_options import (
    PLAIN,
    SPAN_MAX,
    RecordFields,
    as_work,
    is_plain,
    record_fields,
    work_of_rows,
)
from penstock.core.work import DEDUP_ID_BYTES_MAX, WorkFields

NOW = 1_700_000_000_000_000
AT = datetime.fromtimestamp(NOW / 1e6, UTC)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, None),
        ({"delay": 0}, None),
        ({"delay": 30}, WorkFields(due=NOW + 30_000_000)),
        ({"delay": 0.0000015}, WorkFields(due=NOW + 2)),
        ({"delay": np.float32(2.5)}, WorkFields(due=NOW + 2_500_000)),
        ({"delay": SPAN_MAX}, WorkFields(due=NOW + SPAN_MAX * 1_000_000)),
        ({"at": NOW + 7}, WorkFields(due=NOW + 7)),
        ({"at": 0}, WorkFields(due=0)),
        ({"at": AT - timedelta(days=1)}, WorkFields(due=NOW - 86_400_000_000)),
        ({"at": AT.astimezone().replace(tzinfo=None)}, WorkFields(due=NOW)),
        ({"ttl": 3600}, WorkFields(expires=NOW + 3_600_000_000)),
        ({"delay": 1, "ttl": 1.5}, WorkFields(NOW + 1_000_000, NOW + 1_500_000)),
        ({"priority": 0}, WorkFields(priority=0)),
        ({"priority": np.int8(9)}, WorkFields(priority=9)),
        ({"dedup_id": "naïve"}, WorkFields(dedup_id="naïve".encode())),
        ({"dedup_id": b"\0"}, WorkFields(dedup_id=b"\0")),
        ({"dedup_id": "x" * DEDUP_ID_BYTES_MAX}, WorkFields(dedup_id=b"x" * DEDUP_ID_BYTES_MAX)),
    ],
)
def test_what_is_said_of_a_record_becomes_times_and_bytes(options, wanted):
    assert as_work(NOW, **options) == wanted


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a negative delay": ({"delay": -1}, ValueError, r"delay=-1 must lie between 0 and 315360000"),
    "a delay of decades": ({"delay": SPAN_MAX + 1}, ValueError, "ten years"),
    "a delay that is no number": ({"delay": math.nan}, ValueError, "delay=nan"),
    "an endless delay": ({"delay": math.inf}, ValueError, "delay=inf"),
    "a delay in words": ({"delay": "5m"}, TypeError, "delay='5m' must be a number of seconds"),
    "a delay that is a flag": ({"delay": True}, TypeError, "not bool"),
    "a delay as a timedelta": ({"delay": timedelta(1)}, TypeError, "not timedelta"),
    "both": ({"delay": 1, "at": NOW}, ValueError, "both say when: give one of them"),
    "a time before 1970": ({"at": -1}, ValueError, "between 1970 and ten years from now"),
    "seconds in place of a time": ({"at": 1.5}, TypeError, "at= is int microseconds or a datetime"),
    "a time in decades": ({"at": datetime(2099, 1, 1, tzinfo=UTC)}, ValueError, "ten years"),
    "milliseconds too many": ({"at": NOW * 1000}, ValueError, "an int counts microseconds"),
    "a time of 65 bits": ({"at": 1 << 64}, ValueError, "64-bit"),
    "no time to live": ({"ttl": 0}, ValueError, "ttl=0 must be over 0"),
    "a ttl in the past": ({"ttl": -0.5}, ValueError, "ttl=-0.5 must lie between"),
    "a ttl of decades": ({"ttl": 1e12}, ValueError, "ten years"),
    "expired before it is due": ({"delay": 60, "ttl": 60}, ValueError, "before the record is due"),
    "a priority of 10": ({"priority": 10}, ValueError, "priority=10 must lie between 0 and 9"),
    "a negative priority": ({"priority": -1}, ValueError, "priority=-1"),
    "half a priority": ({"priority": 1.5}, TypeError, "priority=1.5 must be int, not float"),
    "a priority that is a flag": ({"priority": True}, TypeError, "must be int"),
    "an empty id": ({"dedup_id": ""}, ValueError, "a dedup_id has 1 to 128 bytes, not 0"),
    "an id of 129 bytes": ({"dedup_id": "x" * 127 + "ä"}, ValueError, "not 129: take a hash"),
    "an id that is a number": ({"dedup_id": 7}, TypeError, "dedup_id=7 must be str or bytes"),
    "a lone surrogate": ({"dedup_id": "\ud800"}, ValueError, "surrogates"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_nobody_can_mean_is_refused_with_what_is_allowed(case):
    options, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        record_fields(None, None, options)
    with pytest.raises(kind, match=words):
        as_work(NOW, **options)


def test_a_record_without_options_is_plain():
    assert is_plain({})
    assert is_plain({"delay": None, "timestamp": None})
    assert not is_plain({"delay": 0})
    assert record_fields({"a": b"b"}, 3, {"timestamp": 5}) == RecordFields((("a", b"b"),), 5, 3)
    assert record_fields(None, None, {"delay": None}) is PLAIN
    assert record_fields(None, None, {"delay": 0}) is PLAIN
    before = time.time_ns() // 1000
    found = record_fields(None, None, {"delay": 10}).work
    assert found is not None
    assert found.due is not None
    assert 0 <= found.due - before - 10_000_000 < 60_000_000


def test_an_option_that_there_is_not_is_told():
    with pytest.raises(TypeError, match="send has no option 'prioritty'; did you mean priority"):
        record_fields(None, None, {"prioritty": None})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="send_batch has no option 'delay'; did you mean delays"):
        work_of_rows("t", 1, {"delay": 5})  # type: ignore[typeddict-unknown-key]


def test_what_is_passed_on_is_said_by_nothing_else():
    work = WorkFields(1, 2, 3, b"4")
    assert record_fields(None, None, {"work": work}).work == work
    assert record_fields(None, None, {"work": None}).work is None
    with pytest.raises(TypeError, match=r"work= is that of a record \(record.work\), not tuple"):
        record_fields(None, None, {"work": (1, 2, 3, b"4")})  # type: ignore[typeddict-item]
    for bad, words in (
        (WorkFields(due=-1), "due=-1 must lie between 0 and"),
        (WorkFields(expires=1 << 62), "expires="),
        (WorkFields(priority=10), "priority=10"),
        (WorkFields(dedup_id=b""), "not 0"),
    ):
        with pytest.raises(ValueError, match=words):
            record_fields(None, None, {"work": bad})
        with pytest.raises(ValueError, match=words):
            work_of_rows("t", 2, {"work": [None, bad]})
    with pytest.raises(ValueError, match="work= says all that delay, ttl would"):
        record_fields(None, None, {"work": work, "delay": 1, "ttl": 2})


def test_columns_of_a_batch_are_those_of_its_records():
    assert work_of_rows("t", 3, {}) is None
    assert work_of_rows("t", 3, {"delays": None, "priorities": [None] * 3}) is None
    found = work_of_rows(
        "t", 3, {"ats": [NOW, None, AT], "priorities": [None, 3, 0], "dedup_ids": ["a", None, b"b"]}
    )
    assert found == [
        WorkFields(NOW, None, None, b"a"),
        WorkFields(priority=3),
        WorkFields(NOW, None, 0, b"b"),
    ]
    told = [WorkFields(1), None]
    assert work_of_rows("t", 2, {"work": told}) == told
    with pytest.raises(ValueError, match="send_batch to 't': 3 values but 2 ttls"):
        work_of_rows("t", 3, {"ttls": [1, 2]})
    with pytest.raises(ValueError, match="priority=10") as refused:
        work_of_rows("t", 2, {"priorities": [1, 10]})
    assert refused.value.__notes__ == ["record 1 of 2 for 't'; none of them was sent"]
