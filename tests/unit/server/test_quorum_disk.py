"""Raft's log on disk: what a crash leaves, what is damage, and the bytes of all of it."""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import golden_quorum
import pytest
from golden_quorum import LOG, VOTERS, disk_files, entry, opened, writes
from sim.raft_world import replayed
from unit.core.log_helpers import Crash, Inode, MemoryStorage, crash_at, fail_at

from penstock.cluster.raft import Members, Saved, Snapshot, Write, fresh
from penstock.core.errors import DataFolderError, StorageError
from penstock.server.quorum.raft_storage import RaftDisk


def test_a_new_node_begins_with_its_voters_and_remembers_them(tmp_path):
    storage = MemoryStorage()
    assert opened(storage)[1] == fresh(*VOTERS)
    assert opened(storage.power_cut(), ())[1] == fresh(*VOTERS)
    assert opened(MemoryStorage(), ())[1] == fresh()


@pytest.mark.parametrize("together", [1, 2, 7])
def test_what_was_written_is_there_after_a_power_cut(together):
    storage = MemoryStorage()
    disk, first = opened(storage)
    done: list[Write] = []
    for batch in (writes()[i : i + together] for i in range(0, len(writes()), together)):
        disk.write(batch)
        done += batch
        assert disk.saved == replayed(done, first)
        _, found = opened(storage.power_cut())
        assert found == replayed(done, first)


def test_old_files_go():
    storage = MemoryStorage()
    disk, _ = opened(storage)
    disk.write(writes())
    disk.write([Write(8, 2, 2, 7, (), Snapshot(6, 2, Members(VOTERS), b"more"))])
    assert sorted(storage.listdir("/data/raft")) == [
        "00000000000000000003.log",
        "00000000000000000006-00000000000000000002.snapshot",
    ]


def test_a_tail_that_is_torn_at_any_byte_is_cut_off():
    storage = MemoryStorage()
    disk, first = opened(storage)
    disk.write(writes()[:3])
    before = len(storage.names[LOG].content)
    disk.write(writes()[3:5])
    whole = bytes(storage.names[LOG].content)
    after_one = replayed(writes()[:4], first)
    found: set[Saved] = set()
    for end in range(before, len(whole)):
        for tail in (b"", bytes(len(whole) - end), b"\xff" * (len(whole) - end)):
            storage.names[LOG].content[:] = whole[:end] + tail
            disk, saved = opened(storage.killed())
            assert saved in (replayed(writes()[:3], first), after_one), end
            found.add(saved)
            assert disk.torn_bytes <= end + len(tail) - before
    assert found == {replayed(writes()[:3], first), after_one}


def test_a_hole_in_the_last_write_is_a_tear_even_if_its_end_is_there():
    storage = MemoryStorage()
    disk, first = opened(storage)
    disk.write(writes()[:1])
    before = len(storage.names[LOG].content)
    disk.write(writes()[1:4])
    storage.names[LOG].content[before : before + 8] = bytes(8)
    assert opened(storage.killed())[1] == replayed(writes()[:1], first)


def test_damage_before_the_last_write_is_told_at_every_byte():
    storage = MemoryStorage()
    disk, _ = opened(storage)
    disk.write(writes()[:2])
    for last in writes()[2:4]:
        disk.write([last])
    whole = bytes(storage.names[LOG].content)
    end = whole.rindex(b"PSQR")
    for at in range(end):
        storage.names[LOG].content[:] = whole
        storage.names[LOG].content[at] ^= 0x40
        with pytest.raises(DataFolderError, match=r"is damaged|whole record"):
            opened(storage.killed())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda files: files.update({LOG: b""}), "whole record"),
        (lambda files: files.update({LOG: b"garbage" * 99}), "whole record"),
        (lambda files: files.pop(snapshot_of(files)), "is not there"),
        (lambda files: files.update({snapshot_of(files): b"garbage"}), "is damaged"),
        (lambda files: files.update({snapshot_of(files): b""}), "is damaged"),
    ],
)
def test_garbage_is_told_and_what_to_do(change, says):
    storage = MemoryStorage()
    disk, _ = opened(storage)
    disk.write(writes())
    [log] = [name for name in storage.names if name.endswith(".log")]
    files = {LOG if name == log else name: bytes(it.content) for name, it in storage.names.items()}
    change(files)
    broken = MemoryStorage()
    broken.folders = set(storage.folders)
    broken.names = {name: Inode(bytearray(data), data) for name, data in files.items()}
    with pytest.raises(DataFolderError, match=says) as told:
        opened(broken)
    assert "cluster remove" in str(told.value)


def snapshot_of(files: dict[str, bytes]) -> str:
    return next(name for name in files if name.endswith(".snapshot"))


def test_another_brokers_folder_is_refused():
    storage = MemoryStorage()
    opened(storage)
    with pytest.raises(DataFolderError, match="node_id 1, and this is 2"):
        RaftDisk(storage, "/data", 2).open(VOTERS)


def test_a_crash_anywhere_leaves_what_was_answered_for():
    """Kill or cut the power before every call that changes something, and in every write."""
    probe = MemoryStorage()
    first = opened(probe)[1]
    live(probe, [])
    states = [replayed(writes()[:count], first) for count in range(8)]
    chance = random.Random(7)
    for number in range(3, probe.calls + 1):
        for taken in (None, 0, 1, 30, 64, 200):
            storage = MemoryStorage()
            storage.fault = crash_at(number, taken)
            answered: list[Write] = []
            with suppress(Crash):
                live(storage, answered)
            for after in (storage.killed(), storage.power_cut(), storage.power_cut(chance)):
                _, saved = opened(after)
                assert saved in states[len(answered) :], (number, taken, len(answered))
                assert opened(after.power_cut())[1] == saved, "what was read is on the device"


def live(storage: MemoryStorage, answered: list[Write]) -> None:
    disk, _ = opened(storage)
    for batch in (writes()[:3], writes()[3:]):
        disk.write(batch)
        answered += batch


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_could_not_be_written_goes_into_a_new_file(code):
    probe = MemoryStorage()
    disk, first = opened(probe)
    opening = probe.calls
    disk.write(writes()[:3])
    disk.write(writes()[3:])
    for number in range(1, probe.calls - opening + 1):
        storage = MemoryStorage()
        disk, _ = opened(storage)
        storage.fault = fail_at(number, code)
        failures = 0
        for batch in (writes()[:3], writes()[3:]):
            try:
                disk.write(batch)
            except StorageError:
                failures += 1
                disk.again()
        assert failures == 1 or storage.log[opening + number - 1].name == "unlink", number
        assert opened(storage.power_cut())[1] == replayed(writes(), first)


def test_a_long_log_is_read_again(tmp_path):
    storage = MemoryStorage()
    disk, first = opened(storage)
    entries = tuple(entry(i, 1, 1) for i in range(1, 2502))
    disk.write([Write(1, 1, 1, 1, entries)])
    for _ in range(2):  # the second time from a file that was begun with all of them
        storage = storage.power_cut()
        assert opened(storage)[1] == Saved(first.snapshot, 1, 1, entries)


def test_the_bytes_are_what_they_always_were():
    """Frozen: an older node's files are read by all newer ones."""
    files = disk_files()
    assert {name: golden_quorum.load()[name] for name in files} == files
