"""Transactions in a partition's log: what is admitted, what holds the last stable offset back, what
is noted of aborts, and that all of it survives rolls, crashes, trims and truncations."""

from __future__ import annotations

import errno

import pytest
from unit.core.log_helpers import (
    FOLDER,
    SMALL,
    TOPIC,
    abort,
    begin,
    commit,
    errors,
    fail_at,
    make_batch,
    open_log,
    opened,
    rebooted,
    refuse,
    within,
)

from penstock.core import committed
from penstock.core.aborted import Aborted, decode_aborted, encode_aborted, txn_path
from penstock.core.committed import AbortedTransactions
from penstock.core.errors import ErrorCode, StorageError
from penstock.core.log import Log
from penstock.core.logreplica import LogReplica
from penstock.core.opentransactions import OpenTransaction
from penstock.core.segment import list_segments
from penstock.core.snapshots import list_snapshots
from penstock.logcheck import CheckedPartition, check_partition

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_PRODUCER_EPOCH
NOT_OPEN, GAP = ErrorCode.TRANSACTION_NOT_OPEN, ErrorCode.OUT_OF_ORDER_SEQUENCE
DAY_US = 24 * 3600 * 1_000_000


def put(log: Log, *batches, at: int = 1_000):
    """The base offset of each batch, ("dup", offset) for a repeated one, or its error."""
    answers: list[int | tuple[str, int] | ErrorCode] = []
    for result in log.append(list(batches), at):
        if result.error:
            answers.append(ErrorCode(result.error))
        else:
            answers.append(("dup", result.base_offset) if result.duplicate else result.base_offset)
    return answers


def noted(storage) -> list[Aborted]:
    """The entries of all `.txn` files."""
    paths = [txn_path(FOLDER, base) for base in list_segments(storage, FOLDER)]
    return [each for path in paths for each in decode_aborted(storage.read_file(path) or b"")]


def oldest(log: Log) -> OpenTransaction:
    assert log.oldest_open is not None
    return log.oldest_open


def txn_files(storage) -> dict[str, bytes]:
    return {n: bytes(node.content) for n, node in storage.names.items() if n.endswith(".txn")}


# ---- what is admitted
@pytest.mark.rule(19)
def test_rule_19_a_transaction_holds_the_last_stable_offset_until_its_marker():
    _, log = opened()
    assert put(log, make_batch(0, producer=7)) == [0]
    assert put(log, begin(3), within(0, 3), within(1, 3)) == [1, 2, 3]
    assert put(log, make_batch(1, producer=7)) == [4]
    assert (log.last_stable, log.log_end) == (1, 5)
    assert log.oldest_open == (1, 3, 1, 1_000)
    assert put(log, commit(3)) == [5]
    assert log.last_stable == 6
    assert log.oldest_open is None


@pytest.mark.rule(19)
def test_rule_19_data_without_its_begin_is_refused_and_poisons_nothing():
    _, log = opened()
    assert put(log, within(0, 3)) == [NOT_OPEN]
    assert put(log, begin(3), within(0, 3)) == [0, 1]
    assert put(log, within(0, 4)) == [NOT_OPEN]
    assert put(log, within(1, 3)) == [2]


@pytest.mark.rule(19)
def test_rule_19_what_is_late_of_a_transaction_is_refused_once_it_ended():
    _, log = opened()
    put(log, begin(3), within(0, 3), abort(3))
    assert put(log, within(1, 3), begin(3), make_batch(5, epoch=3)) == [STALE, ("dup", 0), STALE]
    assert log.last_stable == log.log_end == 3
    assert put(log, begin(4), within(0, 4), commit(4)) == [3, 4, 5]


@pytest.mark.rule(19)
def test_rule_19_a_late_end_never_touches_a_later_transaction():
    _, log = opened()
    put(log, begin(3), within(0, 3), commit(3), begin(4), within(0, 4))
    assert put(log, commit(3), abort(3)) == [("dup", 2), ("dup", 4)]
    assert (log.last_stable, oldest(log).epoch) == (3, 4)
    assert put(log, commit(2), abort(2)) == [STALE, STALE]


def test_plain_data_of_a_producer_with_an_open_transaction_is_refused():
    _, log = opened()
    put(log, make_batch(0), begin(0))
    assert put(log, make_batch(1)) == [NOT_OPEN]
    assert put(log, within(1), commit(0)) == [2, 3]
    assert put(log, make_batch(0, epoch=1)) == [4]


