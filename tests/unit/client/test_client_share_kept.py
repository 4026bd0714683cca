"""Batches that a worker keeps, since more of their records may come: which, how many, how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.consumer.records import Chunk
from penstock.client.share import kept_batches
from penstock.client.share.kept_batches import KeptBatches
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch

NAME = ("jobs", 0)
IDENTITY = hd.BatchIdentity(bytes(16), 0, 1, 0, 0)


@pytest.fixture
def part() -> Any:
    return SimpleNamespace(name=NAME, page=SimpleNamespace(leader_epoch=3, log_start=0))


def batch_at(first: int, records: int) -> Chunk:
    values = [b"%d" % offset for offset in range(first, first + records)]
    image = encode_batch(values, IDENTITY, base_timestamp=0).image()
    header = bytearray(image[: hd.HEADER_BYTES])
    hd.stamp(header, base_offset=first, leader_epoch=3, generation=0, append_timestamp=0)
    data = memoryview(bytes(header) + image[hd.HEADER_BYTES :])
    return Chunk(*NAME, decode(data, 0, hd.checked(data)))


def values(chunk: Chunk | None) -> list[bytes | None]:
    return [] if chunk is None else [record.value for record in chunk.records()]


def test_records_of_a_kept_batch_are_found_where_they_are_and_nowhere_else(part):
    kept = KeptBatches(1 << 20)
    assert kept.find(part, 10, 11, 1) is None
    kept.keep(part, [batch_at(10, 5), batch_at(20, 5).cut(3, 4)])
    assert values(kept.find(part, 12, 13, 1)) == [b"12"]
    assert values(kept.find(part, 12, 14, 9)) == [b"12", b"13"]
    assert values(kept.find(part, 12, 99, 9)) == [b"12", b"13", b"14"]
    assert values(kept.find(part, 12, 99, 2)) == [b"12", b"13"]
    assert values(kept.find(part, 20, 21, 1)) == [b"20"]
    for first in (9, 15, 19, 25, 30):
        assert kept.find(part, first, first + 1, 1) is None


def test_few_are_kept_the_ones_used_last_and_none_that_is_too_large(part, monkeypatch):
    monkeypatch.setattr(kept_batches, "BATCHES_MAX", 2)
    kept = KeptBatches(1 << 20)
    kept.keep(part, [batch_at(0, 5), batch_at(5, 5)])
    assert values(kept.find(part, 0, 1, 1)) == [b"0"]
    kept.keep(part, [batch_at(10, 5), batch_at(10, 5)])
    assert kept.find(part, 5, 6, 1) is None
    assert values(kept.find(part, 0, 1, 1)) == [b"0"]
    size = batch_at(0, 5).size
    few = KeptBatches(size)
    few.keep(part, [batch_at(0, 5), batch_at(5, 5), batch_at(10, 500)])
    assert [few.find(part, first, first + 1, 1) is None for first in (0, 5, 10)] == [
        True, False, True
    ]  # fmt: skip


def test_after_another_leader_nothing_that_was_read_before_is_taken_for_what_stands_there(part):
    kept = KeptBatches(1 << 20)
    kept.keep(part, [batch_at(0, 5)])
    part.page.leader_epoch = 4
    assert kept.find(part, 0, 1, 1) is None
    assert kept.find(part, 0, 1, 1) is None
    kept.keep(part, [batch_at(0, 5)])
    assert values(kept.find(part, 4, 5, 1)) == [b"4"]


def test_what_is_below_the_logs_start_is_gone_and_lets_go_of_its_file(part):
    kept = KeptBatches(1 << 20)
    kept.keep(part, [batch_at(first, 5) for first in (0, 5, 10)])
    part.page.log_start = 7
    assert kept.find(part, 6, 7, 1) is None
    assert values(kept.find(part, 10, 11, 1)) == [b"10"]
    part.page.log_start = 0
    kept.keep(part, [batch_at(5, 5)])
    kept.forget(("others", 0), below=10)
    assert values(kept.find(part, 5, 6, 1)) == [b"5"]
    kept.forget(NAME, below=10)
    assert [kept.find(part, first, first + 1, 1) is None for first in (0, 5, 10)] == [
        True, True, False
    ]  # fmt: skip
    kept.forget(NAME)
    assert kept.find(part, 10, 11, 1) is None
