"""What a dead letter tells of its record."""

from __future__ import annotations

import json

from penstock.client.share.dead_letters import DeadRecord, _joined, headers_of
from penstock.client.validation import HEADERS_MAX
from penstock.ipc import sharing as sh

TOLD = sh.CondemnedRecord(
    bytes(16), 3, 17, 5, [sh.FailureInfo("a", 1_500_000, "first"), sh.FailureInfo("b", 2, "é")]
)


def test_headers_tell_which_record_it_is_and_its_story():
    headers = dict(headers_of(DeadRecord("jobs", TOLD), "resize"))
    assert headers["penstock.dlq.topic"] == b"jobs"
    assert headers["penstock.dlq.offset"] == b"17"
    assert headers["penstock.dlq.reason"] == "é".encode()
    assert json.loads(headers["penstock.dlq.history"] or b"") == [
        {"member": "a", "at": 1.5, "reason": "first"},
        {"member": "b", "at": 2e-06, "reason": "é"},
    ]


def test_headers_of_an_earlier_death_give_way_and_too_many_are_counted():
    added = headers_of(DeadRecord("jobs", TOLD), "resize")
    own = (("penstock.dlq.offset", b"1"), *((f"h{n}", b"") for n in range(HEADERS_MAX)))
    found = _joined(own, added)
    assert len(found) == HEADERS_MAX
    assert [value for name, value in found if name == "penstock.dlq.offset"] == [b"17"]
    left_out = dict(found)["penstock.dlq.headers_left_out"]
    assert left_out == b"%d" % (HEADERS_MAX - (HEADERS_MAX - len(added) - 1))
    assert _joined((("own", b"1"),), added) == (("own", b"1"), *added)