@pytest.mark.parametrize("kind", [begin, commit, abort])
def test_a_repeated_control_batch_is_answered_with_its_offset(kind):
    _, log = opened()
    put(log, make_batch(0, producer=5), begin(3), within(0, 3))
    first = put(log, kind(3))
    again = put(log, kind(3))
    assert again == ([("dup", 1)] if kind is begin else [("dup", first[0])])


def test_a_repeated_control_batch_whose_place_is_forgotten_is_still_a_duplicate():
    _, log = opened()
    put(log, begin(3))
    for i in range(300):
        put(log, within(i, 3))
    assert put(log, begin(3)) == [("dup", 300)]
    put(log, commit(3), begin(4))
    for i in range(300):
        put(log, within(i, 4))
    ((_, offset),) = put(log, commit(3))
    assert offset == log.log_end - 1
    assert oldest(log).epoch == 4


def test_a_marker_for_what_never_began_fences_its_epoch():
    _, log = opened()
    assert put(log, abort(3)) == [0]
    assert put(log, begin(3), within(0, 3)) == [STALE, STALE]
    assert put(log, begin(4)) == [1]


def test_a_second_transaction_waits_for_the_end_of_the_first():
    _, log = opened()
    put(log, begin(3), within(0, 3))
    assert put(log, begin(5), commit(5)) == [GAP, NOT_OPEN]
    assert put(log, within(1, 3)) == [2]
    assert put(log, abort(7)) == [3]
    assert log.last_stable == 4
    assert put(log, begin(8)) == [4]


def test_an_abort_of_a_later_transaction_notes_the_one_that_it_closes():
    storage, log = opened()
    put(log, begin(3), within(0, 3), begin(5), abort(5))
    assert noted(storage) == [Aborted(1, 3, 0, 2, 3)]
    log.close(clean=False)
    for path in list(txn_files(storage)):
        storage.unlink(path)
    again, _ = open_log(storage)
    assert noted(storage) == [Aborted(1, 3, 0, 2, 3)]
    again.close(clean=True)
    assert [each for each in found_in(storage) if each[0] == "txn"] == []


def test_an_older_coordinator_is_refused():
    _, log = opened()
    put(log, begin(3, coordinator=5))
    assert put(log, abort(3, coordinator=4)) == [STALE]
    assert put(log, abort(3, coordinator=6), abort(3, coordinator=4)) == [1, ("dup", 1)]


def test_control_batches_take_no_sequence_numbers():
    _, log = opened()
    put(log, make_batch(0, epoch=3), make_batch(1, epoch=3))
    assert put(log, begin(3), within(2, 3), begin(3), within(3, 3)) == [2, 3, ("dup", 2), 4]
    assert put(log, within(5, 3)) == [GAP]


def test_a_control_batch_with_a_lie_in_its_body_is_refused_and_poisons_nobody():
    _, log = opened()
    put(log, begin(3))
    bad = bytearray(commit(3))
    bad[-1] ^= 1
    assert put(log, memoryview(bad)) == [ErrorCode.CORRUPT_BATCH]
    assert put(log, within(0, 3)) == [1]


def test_a_failed_append_leaves_transactions_as_they_were():
    storage, log = opened()
    put(log, begin(3), within(0, 3), begin(0, producer=2))
    before = log.producers.encode(log.log_end)
    storage.fault = fail_at(1, errno.ENOSPC, "pwritev")
    with pytest.raises(StorageError):
        put(log, abort(3), begin(4), begin(9, producer=9), commit(0, producer=2))
    assert log.producers.encode(log.log_end) == before
    assert (log.last_stable, oldest(log).producer_id) == (0, 1)
    storage.fault = None
    assert noted(storage) == []
    assert put(log, commit(3)) == [3]
    assert log.last_stable == 2


def test_a_producer_with_an_open_transaction_is_never_forgotten():
    _, log = opened(attached=lambda: ())
    put(log, begin(3), within(0, 3), make_batch(0, producer=2))
    put(log, make_batch(0, producer=3), at=8 * DAY_US)
    log.snapshot()
    assert log.producers.next_sequence(2) is None
    assert log.producers.next_sequence(1) == (3, 1)
    put(log, abort(3), at=8 * DAY_US)
    put(log, make_batch(1, producer=3), at=16 * DAY_US)
    log.snapshot()
    assert log.producers.next_sequence(1) is None


