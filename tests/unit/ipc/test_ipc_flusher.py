"""The thread that forces logs to the device: what it runs, and in which order."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from penstock.core.flush import Writeback
from penstock.core.log import Log, LogConfig
from penstock.core.storage import READ_WRITE, WRITE_NEW, Storage
from penstock.ipc import flusher as fl
from penstock.ipc.doorbell import Doorbell


class Watched(Storage):
    """Tells what of a file was begun to be written and what was synced; `gate` holds it up."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def begin_writeback(self, fd: int, position: int, length: int) -> None:
        assert self.gate.wait(10)
        self.seen.append(("begun", position))
        super().begin_writeback(fd, position, length)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.seen.append(("synced", fd))


def a_log(storage: Storage, folder: Path) -> Log:
    log, _ = Log.open(
        storage,
        str(folder / "t-0"),
        LogConfig(),
        topic_id=bytes(16),
        partition=0,
        generation=1,
        now_us=1,
        boot_id="boot",
        node_clean=False,
    )
    return log


def test_what_was_appended_is_begun_to_be_written_before_the_sync_that_waits_for_it(tmp_path: Path):
    storage = Watched()
    log = a_log(storage, tmp_path)
    fd = storage.open(str(tmp_path / "file"), WRITE_NEW)
    storage.pwritev(fd, [bytes(1 << 20)], 0)
    job = log.begin_sync()
    assert job is not None
    storage.seen.clear()
    flusher = fl.Flusher(Doorbell())
    for position in (0, 1 << 19):
        flusher.begin(Writeback(storage, fd, position, 1 << 19))
    flusher.submit(7, job)
    assert flusher.stop(10)
    assert storage.seen[:2] == [("begun", 0), ("begun", 1 << 19)]
    assert [page for page, _ in flusher.finished()] == [7]
    log.finish_sync(job)


def test_a_file_that_was_closed_meanwhile_does_no_harm(tmp_path: Path):
    storage = Watched()
    fd = storage.open(str(tmp_path / "file"), WRITE_NEW)
    storage.close(fd)
    flusher = fl.Flusher(Doorbell())
    flusher.begin(Writeback(storage, fd, 0, 4096))
    assert flusher.stop(10)
    assert storage.seen == [("begun", 0)]


def test_no_more_waits_than_is_good(tmp_path: Path):
    storage = Watched()
    fd = storage.open(str(tmp_path / "file"), WRITE_NEW)
    flusher = fl.Flusher(Doorbell())
    storage.gate.clear()
    for position in range(2 * fl.QUEUED_MAX):
        flusher.begin(Writeback(storage, fd, position, 1))
    storage.gate.set()
    assert flusher.stop(10)
    assert fl.QUEUED_MAX <= len(storage.seen) <= fl.QUEUED_MAX + 1


def test_writing_out_changes_no_byte(tmp_path: Path):
    storage = Storage()
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 16))
    before = path.read_bytes()
    fd = storage.open(str(path), READ_WRITE)
    storage.begin_writeback(fd, 4096, 8192)
    storage.begin_writeback(fd, 1 << 20, 1 << 20)  # beyond the end
    storage.fdatasync(fd)
    assert path.read_bytes() == before


def test_a_sync_holds_its_page_and_rings_when_it_has_ended(tmp_path: Path):
    class Slow(Watched):
        def fdatasync(self, fd: int) -> None:
            assert self.gate.wait(10)
            super().fdatasync(fd)

    storage, bell = Slow(), Doorbell()
    log = a_log(storage, tmp_path)
    job = log.begin_sync()
    assert job is not None
    flusher = fl.Flusher(bell)
    storage.gate.clear()
    flusher.submit(7, job)
    assert (flusher.holds(7), flusher.holds(8), flusher.pending) == (True, False, 1)
    assert flusher.finished() == []
    storage.gate.set()
    assert bell.wait(10.0), "who sleeps hears of it"
    assert flusher.holds(7), "until it is handed back"
    assert [page for page, _ in flusher.finished()] == [7]
    assert (flusher.holds(7), flusher.pending) == (False, 0)
    assert flusher.stop(10)
    log.finish_sync(job)
