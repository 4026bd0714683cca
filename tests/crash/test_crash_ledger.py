"""The crash machine's judge finds each kind of broken promise, and none where all were kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash.ledgers import (
    ConsumerLedger,
    ProducerLedger,
    Stored,
    StoredBatch,
    StoredLog,
    Verdict,
    checksum,
    judge,
    whole_lines,
)
from crash.record_contents import Cargo

CARGO = Cargo("p0.0", (("t", 1),), keys=3)


class Case:
    """Twelve records in three batches, all acknowledged, all read by one consumer in two runs."""

    def __init__(self) -> None:
        self.log = StoredLog("t", 0)
        self.log.batches = [StoredBatch(at, at + 4, 7, 0, at) for at in (0, 4, 8)]
        for number in range(12):
            sent = CARGO.record(number)
            self.log.records.append(Stored(sent.key, sent.value, sent.headers))
        self.producer = ProducerLedger(CARGO, tried=12, finished=True)
        self.producer.acked = [(number, 0, number) for number in range(12)]
        self.consumer = ConsumerLedger("c0.0", {("t", 0): 0}, finished=True)
        self.consumer.saw = [self.run(0, 5), self.run(5, 12)]

    def run(self, first: int, following: int) -> tuple[str, int, int, int, int]:
        total = 0
        for stored in self.log.records[first:following]:
            total = checksum(stored.key, stored.value, total)
        return "t", 0, first, following, total

    def judge(self) -> Verdict:
        return judge([self.log], [self.producer], [self.consumer])


def test_judge_is_content_when_all_was_kept() -> None:
    verdict = Case().judge()
    assert verdict.problems == []
    assert (verdict.records, verdict.acknowledged, verdict.consumed) == (12, 12, 12)


def lose_the_last(case: Case) -> None:
    del case.log.records[8:], case.log.batches[2:]
    case.consumer.saw[1] = case.run(5, 8)


def double_a_batch(case: Case) -> None:
    case.log.batches.append(StoredBatch(12, 16, 7, 0, 8))
    case.log.records += case.log.records[8:12]
    case.consumer.saw.append(case.run(12, 16))


def skip_an_offset(case: Case) -> None:
    case.log.batches[2] = StoredBatch(9, 13, 7, 0, 8)


def skip_a_sequence(case: Case) -> None:
    case.log.batches[2] = StoredBatch(8, 12, 7, 0, 9)


def fall_back_in_epoch(case: Case) -> None:
    case.log.batches[1] = StoredBatch(4, 8, 7, 1, 0)


def change_a_byte(case: Case) -> None:
    stored = case.log.records[3]
    assert stored.value is not None
    case.log.records[3] = stored._replace(value=stored.value + b"x")
    case.consumer.saw[0] = case.run(0, 5)


def change_a_key(case: Case) -> None:
    case.log.records[3] = case.log.records[3]._replace(key=b"key-9")
    case.consumer.saw[0] = case.run(0, 5)


def drop_headers(case: Case) -> None:
    case.log.records[0] = case.log.records[0]._replace(headers=())


def store_what_nobody_sent(case: Case) -> None:
    case.log.records[3] = Stored(b"k", b"garbage", ())


def store_what_was_not_tried(case: Case) -> None:
    case.producer.tried = 11


def swap_two(case: Case) -> None:
    records = case.log.records
    records[3], records[4] = records[4], records[3]
    case.consumer.saw = [case.run(0, 12)]
    case.producer.acked = []


def acknowledge_elsewhere(case: Case) -> None:
    case.producer.acked[5] = (5, 0, 6)


def lose_what_the_ring_took(case: Case) -> None:
    lose_the_last(case)
    case.producer.finished = False
    case.producer.acked = [(11, 0, None)]


def lose_in_the_middle(case: Case) -> None:
    del case.log.records[4:8], case.log.batches[2:]
    case.consumer.saw = [case.run(0, 8)]
    case.producer.acked = []
    case.producer.finished = False


def lose_without_promise_after_a_good_end(case: Case) -> None:
    lose_the_last(case)
    case.producer.acked = []


def see_a_gap(case: Case) -> None:
    case.consumer.saw[1] = case.run(6, 12)


def see_twice(case: Case) -> None:
    case.consumer.saw[1] = case.run(4, 12)


def see_other_bytes(case: Case) -> None:
    case.consumer.saw[1] = (*case.consumer.saw[1][:4], 1)


def see_beyond_the_end(case: Case) -> None:
    case.consumer.saw.append(("t", 0, 12, 13, 0))


def stop_before_the_end(case: Case) -> None:
    case.consumer.saw[1] = case.run(5, 11)


def fail_as_producer(case: Case) -> None:
    case.producer.take(b'{"error": "DeliveryTimeout"}')


def fail_as_consumer(case: Case) -> None:
    case.consumer.take(b'{"error": "CorruptBatchError"}')


@pytest.mark.parametrize(
    "spoil",
    [
        lose_the_last,
        double_a_batch,
        skip_an_offset,
        skip_a_sequence,
        fall_back_in_epoch,
        change_a_byte,
        change_a_key,
        drop_headers,
        store_what_nobody_sent,
        store_what_was_not_tried,
        swap_two,
        acknowledge_elsewhere,
        lose_what_the_ring_took,
        lose_in_the_middle,
        lose_without_promise_after_a_good_end,
        see_a_gap,
        see_twice,
        see_other_bytes,
        see_beyond_the_end,
        stop_before_the_end,
        fail_as_producer,
        fail_as_consumer,
    ],
)
def test_judge_finds_a_broken_promise(spoil: Callable[[Case], None]) -> None:
    case = Case()
    spoil(case)
    assert case.judge().problems


def test_judge_takes_what_may_be_missing_after_a_kill() -> None:
    case = Case()
    lose_the_last(case)
    case.producer.finished = False
    case.producer.acked = case.producer.acked[:8]
    assert case.judge().problems == []


def test_ledger_ends_before_a_torn_line() -> None:
    buffer = bytearray(b'{"try": 1}\n{"try": 2}\n{"tr')
    assert list(whole_lines(buffer)) == [b'{"try": 1}', b'{"try": 2}']
    assert buffer == b'{"tr'
