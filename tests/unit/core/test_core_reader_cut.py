"""A segment file that is cut while a reader has it mapped: what is left is read, then an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from crash.node_under_test import environment
from reader_fixture import (
    ALL,
    World,
    expected,
    read_to,
    values_of,
)

from penstock.client.consumer.records import Chunk
from penstock.core import reader as reader_module
from penstock.core.columns import decode
from penstock.core.errors import StorageError
from penstock.core.reader import Limit, LogReader
from penstock.core.segment import segment_path
from penstock.core.storage import Storage

BATCH, BATCHES = 20, 100
VALUE = b"v" * 1000


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "log")
    for _ in range(BATCHES):
        made.append([VALUE] * BATCH)
    yield made
    made.log.close(clean=False)


def cut(world, size):
    path = segment_path(world.folder, 0)
    os.truncate(path, size)
    return path


def left(reader, limit):
    """The next batch; None where it is cut off."""
    try:
        return reader.fetch(limit, 1)
    except StorageError:
        return None


@pytest.mark.parametrize("recent", [0.0, 1e9], ids=["old", "just appended"])
def test_what_stands_before_the_cut_is_read_and_then_the_file_is_named(world, recent, monkeypatch):
    monkeypatch.setattr(reader_module, "RECENT", recent)
    reader = LogReader(world.storage, world.folder)
    assert reader.fetch(Limit(0, 0, 0), 1) == []
    got = values_of(reader.fetch(world.limit, 1))
    path = cut(world, 1_000_000)
    while len(got) < 900:
        got += values_of(reader.fetch(world.limit, 100_000))
    while reader.offset * 1010 < 1_000_000 and (found := left(reader, world.limit)):
        got += values_of(found)
    with pytest.raises(StorageError, match=f"{path}: it ends at byte 1000000"):
        reader.fetch(world.limit, 300_000)
    assert got == expected(world, 0, len(got))
    assert len(got) in range(900, 1000)


def test_a_reader_that_comes_later_is_told_too(world):
    path = cut(world, 1_000_000)
    with pytest.raises(StorageError, match=path):
        read_to(world.reader(), world.limit, 300_000)


def test_a_file_that_is_whole_again_is_read_on(world):
    """Restored from a backup, in place."""
    path = segment_path(world.folder, 0)
    with open(path, "rb") as file:
        whole = file.read()
    reader = world.reader()
    got = values_of(reader.fetch(world.limit, 1))
    cut(world, 0)
    with pytest.raises(StorageError):
        reader.fetch(world.limit, ALL)
    with open(path, "r+b") as file:
        file.write(whole)
    before = reader.offset
    assert got + values_of(reader.fetch(world.limit, ALL), before) == expected(world)


def test_the_record_that_comes_alone_is_left_to_the_long_way(world):
    reader = world.reader(BATCH * BATCHES)
    world.append([VALUE])
    reader.fetch(world.limit, ALL)
    world.append([VALUE])
    end = world.limit
    cut(world, 0)
    assert reader.alone(reader.offset, end.base, end.valid_bytes) is None
    with pytest.raises(StorageError):
        reader.fetch(end, ALL)


def test_columns_make_no_records_of_bytes_that_are_cut_off(world):
    found = world.reader().fetch(world.limit, 300_000)
    chunks = [Chunk("t", 0, decode(view, position, head)) for head, view, position in found]
    path = cut(world, chunks[2].columns.mapped_end)
    assert [record.value for chunk in chunks[:3] for record in chunk.records()] == [
        VALUE
    ] * BATCH * 3
    with pytest.raises(StorageError, match=path):
        chunks[3].records()


OLD_KERNEL = """
import os, sys
from penstock.core.errors import StorageError
from penstock.core.reader import Limit, LogReader
from penstock.core.storage import Storage

folder, offset, valid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
reader, limit = LogReader(Storage(), folder), Limit(offset, 0, valid)
print(len(reader.fetch(limit, 1 << 40)))
reader.seek(0)
reader.fetch(limit, 1)
os.truncate(folder + "/" + "0" * 20 + ".log", 4096)
try:
    reader.fetch(limit, 1 << 40)
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here")
def test_a_kernel_that_knows_no_such_advice_is_asked_by_reading(world):
    done = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "-e", "trace=madvise",
         "-e", "inject=madvise:error=EINVAL", sys.executable, "-c", OLD_KERNEL,
         world.folder, str(world.limit.offset), str(world.limit.valid_bytes)],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, error = done.stdout.splitlines()
    assert int(count) == BATCHES
    assert segment_path(world.folder, 0) in error


def test_populating_reads_nothing_beyond_what_is_asked(world):
    """A window ends with its file; a check of what lies within is none of what was cut behind."""
    storage = Storage()
    fd = storage.open(segment_path(world.folder, 0), os.O_RDONLY)
    window = storage.map_readonly(fd, 1 << 20)
    os.truncate(segment_path(world.folder, 0), 1 << 16)
    storage.populate(fd, window, 5, 1 << 16)
    with pytest.raises(StorageError, match="it ends at byte 65536"):
        storage.populate(fd, window, 5, 1 << 18)
    storage.close(fd)