# ---- what is noted of aborts
def test_golden_txn_entry():
    entry = Aborted(0x1122334455667788, 3, 16, 258, 257)
    assert encode_aborted([entry]).hex(" ", 8) == (
        "8877665544332211 030000005804e47f 1000000000000000 0201000000000000 0101000000000000"
    )
    assert decode_aborted(encode_aborted([entry])) == [entry]


def test_a_torn_or_zeroed_entry_ends_the_list():
    good = [Aborted(1, i, 2, 3 + i, 4) for i in range(3)]
    data = encode_aborted(good)
    for cut in range(len(data)):
        assert decode_aborted(data[:cut]) == good[: cut // 40]
        assert decode_aborted(data[:cut] + bytes(200)) == good[: cut // 40] or cut % 40
    assert decode_aborted(bytes(4000)) == []


def test_an_abort_is_noted_with_where_it_began_and_what_is_stable_behind_it():
    storage, log = opened()
    put(log, begin(3), begin(0, producer=2), within(0, 3), abort(3), abort(0, producer=2))
    assert noted(storage) == [Aborted(1, 3, 0, 3, 1), Aborted(2, 0, 1, 4, 5)]


def test_a_log_without_aborts_has_no_txn_file():
    storage, log = opened()
    for i in range(60):
        put(log, begin(i), within(0, i), commit(i))
    assert len(list_segments(storage, FOLDER)) > 3
    log.close(clean=True)
    open_log(storage, node_clean=True)[0].close(clean=True)
    assert txn_files(storage) == {}


def test_an_abort_that_cannot_be_noted_holds_the_last_stable_offset_back():
    storage, log = opened()
    put(log, make_batch(0, producer=2), begin(3), within(0, 3))

    def no_txn(call):
        if call.path.endswith(".txn"):
            refuse(call, errno.ENOSPC)

    storage.fault = no_txn
    assert put(log, abort(3), make_batch(1, producer=2)) == [3, 4]
    assert log.last_stable == 1
    assert not log.note_held_aborts()
    log.snapshot()
    assert list_snapshots(storage, FOLDER) == []
    after, _ = open_log(storage.killed())
    assert after.last_stable == 5
    storage.fault = None
    assert log.note_held_aborts()
    assert (log.last_stable, noted(storage)) == (5, [Aborted(1, 3, 1, 3, 4)])


# ---- rolls, crashes, deletions
def busy_log(steps: int = 90):
    """A log of many segments with commits and aborts of two producers, and one that stays open."""
    storage, log = opened()
    put(log, begin(0, producer=9), within(0, producer=9))
    for i in range(steps):
        producer = 1 + i % 2
        end = abort if i % 3 == 0 else commit
        put(log, begin(i, producer=producer), within(0, i, producer=producer), at=1_000 + i)
        put(log, end(i, producer=producer), at=1_000 + i)
        if i == steps // 2:
            put(log, commit(0, producer=9))
            log.sync()
            put(log, begin(1, producer=9))
    return storage, log


def test_every_segment_behind_the_first_abort_has_its_file():
    storage, log = busy_log()
    bases = list_segments(storage, FOLDER)
    assert len(bases) > 10
    assert set(txn_files(storage)) == {txn_path(FOLDER, base) for base in bases}
    assert len(noted(storage)) == 30
    assert log.last_stable == oldest(log).first_offset


@pytest.mark.parametrize("clean", [True, False])
def test_invariant_9_deleted_txn_files_come_back_identical(clean):
    storage, log = busy_log()
    log.sync()
    stable, state = log.last_stable, log.producers.encode(log.log_end)
    log.close(clean=clean)
    before = txn_files(storage)
    for victims in ([name] for name in before):
        after = storage.killed()
        for name in victims:
            del after.names[name]
        again, _ = open_log(after, node_clean=clean)
        assert txn_files(after) == before
        assert (again.last_stable, again.producers.encode(again.log_end)) == (stable, state)
    after = storage.killed()
    for name in (*before, *(n for n in storage.names if n.endswith((".snapshot", "index")))):
        del after.names[name]
    again, _ = open_log(after, node_clean=clean)
    assert txn_files(after) == before
    assert again.last_stable == stable
    again.close(clean=False)


def test_invariant_9_a_damaged_txn_file_shows_no_aborted_record_and_is_made_again():
    storage, log = busy_log()
    log.sync()
    log.close(clean=True)
    before = txn_files(storage)
    name, data = next((name, data) for name, data in before.items() if data)
    first = decode_aborted(data)[0].first_offset
    again, _ = open_log(storage, node_clean=True)
    head = again.read(first + 1, 1)[0][0]
    again.close(clean=True)
    assert AbortedTransactions(storage, FOLDER).has(head, first + 2)
    for at in range(len(data)):
        after = storage.killed()
        after.names[name].content[at] ^= 1
        with pytest.raises(StorageError, match="is damaged at byte"):
            AbortedTransactions(after, FOLDER).has(head, first + 2)
        if at % 40 == 0:
            open_log(after, node_clean=True)
            assert txn_files(after) == before


def test_a_reader_that_went_far_ahead_and_comes_back_leaves_out_what_was_aborted_in_between():
    """Found by a look at it: what it had not read on its way counted as known."""
    storage, log = opened()
    put(log, begin(3, producer=50), within(0, 3, producer=50), abort(3, producer=50))
    aborted = AbortedTransactions(storage, FOLDER)

    def is_left_out(offset: int) -> bool:
        (head, *_), *_ = log.read(offset, 1)
        return aborted.has(head, log.last_stable)

    assert is_left_out(1)
    put(log, begin(3, producer=51), within(0, 3, producer=51), abort(3, producer=51))
    put(log, *(make_batch(number, producer=7) for number in range(30)))
    far = log.log_end + 1
    put(log, begin(3, producer=52), within(0, 3, producer=52), commit(3, producer=52))
    assert 5 < list_segments(storage, FOLDER)[-1] <= far  # what follows is in another segment
    assert not is_left_out(far)
    assert is_left_out(4)
    assert is_left_out(1)
    assert not is_left_out(far)


def test_a_reader_that_lets_go_of_aborts_behind_it_keeps_those_ahead(monkeypatch):
    monkeypatch.setattr(committed, "PRUNE_FROM", 2)
    storage, log = opened()
    put(log, begin(3, producer=49), within(0, 3, producer=49), abort(3, producer=49))
    for producer in (50, 51, 52):
        put(log, begin(3, producer=producer))
    for producer in (50, 51, 52):
        put(log, within(0, 3, producer=producer))
    for producer in (50, 51, 52):
        put(log, abort(3, producer=producer))
    aborted = AbortedTransactions(storage, FOLDER)
    heads = [log.read(offset, 1)[0][0] for offset in (1, 6, 7, 8)]
    assert [aborted.has(head, log.last_stable) for head in heads] == [True] * 4
    assert [aborted.has(head, log.last_stable) for head in heads[1:]] == [True] * 3
    put(log, begin(0, producer=60), within(0, producer=60), abort(0, producer=60))
    late = log.read(log.log_end - 2, 1)[0][0]
    assert aborted.has(late, log.last_stable)
    assert len(aborted) < 5, "what lies behind is let go"
    assert all(aborted.has(head, log.last_stable) for head in heads)


def test_a_reader_of_a_log_that_is_cut_and_grows_as_long_again_misses_no_abort():
    """Of a replica, twice in a row: which aborts are noted above the high watermark may change. The
    reader has not heard of it, since a leader epoch begins before the cut that it brings."""
    storage, log = opened()
    put(log, begin(3, producer=50), within(0, 3, producer=50), abort(3, producer=50))
    put(log, begin(0, producer=51), within(0, 0, producer=51))
    put(log, begin(0, producer=52), within(0, 0, producer=52))
    high_watermark = log.log_end
    put(log, abort(0, producer=51))
    LogReplica(log).truncate_to(high_watermark)
    put(log, abort(0, producer=51))
    aborted = AbortedTransactions(storage, FOLDER)
    assert aborted.has(log.read(1, 1)[0][0], log.last_stable)
    LogReplica(log).truncate_to(high_watermark)
    put(log, abort(0, producer=52), abort(0, producer=51))
    assert log.last_stable == log.log_end
    for offset in (6, 4):
        assert aborted.has(log.read(offset, 1)[0][0], log.last_stable)


def test_a_reopened_log_changes_no_txn_file():
    storage, log = busy_log()
    log.close(clean=True)
    storage.log.clear()
    open_log(storage, node_clean=True)
    assert [call for call in storage.log if call.path.endswith(".txn")] == []


def test_a_power_cut_keeps_what_the_recovery_point_has_passed():
    storage, log = busy_log()
    log.sync()
    before = txn_files(storage)
    put(log, begin(100), within(0, 100), abort(100))
    log.snapshot()
    assert txn_files(storage) != before
    after = storage.power_cut()
    again, report = rebooted(after)
    assert txn_files(after) == before
    assert report.log_end == again.log_end == log.log_end - 3
    again.close(clean=False)


def test_a_torn_tail_of_control_batches_is_cut_wherever_it_tore():
    storage, log = opened()
    put(log, begin(3), within(0, 3))
    log.sync()
    end = log.valid_bytes
    put(log, abort(3), begin(4), within(0, 4), commit(4))
    path = f"{FOLDER}/{0:020d}.log"
    whole = bytes(storage.names[path].content)
    sizes = [256, 256, 192, 256]
    for cut in range(end, log.valid_bytes + 1, 16):
        after = storage.killed()
        after.names[path].content[cut:] = bytes(len(whole) - cut)
        again, _ = open_log(after, boot_id="boot-2")
        ends = [end + sum(sizes[: i + 1]) for i in range(4)]
        left = sum(after.names[path].content[:stop] == whole[:stop] for stop in ends)
        assert again.log_end == 2 + left
        assert again.last_stable == [0, 3, 3, 3, 6][left]
        assert len(noted(after)) == (left > 0)
        again.close(clean=False)


def test_trim_keeps_open_transactions_and_their_outcome():
    storage, log = busy_log()
    open_at = oldest(log).first_offset
    log.trim(open_at + 5)
    assert log.last_stable == log.log_start == open_at + 5
    assert min(list_segments(storage, FOLDER)) > 0
    log.close(clean=True)
    again, _ = open_log(storage, node_clean=True)
    assert (again.last_stable, oldest(again).first_offset) == (open_at + 5, open_at)
    put(again, abort(1, producer=9))
    assert again.last_stable == again.log_end
    again.trim(again.log_end)
    assert len(txn_files(storage)) == 1
    again.close(clean=False)


def test_truncation_takes_transactions_and_aborts_back():
    storage, log = opened()
    put(log, begin(3), within(0, 3))
    put(log, begin(0, producer=2), within(0, producer=2), abort(0, producer=2))
    put(log, abort(3), begin(4))
    assert len(noted(storage)) == 2
    LogReplica(log).truncate_to(5)
    assert noted(storage) == [Aborted(2, 0, 2, 4, 0)]
    assert (log.last_stable, oldest(log).epoch) == (0, 3)
    assert put(log, commit(3)) == [5]
    assert log.last_stable == 6


def test_the_state_without_any_snapshot_is_the_state_that_lived():
    storage, log = busy_log()
    state = log.producers.encode(log.log_end)
    log.close(clean=False)
    for name in [name for name in storage.names if "producers-" in name]:
        del storage.names[name]
    again, _ = open_log(storage)
    assert again.producers.encode(again.log_end) == state


def test_errors_are_those_of_the_answers():
    _, log = opened()
    assert errors(log.append([within(0)], 1)) == [NOT_OPEN]
    assert "registered" in log.append([within(0)], 1)[0].message
    assert log.config == SMALL


# ---- what the check of a log finds
def found_in(storage) -> list[tuple[str, str]]:
    checked = check_partition(CheckedPartition(FOLDER, "t-0", (TOPIC, 0)), storage)
    return [(finding.kind, finding.message) for finding in checked.errors]


def test_log_verify_finds_nothing_in_transactions_that_are_well():
    storage, log = busy_log()
    log.close(clean=True)
    assert [kind for kind, _ in found_in(storage) if kind != "columns"] == []


def test_log_verify_names_an_abort_that_is_not_noted():
    storage, log = busy_log()
    log.close(clean=True)
    name = next(name for name, data in txn_files(storage).items() if data)
    storage.names[name].content.clear()
    kinds = [(kind, message) for kind, message in found_in(storage) if kind == "txn"]
    assert kinds
    assert "does not say" in kinds[0][1]
