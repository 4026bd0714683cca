"""Producer state: the table of answers, rollback, snapshots. Kafka's ProducerStateManagerTest and
the log's part of rules 2, 3 and 4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.log_helpers import abort, begin, make_batch

from penstock.core.errors import CorruptBatchError, ErrorCode
from penstock.core.header import parse
from penstock.core.producers import ProducerTable

NONE = ErrorCode.NONE
GOLDEN = (
    "5053505202000000 c7e9804603000000 0102000000000000 1400000000000000 "
    "0100000000000000 0900000000000000 0500000001000000 0000000000000000 "
    "6400000000000000 0400000000000000 0100000000000080 1300000000000000 "
    "6400000000000000 0100000005000000 0a00000000000000 0100000001000000 "
    "0000000000000000 6500000000000000 0300000000000000 0300000000000080 "
    "1400000000000000 6500000000000000 0100000001000000 0201000000000000 "
    "0700000002000000 0300000000000000 6300000000000000 0000000000000000 "
    "0100000000000000 1100000000000000 6300000000000000 0100000007000000 "
    "0200000000000000 1200000000000000 6300000000000000 0100000007000000 "
    "0900000000000000 0500000000000000 1300000000000000 6400000000000000"
)


def head(sequence, records=1, *, producer=1, epoch=0, delta=None):
    batch = make_batch(sequence, records=records, producer=producer, epoch=epoch, delta=delta)
    return parse(batch)


class Partition:
    """A table together with the log end it would have."""

    def __init__(self, kept=4):
        self.table = ProducerTable(kept)
        self.end = 100

    def add(self, batch):
        """The base offset if appended, ("dup", offset) or the error."""
        answer = self.table.admit(batch, self.end, 1_000 + self.end)
        if answer is None:
            self.table.commit()
            base, self.end = self.end, self.end + batch.last_offset_delta + 1
            return base
        if answer.error is NONE:
            assert answer.next_offset == answer.base_offset + batch.last_offset_delta + 1
            assert answer.append_timestamp == 1_000 + answer.base_offset
            return "dup", answer.base_offset
        assert answer.message
        assert answer.base_offset == -1
        return answer.error


@pytest.mark.rule(3)
def test_rule_3_an_unknown_producer_must_begin_at_0():
    log = Partition()
    assert log.add(head(5)) is ErrorCode.UNKNOWN_PRODUCER
    assert log.add(head(0)) == 100
    assert log.table.next_sequence(1) == (0, 1)


def test_sequences_follow_without_gap():
    log = Partition()
    assert [log.add(head(0, 3)), log.add(head(3, 2)), log.add(head(5))] == [100, 103, 105]
    assert log.add(head(7)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert log.add(head(6)) == 106


def test_sequences_are_64_bits_and_do_not_wrap():
    log = Partition()
    big = 2**33
    log.table.replay(head(big, 4))
    assert log.add(head(big + 4)) == 100
    assert log.add(head(0)) is ErrorCode.DUPLICATE_TOO_OLD


@pytest.mark.rule(2)
def test_rule_2_a_duplicate_gets_its_original_offset():
    log = Partition(kept=4)
    for i in range(10):
        assert log.add(head(3 * i, 3)) == 100 + 3 * i
    for i in range(6, 10):
        assert log.add(head(3 * i, 3)) == ("dup", 100 + 3 * i)
    assert log.add(head(15, 3)) is ErrorCode.DUPLICATE_TOO_OLD
    assert log.add(head(30, 3)) == 130, "a duplicate that is too old refuses only itself"


def test_overlap_with_other_borders_is_no_duplicate():
    log = Partition()
    assert log.add(head(0, 4)) == 100
    assert log.add(head(0, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert log.add(head(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert log.add(head(2, 6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_epochs_fence_and_begin_at_0():
    log = Partition()
    assert log.add(head(0)) == 100
    assert log.add(head(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert log.add(head(0, epoch=2)) == 101
    assert log.add(head(1, epoch=1)) is ErrorCode.STALE_PRODUCER_EPOCH
    assert log.add(head(1, epoch=2)) == 102


@pytest.mark.rule(2)
def test_rule_2_a_re_drain_across_an_epoch_is_exact():
    log = Partition()
    batches = [head(0, epoch=1), head(1, epoch=1), head(0, epoch=2), head(1, epoch=2)]
    assert [log.add(batch) for batch in batches] == [100, 101, 102, 103]
    assert [log.add(batch) for batch in batches] == [("dup", 100 + i) for i in range(4)]


def test_producers_do_not_disturb_each_other():
    log = Partition()
    assert log.add(head(0, producer=1)) == 100
    assert log.add(head(0, producer=2)) == 101
    assert log.add(head(5, producer=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert log.add(head(1, producer=1)) == 102
    assert len(log.table) == 2


@pytest.mark.rule(4)
def test_rule_4_poison_refuses_the_rest_of_the_epoch():
    log = Partition()
    assert log.add(head(0)) == 100
    log.table.poison(1, 0)
    log.table.commit()
    assert log.add(head(1)) is ErrorCode.POISONED
    assert log.add(head(0)) == ("dup", 100)
    assert log.add(head(0, producer=2)) == 101
    assert log.add(head(0, epoch=1)) == 102
    assert log.add(head(1, epoch=1)) == 103
    log.table.poison(1, 0)
    log.table.commit()
    assert log.add(head(2, epoch=1)) == 104, "poison of a past epoch touches nobody"


@pytest.mark.rule(4)
def test_rule_4_poison_of_a_newer_epoch_before_its_first_batch():
    log = Partition()
    assert log.add(head(0)) == 100
    log.table.poison(1, 3)
    log.table.commit()
    assert log.add(head(0, epoch=3)) is ErrorCode.POISONED
    assert log.add(head(0, epoch=4)) == 101


def test_compaction_changes_no_sequence():
    table = ProducerTable(4)
    table.replay(head(0, 1, delta=9))  # ten offsets, one record left
    table.replay(head(40, 0, delta=9))  # what stood between is gone, this one is empty
    assert table.next_sequence(1) == (0, 50)
    answer = table.admit(head(40, 0, delta=9), 70, 1)
    assert answer is not None
    assert (answer.error, answer.base_offset, answer.next_offset) == (NONE, 0, 10)


def test_rollback_is_as_if_nothing_happened():
    log = Partition(kept=2)
    for i in range(9):
        log.add(head(i))
    log.table.poison(5, 1)
    log.table.commit()
    before = log.table.encode(log.end)
    table = log.table
    assert table.admit(head(9), 200, 1) is None
    assert table.admit(head(10), 201, 1) is None
    assert table.admit(head(0, producer=2), 202, 1) is None
    assert table.admit(head(1, producer=2), 203, 1) is None
    assert table.admit(head(0, epoch=5), 204, 1) is None
    table.poison(5, 2)
    table.poison(2, 0)
    table.rollback()
    assert table.encode(log.end) == before
    assert len(table) == 1
    assert log.add(head(9)) == 109
    assert log.add(head(0, producer=2)) == 110
    assert log.add(head(0, producer=5, epoch=1)) is ErrorCode.POISONED
    assert log.add(head(0, producer=5, epoch=2)) == 111


def test_a_batch_of_the_same_call_counts():
    table = ProducerTable(4)
    assert table.admit(head(0), 7, 1) is None
    assert table.admit(head(1), 8, 1) is None
    answer = table.admit(head(0), 9, 1)
    assert answer is not None
    assert (answer.error, answer.base_offset) == (NONE, 7)


def test_forgetting_and_expiring():
    log = Partition()
    for producer in range(1, 5):
        log.add(head(0, producer=producer))
    log.table.poison(2, 0)
    log.table.forget(2)
    assert log.add(head(1, producer=2)) is ErrorCode.UNKNOWN_PRODUCER
    assert log.add(head(0, producer=2)) == 104
    # 1, 3 and 4 were appended at 1100, 1102 and 1103; 1 still has its lane
    assert log.table.expire(1_103, attached={1}) == 1
    assert log.table.next_sequence(3) is None
    assert log.add(head(1, producer=1)) == 105
    assert log.add(head(1, producer=4)) == 106


def test_golden_snapshot():
    table = ProducerTable(2)
    for i in range(3):
        table.admit(head(i, producer=258, epoch=7), 16 + i, 99)
    table.commit()
    assert table.admit(parse(begin(5, producer=9, coordinator=4)), 19, 100) is None
    assert table.admit(parse(abort(0, producer=10, coordinator=3)), 20, 101) is None
    table.commit()
    assert table.encode(513).hex(" ", 8) == GOLDEN


def test_a_snapshot_of_version_1_is_read():
    table, offset = ProducerTable.decode(
        bytes.fromhex(
            "50535052 0100 0000 3018b8cd 01000000 0102000000000000"
            "0201000000000000 07000000 02000000 0300000000000000 6300000000000000"
            "0100000000000000 1100000000000000 6300000000000000 01000000 07000000"
            "0200000000000000 1200000000000000 6300000000000000 01000000 07000000"
        ),
        2,
    )
    assert (offset, table.next_sequence(258)) == (513, (7, 3))
    assert (len(table.transactions), table.transactions.aborted_from) == (0, None)
    answer = table.admit(head(2, producer=258, epoch=7), 600, 1)
    assert answer is not None
    assert answer.base_offset == 18


def test_damaged_snapshots_are_refused():
    table = ProducerTable(4)
    for producer in (1, 2):
        table.replay(head(0, producer=producer))
    data = table.encode(2)
    ProducerTable.decode(data, 4)
    for i in range(len(data)):
        flipped = bytearray(data)
        flipped[i] ^= 4
        for bad in (bytes(flipped), data[:i]):
            with pytest.raises(CorruptBatchError):
                ProducerTable.decode(bad, 4)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3),  # producer
        st.integers(0, 2),  # epoch
        st.integers(0, 12),  # sequence
        st.integers(1, 3),  # records
    ),
    max_size=60,
)


@given(steps=STEPS, cut=st.integers(0, 60))
def test_state_from_snapshot_and_log_equals_the_state_that_lived(steps, cut):
    live, log, snapshot = Partition(kept=3), [], ProducerTable(3).encode(100)
    for i, (producer, epoch, sequence, records) in enumerate(steps):
        batch = head(sequence, records, producer=producer, epoch=epoch)
        base = live.add(batch)
        if isinstance(base, int) and not isinstance(base, ErrorCode):
            log.append(batch._replace(base_offset=base, append_timestamp=1_000 + base))
        if i == cut:
            snapshot = live.table.encode(live.end)
    table, start = ProducerTable.decode(snapshot, 3)
    for batch in log:
        if batch.base_offset >= start:
            table.replay(batch)
    assert table.encode(live.end) == live.table.encode(live.end)


@given(steps=STEPS)
def test_invariant_3_a_sequence_is_in_the_log_once_and_in_order(steps):
    live = Partition(kept=3)
    seen: dict[tuple[int, int], int] = {}
    newest: dict[int, int] = {}
    for producer, epoch, sequence, records in steps:
        batch = head(sequence, records, producer=producer, epoch=epoch)
        result = live.add(batch)
        if isinstance(result, int) and not isinstance(result, ErrorCode):
            assert epoch >= newest.get(producer, 0)
            assert sequence == seen.get((producer, epoch), 0)
            newest[producer] = epoch
            seen[producer, epoch] = sequence + records
