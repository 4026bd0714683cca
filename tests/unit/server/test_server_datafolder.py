"""The data folder's identity, lock and number blocks, on real files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import DataFolderError, NotConnectedError, StorageError
from penstock.core.storage import Storage
from penstock.server.node.data_folder import (
    COORDINATOR_BLOCK,
    GENERATION_BLOCK,
    PRODUCER_BLOCK,
    DataFolder,
    FolderLock,
)

BOOT = "11111111-2222-3333-4444-555555555555"


def on_disk(folder: Path) -> dict[str, object]:
    record: dict[str, object] = msgspec.json.decode((folder / "node.json").read_bytes())
    return record


def begun(folder: Path, storage: Storage | None = None) -> DataFolder:
    opened = DataFolder.open(str(folder), BOOT, storage)
    opened.begin(BOOT, 2)
    return opened


@pytest.mark.rule(3)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=8)
)
def test_rule_3_no_number_is_given_twice_over_crashes_and_clean_stops(memory, runs):
    folder = Path(tempfile.mkdtemp(dir=memory))
    producers: list[int] = []
    generations: list[int] = []
    for ids, writers, is_clean in runs:
        data = begun(folder)
        producers += [data.next_producer_id() for _ in range(ids)]
        generations += [data.next_generation() for _ in range(writers)]
        if is_clean:
            data.mark_clean()
    assert producers == sorted(set(producers))
    assert generations == sorted(set(generations))


@pytest.mark.rule(3)
def test_rule_3_a_block_is_on_disk_before_its_first_number_is_used(tmp_path):
    data = begun(tmp_path)
    for _ in range(PRODUCER_BLOCK + 1):
        producer_id = data.next_producer_id()
        reserved = on_disk(tmp_path)["producers"]
        assert isinstance(reserved, int)
        assert producer_id & ((1 << 40) - 1) < reserved
    for _ in range(GENERATION_BLOCK + 1):
        generation = data.next_generation()
        reserved = on_disk(tmp_path)["generations"]
        assert isinstance(reserved, int)
        assert generation < reserved


class FullDisk(Storage):
    """Takes no more bytes once `full`."""

    full = False

    def pwritev(self, fd, buffers, position):
        if self.full:
            raise StorageError("no room", retriable=True)
        return super().pwritev(fd, buffers, position)


@pytest.mark.rule(3)
def test_rule_3_no_number_beyond_the_block_is_given_while_the_disk_is_full(tmp_path):
    storage = FullDisk()
    data = begun(tmp_path, storage)
    for _ in range(PRODUCER_BLOCK):
        last = data.next_producer_id()
    storage.full = True
    with pytest.raises(StorageError):
        data.next_producer_id()
    storage.full = False
    assert data.next_producer_id() == last + 1


@pytest.mark.rule(17)
def test_rule_17_no_coordinator_epoch_is_given_twice_and_its_producer_id_to_nobody(tmp_path):
    epochs: list[int] = []
    producers: list[int] = []
    for clean in (False, True, False, False):
        data = begun(tmp_path)
        epochs += [data.next_coordinator_epoch() for _ in range(COORDINATOR_BLOCK + 3)]
        producers.append(data.next_producer_id())
        if clean:
            data.mark_clean()
    assert epochs == sorted(set(epochs))
    assert data.coordinator_id not in producers
    assert not data.may_be_ours(data.coordinator_id)


def test_a_producer_id_tells_its_node_and_ids_of_others_are_not_ours(tmp_path):
    data = begun(tmp_path)
    producer_id = data.next_producer_id()
    assert producer_id >> 40 == int(on_disk(tmp_path)["uuid"][:6], 16)  # type: ignore[index]
    assert data.may_be_ours(producer_id)
    assert not data.may_be_ours(producer_id ^ (1 << 40))
    assert not data.may_be_ours(producer_id + PRODUCER_BLOCK)
    assert not data.may_be_ours(0)


def broker(folder: Path) -> DataFolder:
    opened = DataFolder.open(str(folder), BOOT)
    opened.begin(BOOT, 2, node_id=3)
    return opened


def test_a_broker_gives_no_producer_id_before_the_controller_said_of_which_block(tmp_path):
    for _ in range(2):  # also one that was told in the run before: it may be an older copy
        data = broker(tmp_path)
        with pytest.raises(NotConnectedError, match="broker 3 has no producer ids") as refusal:
            data.next_producer_id()
        assert refusal.value.retriable
        data.registered_as(5, 7)
        assert data.next_producer_id() >> 40 == 7


@pytest.mark.rule(3)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["go on", "close", "copy"])),
        min_size=1,
        max_size=8,
    )
)
def test_rule_3_whatever_copy_of_its_folder_a_broker_starts_on_its_ids_are_new(memory, runs):
    """With a block as the controller gives them: a new one, unless the folder was closed and is no
    older copy."""
    folder = Path(tempfile.mkdtemp(dir=memory))
    block = 0
    copied: bytes | None = None
    given_out: list[int] = []
    for count, then in runs:
        data = broker(folder)
        if copied is not None or not data.was_clean or not block:
            block, copied = block + 1, None
        data.registered_as(data.record.broker_epoch + 1, block)
        assert on_disk(folder)["id_block"] == block
        if then == "copy":
            copied = (folder / "node.json").read_bytes()
        given_out += [data.next_producer_id() for _ in range(count)]
        if then == "close":
            data.mark_clean()
        if copied is not None:
            (folder / "node.json").write_bytes(copied)
    assert len(given_out) == len(set(given_out))
    assert {producer_id >> 40 for producer_id in given_out} <= set(range(1, block + 1))


def test_in_a_cluster_who_holds_a_producer_id_keeps_it_whoever_gave_it(tmp_path):
    data = broker(tmp_path)
    data.registered_as(5, 7)
    held = data.next_producer_id()
    data.registered_as(6, 8)
    assert data.next_producer_id() >> 40 == 8
    assert data.may_be_ours(held)
    assert data.may_be_ours(9 << 40 | 1), "of another broker"
    for of_the_node in (0, 7 << 40, data.coordinator_id, data.replicator_id):
        assert not data.may_be_ours(of_the_node)
    assert not data.may_be_ours(1 << 64 | 1)
    assert not data.may_be_ours(-1)


def test_the_clean_mark_is_gone_from_the_start_of_a_run_to_its_clean_end(tmp_path):
    first = begun(tmp_path)
    assert on_disk(tmp_path)["clean"] is False
    assert DataFolder.open(str(tmp_path), BOOT).was_clean is False
    first.mark_clean()
    assert on_disk(tmp_path)["clean"] is True
    second = begun(tmp_path)
    assert second.was_clean
    assert on_disk(tmp_path)["clean"] is False
    assert second.uuid == first.uuid


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": 1}', b'{"uuid": 7}'])
def test_a_damaged_node_file_is_named_with_what_to_do(tmp_path, damage):
    begun(tmp_path)
    (tmp_path / "node.json").write_bytes(damage)
    with pytest.raises(DataFolderError, match=r"node\.json cannot be read.*copy of the folder"):
        DataFolder.open(str(tmp_path), BOOT)


def test_a_newer_schema_asks_for_a_newer_build(tmp_path):
    (tmp_path / "node.json").write_bytes(b'{"schema": 2, "new": "fields"}')
    with pytest.raises(DataFolderError, match="schema 2, this build reads up to 1"):
        DataFolder.open(str(tmp_path), BOOT)


@pytest.mark.parametrize("left", ["topics.json", "0123456789abcdef0123456789abcdef-0"])
def test_a_folder_that_lost_its_identity_is_not_taken_for_a_new_one(tmp_path, left):
    (tmp_path / left).write_text("")
    with pytest.raises(DataFolderError, match=r"but no node\.json"):
        DataFolder.open(str(tmp_path), BOOT)


def test_a_held_folder_names_its_holder(tmp_path):
    held = FolderLock(str(tmp_path))
    assert held.try_acquire()
    other = FolderLock(str(tmp_path))
    assert not other.try_acquire()
    assert f"pid {os.getpid()}" in str(other.refusal(1.0))
    held.close()
    assert other.try_acquire()
    other.close()


@pytest.mark.rule(9)
def test_rule_9_the_lock_is_free_only_when_the_last_writer_is_gone(tmp_path):
    node = FolderLock(str(tmp_path))
    assert node.try_acquire()
    writer = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=[node.fd],
    )
    node.close()
    successor = FolderLock(str(tmp_path))
    assert not successor.try_acquire()
    writer.communicate(timeout=20)
    assert successor.try_acquire()
    successor.close()


def test_a_cluster_hears_of_what_may_be_lost_however_often_the_broker_starts(tmp_path):
    folder = DataFolder.open(str(tmp_path), "boot 1")
    assert folder.lost_nothing, "it never had anything"
    folder.begin("boot 1", 2, 7)
    again = DataFolder.open(str(tmp_path), "boot 1")
    assert again.lost_nothing, "the death of processes loses nothing"
    again.begin("boot 1", 2, 7)
    after_cut = DataFolder.open(str(tmp_path), "boot 2")
    assert not after_cut.lost_nothing
    after_cut.begin("boot 2", 2, 7)
    untold = DataFolder.open(str(tmp_path), "boot 2")
    assert not untold.lost_nothing, "it died before it told anybody"
    untold.begin("boot 2", 2, 7)
    untold.losses_are_told()
    untold.mark_clean()
    assert DataFolder.open(str(tmp_path), "boot 3").lost_nothing


def test_a_folder_stays_in_the_cluster_that_its_records_are_of(tmp_path):
    data = broker(tmp_path)
    data.belongs_to(b"one")
    data.belongs_to(b"one")
    again = DataFolder.open(str(tmp_path), "boot 1")
    with pytest.raises(DataFolderError, match="has records of cluster 6f6e65"):
        again.belongs_to(b"two")
    again.belongs_to(b"one")


def test_a_folder_stays_the_one_of_its_broker(tmp_path):
    folder = DataFolder.open(str(tmp_path), "boot 1")
    folder.check_broker(0, has_topics=True)
    folder.check_broker(7, has_topics=False)
    with pytest.raises(DataFolderError, match="topics of a node that was alone"):
        folder.check_broker(7, has_topics=True)
    folder.begin("boot 1", 2, 7)
    folder = DataFolder.open(str(tmp_path), "boot 1")
    folder.check_broker(7, has_topics=True)
    with pytest.raises(DataFolderError, match="of broker 7 and not of broker 8"):
        folder.check_broker(8, has_topics=False)
    with pytest.raises(DataFolderError, match="not of a node that is alone"):
        folder.check_broker(0, has_topics=False)
