"""The leader epoch cache, by the vectors of Kafka's LeaderEpochFileCacheTest, and its file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from unit.core.log_helpers import MemoryStorage

from penstock.core import epochs
from penstock.core.epochs import EPOCHS_FILE, EpochCache, load_epochs, save_epochs


def cache(*entries):
    made = EpochCache()
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_the_end_of_the_latest_epoch_is_the_log_end():
    assert cache((2, 11), (2, 12)).end_offset(2, 14) == (2, 14)


def test_an_epoch_is_never_overwritten():
    made = cache((2, 11))
    assert not made.assign(2, 12)
    assert made.entries == ((2, 11),)
    assert not made.assign(1, 20)
    assert made.entries == ((2, 11),)


def test_an_epoch_ends_where_the_next_begins():
    made = cache((1, 11), (2, 12), (3, 13))
    assert [made.end_offset(epoch, 15) for epoch in (1, 2, 3)] == [(1, 12), (2, 13), (3, 15)]


def test_an_epoch_that_is_missing_is_answered_by_the_one_below():
    made = cache((0, 10), (2, 13), (4, 17))
    assert made.end_offset(1, 20) == (0, 13)
    assert made.end_offset(3, 20) == (2, 17)


def test_an_epoch_below_all_ends_where_they_begin():
    assert cache((5, 11), (7, 20)).end_offset(4, 30) == (4, 11)


def test_unknown_epochs_have_no_end():
    assert EpochCache().end_offset(0, 73) is None
    assert cache((2, 11)).end_offset(3, 73) is None


def test_epochs_that_hold_nothing_go_when_the_next_begins_there():
    made = cache((1, 0), (2, 10), (3, 10))
    assert made.entries == ((1, 0), (3, 10))
    assert made.end_offset(2, 15) == (1, 10)


def test_truncating_the_end_drops_epochs_that_began_there_or_behind():
    for end, left in [(9, 2), (11, 2), (8, 1), (6, 0), (99, 3)]:
        made = cache((2, 6), (3, 8), (4, 11))
        assert made.truncate_end(end) is (left < 3)
        assert len(made.entries) == left


def test_truncating_the_start_moves_the_epoch_that_reaches_over_it():
    for start, left in [
        (8, ((3, 8), (4, 11))),
        (9, ((3, 9), (4, 11))),
        (11, ((4, 11),)),
        (20, ((4, 20),)),
        (5, ((2, 6), (3, 8), (4, 11))),
        (7, ((2, 7), (3, 8), (4, 11))),
        (6, ((2, 6), (3, 8), (4, 11))),
    ]:
        made = cache((2, 6), (3, 8), (4, 11))
        changed = made.truncate_start(start)
        assert made.entries == left
        assert changed is (left != ((2, 6), (3, 8), (4, 11)))


def test_the_epoch_of_an_offset():
    made = cache((2, 6), (3, 8))
    assert [made.epoch_at(offset) for offset in (5, 6, 7, 8, 99)] == [None, 2, 2, 3, 3]


def test_golden_bytes():
    assert cache((1, 0), (2, 258)).encode() == bytes.fromhex(
        "50534550 0100 0000 f1b79948 02000000"
        "01000000 00000000 0000000000000000"
        "02000000 00000000 0201000000000000"
    )


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63)), max_size=6))
def test_the_file_gives_back_what_was_saved(entries):
    storage = MemoryStorage()
    made = cache(*entries)
    save_epochs(storage, "/data", made)
    after = storage.power_cut()
    loaded = load_epochs(after, "/data")
    assert loaded is not None
    assert loaded.entries == made.entries


def test_damaged_files_are_known_as_such():
    storage = MemoryStorage()
    assert load_epochs(storage, "/data") is None
    save_epochs(storage, "/data", cache((1, 0), (7, 99)))
    content = storage.names[f"/data/{EPOCHS_FILE}"].content
    whole = bytes(content)
    for i in range(len(whole)):
        content[:] = whole
        content[i] ^= 0x10
        assert load_epochs(storage, "/data") is None
        content[:] = whole[:i]
        assert load_epochs(storage, "/data") is None


def test_epochs_have_a_bound(monkeypatch):
    monkeypatch.setattr(epochs, "EPOCHS_MAX", 3)
    made = EpochCache()
    for epoch in range(1, 6):
        made.assign(epoch, 10 * epoch)
    assert made.entries == ((3, 30), (4, 40), (5, 50))
    assert made.end_offset(2, 60) == (2, 30)
