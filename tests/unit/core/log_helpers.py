"""Batches, and storages that lose, tear, refuse and crash, for the tests of the log.

The body of a batch is opaque to the log, so it is any bytes here.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from crc32c import crc32c

from penstock.core.control import ControlType, encode_control
from penstock.core.errors import ErrorCode
from penstock.core.header import (
    ATTR_TRANSACTIONAL,
    HEADER_BYTES,
    BatchIdentity,
    aligned,
    pack_header,
    seal_header,
)
from penstock.core.log import AppendResult, Log, LogConfig, RecoveryReport
from penstock.core.reader import Limit
from penstock.core.storage import Storage, Window, storage_error
from penstock.core.timesearch import searching

TOPIC = bytes(range(16))
FOLDER = "/data/topic-0"
SMALL = LogConfig(
    segment_bytes=4096, index_interval_bytes=256, preallocate_bytes=1024, batch_bytes_max=2048
)


def find_time(
    storage: Storage, folder: str, timestamp: int, limit: Limit, *, committed: bool = False
) -> int | None:
    """The first offset that is as late; None if there is none."""
    steps = searching(storage, folder, timestamp, limit, committed=committed)
    return next((step.offset for step in steps if step.is_found), None)


def time_in(log: Log, timestamp: int) -> int | None:
    """The same of a whole log."""
    base, valid_bytes, end, _, _ = log.published()
    return find_time(
        log.storage, log.folder, timestamp, Limit(end, base, valid_bytes, log.log_start)
    )


def make_batch(
    sequence: int = 0,
    *,
    producer: int = 1,
    epoch: int = 0,
    records: int = 1,
    body: bytes | int = 64,
    timestamp: int = 1_000,
    base_timestamp: int | None = None,
    topic_id: bytes = TOPIC,
    partition: int = 0,
    delta: int | None = None,
    attributes: int = 0,
) -> memoryview:
    """A sealed batch as a producer hands it over. `body` is its bytes, or how many."""
    payload = bytes([0xA0 + sequence % 64]) * body if isinstance(body, int) else body
    payload = payload.ljust(aligned(len(payload)), b"\0")
    head = pack_header(
        BatchIdentity(topic_id, partition, producer, epoch, sequence),
        length=HEADER_BYTES + len(payload),
        attributes=attributes,
        last_offset_delta=records - 1 if delta is None else delta,
        record_count=records,
        base_timestamp=timestamp if base_timestamp is None else base_timestamp,
        max_timestamp=timestamp,
        raw_body_length=len(payload),
    )
    seal_header(head, crc32c(payload, crc32c(bytes(head[48:]))))
    return memoryview(bytes(head) + payload)


def control(
    kind: ControlType, epoch: int = 0, *, producer: int = 1, coordinator: int = 1, at: int = 1_000
) -> memoryview:
    """A control batch for the transaction of that epoch."""
    image = encode_control(
        kind,
        producer_id=producer,
        producer_epoch=epoch + (kind is not ControlType.BEGIN),
        coordinator_epoch=coordinator,
        timestamp=at,
        topic_id=TOPIC,
        partition=0,
    )
    return memoryview(image)


def begin(epoch: int = 0, **options: Any) -> memoryview:
    return control(ControlType.BEGIN, epoch, **options)


def commit(epoch: int = 0, **options: Any) -> memoryview:
    return control(ControlType.COMMIT, epoch, **options)


def abort(epoch: int = 0, **options: Any) -> memoryview:
    return control(ControlType.ABORT, epoch, **options)


def within(sequence: int, epoch: int = 0, **options: Any) -> memoryview:
    """A batch of a transaction."""
    return make_batch(sequence, epoch=epoch, attributes=ATTR_TRANSACTIONAL, **options)


def open_log(
    storage: Storage, folder: str = FOLDER, config: LogConfig = SMALL, **options: Any
) -> tuple[Log, RecoveryReport]:
    """`Log.open` with the arguments that most tests do not care for."""
    settings: dict[str, Any] = {
        "topic_id": TOPIC,
        "partition": 0,
        "generation": 1,
        "now_us": 1,
        "boot_id": "boot-1",
        "node_clean": False,
    }
    return Log.open(storage, folder, config, **{**settings, **options})


def contents(log: Log) -> list[tuple[int, bytes]]:
    """(base offset, bytes) of every batch, by one read from the start."""
    return [(head.base_offset, data) for head, data in log.read(log.log_start, 1 << 40)]


def payload(batch: bytes | memoryview) -> bytes:
    """The part of a batch that the broker never changes."""
    return bytes(batch[44:])


class Crash(BaseException):
    """The process died in a system call."""


PAGE = 64


@dataclass(eq=False)
class Inode:
    """A file: what everybody sees, and what a power cut leaves for certain.

    As in Linux a failed fsync leaves the pages clean: a later one succeeds without writing them.
    """

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    dirty: set[int] = field(default_factory=set)
    number: int = field(default=1)

    def write(self, data: bytes, position: int) -> None:
        if len(self.content) < position:
            self.content.extend(bytes(position - len(self.content)))
        self.content[position : position + len(data)] = data
        self.dirty.update(range(position // PAGE, (position + len(data) + PAGE - 1) // PAGE))

    def sync(self) -> None:
        self.synced = self.with_pages(len(self.content), self.dirty)
        self.dirty.clear()

    def with_pages(self, size: int, pages: Iterable[int]) -> bytes:
        """What is on the device, had it this size and these pages been written."""
        data = bytearray(self.synced[:size].ljust(size, b"\0"))
        for page in pages:
            piece = self.content[page * PAGE : min((page + 1) * PAGE, size)]
            data[page * PAGE : page * PAGE + len(piece)] = piece
        return bytes(data)

    def copy(self) -> Inode:
        """The same file, in another life of the storage."""
        return Inode(bytearray(self.content), self.synced, set(self.dirty), self.number)


@dataclass(frozen=True)
class Call:
    """One changing system call, as a fault sees it."""

    number: int
    name: str
    path: str


Fault = Callable[[Call], "int | None"]


class MemoryStorage(Storage):
    """Files in memory that know what is synced, and ask `fault` before every changing call.

    `fault` may raise (`Crash`, or an error made by `refuse`) or return how many bytes a write is
    to take before the process dies (-n: and then goes on, a short write of n bytes).
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.folders = {"/", "/data"}
        self.fault: Fault | None = None
        self.calls = 0
        self.log: list[Call] = []
        self.dead = False
        self._open: dict[int, Inode] = {}
        self._next_fd = 100

    def _enter(self, name: str, path: str) -> int | None:
        if self.dead:
            raise Crash("already dead")
        self.calls += 1
        call = Call(self.calls, name, path)
        self.log.append(call)
        if self.fault is None:
            return None
        try:
            return self.fault(call)
        except Crash:
            self.dead = True
            raise

    def _die(self) -> None:
        self.dead = True
        raise Crash

    @property
    def open_files(self) -> list[str]:
        return sorted(self._paths.values())

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        import os

        if path not in self.names or flags & os.O_TRUNC:
            if path not in self.names and not flags & os.O_CREAT:
                missing = FileNotFoundError(errno.ENOENT, "gone")
                raise storage_error(missing, "open", path) from missing
            self._enter("create", path)
            if path in self.names:
                self.names[path].content.clear()
            else:
                self.names[path] = Inode()
        elif flags & os.O_EXCL:
            raise storage_error(FileExistsError(errno.EEXIST, "there"), "open", path)
        self._next_fd += 1
        self._open[self._next_fd] = self.names[path]
        self._paths[self._next_fd] = path
        return self._next_fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._open.pop(fd, None)

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        assert len(buffers) <= 1024
        taken = self._enter("pwritev", self._paths[fd])
        dies = taken is not None and taken >= 0
        if taken is not None:
            data = data[: abs(taken)]
        self._open[fd].write(data, position)
        if dies:
            self._die()
        return len(data)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._open[fd].content[position : position + length])

    def map_readonly(self, fd: int, length: int, position: int = 0) -> Window:
        """The bytes as they are at that moment."""
        return cast(Window, self.pread(fd, length, position))

    def populate(self, fd: int, window: Window, start: int, end: int) -> None:
        """It is."""

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, name: str, fd: int) -> None:
        try:
            self._enter(name, self._paths[fd])
        except Exception:
            self._open[fd].dirty.clear()
            raise
        self._open[fd].sync()

    def fsync_folder(self, path: str) -> None:
        self._enter("fsync_folder", path)
        here = {name: node for name, node in self.names.items() if self._in(path, name)}
        for name in [name for name in self.synced_names if self._in(path, name)]:
            del self.synced_names[name]
        self.synced_names.update(here)

    @staticmethod
    def _in(folder: str, name: str) -> bool:
        return name.rpartition("/")[0] == folder

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._enter("allocate", self._paths[fd])
        content = self._open[fd].content
        content.extend(bytes(max(0, offset + length - len(content))))

    def truncate(self, fd: int, length: int) -> None:
        raise AssertionError("no file of a log may be shrunk")

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", target)
        self.names[target] = self.names.pop(source)

    def link(self, source: str, target: str) -> None:
        self._enter("link", target)
        assert target not in self.names
        self.names[target] = self.names[source]

    def unlink(self, path: str) -> None:
        if path in self.names:
            self._enter("unlink", path)
            del self.names[path]

    def listdir(self, path: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.names if self._in(path, name)]

    def makedirs(self, path: str) -> None:
        self._enter("makedirs", path)
        self.folders.add(path)

    def size(self, fd: int) -> int:
        return len(self._open[fd].content)

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.folders

    def identity(self, fd: int) -> int:
        return self._open[fd].number

    # ---- what tests do to it

    def killed(self) -> MemoryStorage:
        """The same files, for the next process of this boot: the page cache outlives a process.
        A copy, so that one death can be followed by several lives."""
        after = MemoryStorage()
        both = (*self.names.values(), *self.synced_names.values())
        nodes = {id(node): node.copy() for node in both}
        after.names = {name: nodes[id(node)] for name, node in self.names.items()}
        after.synced_names = {name: nodes[id(node)] for name, node in self.synced_names.items()}
        after.folders = set(self.folders)
        return after

    copy = killed

    def brought_back(self) -> MemoryStorage:
        """A copy of the files: what `cp` wrote, into other files, none of it synced."""
        after = MemoryStorage()
        after.folders = set(self.folders)
        for name, node in self.names.items():
            content = bytearray(node.content)
            pages = set(range(-(-len(content) // PAGE)))
            after.names[name] = Inode(content, b"", pages, node.number + 1)
        return after

    def power_cut(self, chance: random.Random | None = None) -> MemoryStorage:
        """What the next boot finds. Without `chance` only what was synced; with it any part of
        the unsynced pages and names made it too."""
        after = MemoryStorage()
        after.folders = set(self.folders)
        nodes: dict[int, Inode] = {}
        for name in sorted({*self.names, *self.synced_names}):
            old, new = self.synced_names.get(name), self.names.get(name)
            node = new if chance is not None and chance.random() < 0.5 else old
            if node is None:
                continue
            if id(node) not in nodes:
                data = _after_power_cut(node, chance)
                nodes[id(node)] = Inode(bytearray(data), data, number=node.number)
            after.names[name] = after.synced_names[name] = nodes[id(node)]
        return after


def _after_power_cut(node: Inode, chance: random.Random | None) -> bytes:
    if chance is None:
        return node.synced
    size = chance.choice([len(node.synced), len(node.content)])
    return node.with_pages(size, [page for page in node.dirty if chance.random() < 0.5])


def refuse(call: Call, code: int) -> None:
    """Raise what the kernel would for this call."""
    error = OSError(code, "injected")
    raise storage_error(error, call.name, call.path) from error


def crash_at(number: int, bytes_written: int | None = None) -> Fault:
    """Die in the `number`th changing call: before it does anything, or, if it is a write, after
    that many bytes."""

    def fault(call: Call) -> int | None:
        if call.number != number:
            return None
        if bytes_written is not None and call.name == "pwritev":
            return bytes_written
        raise Crash(f"in call {call}")

    return fault


def fail_at(number: int, code: int, *names: str) -> Fault:
    """The `number`th of the named changing calls (all if none is named) fails with errno `code`."""
    seen = 0

    def fault(call: Call) -> int | None:
        nonlocal seen
        if not names or call.name in names:
            seen += 1
            if seen == number:
                refuse(call, code)
        return None

    return fault


def opened(**options: Any) -> tuple[MemoryStorage, Log]:
    """A new log on a new storage."""
    storage = MemoryStorage()
    log, _ = open_log(storage, **options)
    return storage, log


def numbered(count: int, start: int = 0, **options: Any) -> list[memoryview]:
    """Batches of one record each that follow each other."""
    return [make_batch(i, **options) for i in range(start, start + count)]


def errors(results: list[AppendResult]) -> list[ErrorCode]:
    return [ErrorCode(result.error) for result in results]


def filled(
    sizes: Sequence[int] = (0, 64, 10, 200, 64, 128), *, synced: int = 0, config: LogConfig = SMALL
) -> tuple[MemoryStorage, list[tuple[int, int]], list[tuple[int, bytes]]]:
    """A log of batches with these bodies, the first `synced` of them on the device; where each
    batch begins; and what the log holds."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=config)
    places = []
    for i, size in enumerate(sizes):
        log.append([make_batch(i, body=b"\xab" * size)], 100 + i)
        places.append((log.segment_base, log.valid_bytes))
        if i + 1 == synced:
            log.sync()
    kept = contents(log)
    log.close(clean=False)
    return storage, places, kept


def rebooted(storage: MemoryStorage, **options: Any) -> tuple[Log, RecoveryReport]:
    """The log as the next boot opens it."""
    return open_log(storage, **{"boot_id": "boot-2", **options})
