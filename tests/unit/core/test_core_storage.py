"""The storage seam: short writes are finished, errors say what to do, replacing is one step."""

from __future__ import annotations

import errno
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StorageError
from penstock.core.storage import (
    READ,
    WRITE_ANY,
    WRITE_NEW,
    Storage,
    storage_error,
    write_all,
    write_zeros,
)
from penstock.testing import wait_until


class Stingy(Storage):
    """Takes at most a few bytes at a time, as the kernel may."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = list(sizes)
        self.asked: list[int] = []

    def pwritev(self, fd, buffers, position):
        self.asked.append(len(buffers))
        if not self.sizes:
            return super().pwritev(fd, buffers, position)
        left = self.sizes.pop(0)
        short = []
        for buffer in buffers:
            short.append(memoryview(buffer)[:left])
            left -= len(short[-1])
        return super().pwritev(fd, short, position)


@given(
    pieces=st.lists(st.binary(max_size=9), max_size=12),
    sizes=st.lists(st.integers(1, 7), max_size=20),
    position=st.integers(0, 40),
)
def test_short_writes_are_finished_in_place(memory, pieces, sizes, position):
    storage = Stingy(sizes)
    path = os.path.join(tempfile.mkdtemp(dir=memory), "file")
    fd = storage.open(path, WRITE_ANY)
    try:
        assert write_all(storage, fd, pieces, position) == sum(map(len, pieces))
    finally:
        storage.close(fd)
    written = storage.read_file(path)
    if any(pieces):
        assert written == bytes(position) + b"".join(pieces)


def test_more_buffers_than_one_call_takes(tmp_path):
    storage = Stingy([])
    fd = storage.open(str(tmp_path / "file"), WRITE_ANY)
    pieces = [i.to_bytes(2, "little") for i in range(2600)]
    assert write_all(storage, fd, pieces, 0) == 5200
    assert storage.pread(fd, 9999, 0) == b"".join(pieces)
    assert storage.asked == [1024, 1024, 552]


def test_a_file_system_that_takes_nothing_is_an_error_and_no_endless_loop(tmp_path):
    class Full(Storage):
        def pwritev(self, fd, buffers, position):
            return 0

    storage = Full()
    fd = storage.open(str(tmp_path / "file"), WRITE_ANY)
    with pytest.raises(StorageError, match="takes no bytes"):
        write_all(storage, fd, [b"x"], 0)


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EFBIG, True),
        (errno.EMFILE, True),
        (errno.EIO, False),
        (errno.EROFS, False),
        (errno.EBADF, False),
    ],
)
def test_errors_name_the_file_and_tell_whether_room_may_come_back(code, retriable):
    error = storage_error(OSError(code, "x"), "write", "/data/t-0/0.log")
    assert error.retriable is retriable
    assert "/data/t-0/0.log" in str(error)
    assert errno.errorcode[code] in str(error)


def test_real_errors_are_translated(tmp_path):
    storage = Storage()
    with pytest.raises(StorageError, match="ENOENT") as caught:
        storage.open(str(tmp_path / "none"), READ)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    fd = storage.open(str(tmp_path / "file"), WRITE_NEW)
    with pytest.raises(StorageError, match="EEXIST"):
        storage.open(str(tmp_path / "file"), WRITE_NEW)
    storage.close(fd)
    with pytest.raises(StorageError, match="EBADF"):
        storage.pread(fd, 1, 0)


def test_a_full_file_system_is_retriable():
    storage = Storage()
    fd = storage.open("/dev/full", WRITE_ANY)
    with pytest.raises(StorageError, match="/dev/full") as caught:
        write_all(storage, fd, [b"x"], 0)
    assert caught.value.retriable
    storage.close(fd)


def test_replacing_a_file_leaves_the_old_one_when_it_fails(tmp_path):
    class Failing(Storage):
        def fsync(self, fd):
            raise storage_error(OSError(errno.EIO, "x"), "fsync", self.path_of(fd))

    path = str(tmp_path / "file")
    Storage().write_file_atomic(path, b"old")
    with pytest.raises(StorageError):
        Failing().write_file_atomic(path, b"new")
    assert Storage().read_file(path) == b"old"
    assert os.listdir(tmp_path) == ["file"]
    Storage().write_file_atomic(path, b"new")
    assert Storage().read_file(path) == b"new"


def test_no_descriptor_is_left_open(tmp_path):
    storage = Storage()
    before = set(os.listdir("/proc/self/fd"))
    path = str(tmp_path / "file")
    storage.write_file_atomic(path, b"x" * 100)
    storage.sync_file(path)
    storage.sync_file(str(tmp_path / "none"))
    assert storage.read_file(path) == b"x" * 100
    assert storage.read_file(str(tmp_path / "none")) is None
    storage.unlink(path)
    storage.unlink(path)
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, 5.0, "all descriptors closed")


def test_growing_keeps_the_data_and_maps_as_zeros(tmp_path):
    storage = Storage()
    fd = storage.open(str(tmp_path / "file"), WRITE_ANY)
    write_all(storage, fd, [b"abc"], 0)
    storage.allocate(fd, 3, 8192)
    assert storage.size(fd) == 8195
    mapping = storage.map_readonly(fd, 8195)
    assert mapping[:4] == b"abc\0"
    write_all(storage, fd, [b"xyz"], 100)
    assert mapping[100:103] == b"xyz"
    write_zeros(storage, fd, 1, 8195)
    assert mapping[:] == b"a".ljust(8195, b"\0")
    mapping.close()
    storage.close(fd)
