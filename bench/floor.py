"""The bare cost of a queue on this machine: three processes that only pass on bytes.

They do it as producer, writer and consumer do, with nothing around it. The first writes a record
into shared memory and rings an eventfd. The second wakes, writes it to a file and rings; the third
wakes and reads it from the file's mapping. Two wakes and one write are what the design costs before
a line of it is written. They vary more between machines, and between minutes on a shared one, than
the queue's own part.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import tempfile
import time
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

RECORDS = 1000
_STAMP = struct.Struct("<Q")
_WAIT_MS = 500
_HEAD_BYTES = 128


class _Stage:
    """Shared memory and bells of the three; every wait is bounded, so that none is left behind."""

    def __init__(self, folder: Path, size: int, records: int) -> None:
        self.size = size
        self.records = records
        self.memory = mmap.mmap(-1, 4096 + size)
        self.counts = memoryview(self.memory).cast("Q")
        self.to_writer, self.to_reader = os.eventfd(0), os.eventfd(0)
        self.file = os.open(folder / "floor", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self.file, 0, records * (size + _HEAD_BYTES))

    def write(self) -> None:
        poll = select.poll()
        poll.register(self.to_writer, select.POLLIN)
        head = bytes(_HEAD_BYTES)
        done = 0
        while done < self.records and poll.poll(_WAIT_MS):
            os.eventfd_read(self.to_writer)
            done = self.counts[0]
            record = self.memory[4096 : 4096 + self.size]
            os.pwritev(self.file, (head, record), (done - 1) * (self.size + _HEAD_BYTES))
            self.counts[1] = done
            os.eventfd_write(self.to_reader, 1)

    def read(self, results: Path) -> None:
        poll = select.poll()
        poll.register(self.to_reader, select.POLLIN)
        view = mmap.mmap(self.file, self.records * (self.size + _HEAD_BYTES), prot=mmap.PROT_READ)
        took = array("q")
        done = 0
        while done < self.records and poll.poll(_WAIT_MS):
            os.eventfd_read(self.to_reader)
            done = self.counts[1]
            at = (done - 1) * (self.size + _HEAD_BYTES) + _HEAD_BYTES
            record = view[at : at + self.size]
            took.append(time.monotonic_ns() - _STAMP.unpack_from(record)[0])
        results.write_bytes(took.tobytes())

    def send(self, rate: float, spin: float) -> None:
        """Sends as the load generator of the latency benchmark does."""
        pad = bytes(self.size - _STAMP.size)
        begun = time.monotonic() + 0.02
        for number in range(self.records):
            due = begun + number / rate
            rest = due - time.monotonic()
            if rest > spin:
                time.sleep(rest - spin)
            while time.monotonic() < due:
                pass
            self.memory[4096 : 4096 + self.size] = _STAMP.pack(time.monotonic_ns()) + pad
            self.counts[0] = number + 1
            os.eventfd_write(self.to_writer, 1)


def measure(
    folder: Path, size: int, rate: float, spin: float, records: int = RECORDS
) -> npt.NDArray[np.int64]:
    """Nanoseconds of each record, int64[<= records]; empty where the machine could not run it."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        stage = _Stage(Path(inside), max(size, _STAMP.size), records)
        results = Path(inside) / "took"
        children = []
        for role in (stage.write, lambda: stage.read(results)):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    role()
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        try:
            stage.send(rate, spin)
        finally:
            for pid in children:
                os.waitpid(pid, 0)
            for fd in (stage.to_writer, stage.to_reader, stage.file):
                os.close(fd)
        took = np.frombuffer(results.read_bytes(), np.int64)
        return took[len(took) // 10 :].copy()
