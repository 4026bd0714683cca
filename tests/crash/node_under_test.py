"""A node under test and all that it must not leave behind: processes, shared memory, descriptors.

Owns the node's process across kills and restarts, its log file, and the look from outside: what
/proc and /dev/shm say. Never asks the node how it feels.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.client.client import Client, connect
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc.shm import Region, listing, object_name, open_existing
from penstock.ipc.state import WriterSlot
from penstock.testing import reaper, wait_until
from penstock.testing.broker import TRANSPORT_VARIABLE
from penstock.testing.embedded import ANY_PORT

NODE_MAIN = str(Path(__file__).with_name("node_main.py"))
READY_TIMEOUT = 45.0
STOP_TIMEOUT = 45.0


def environment() -> dict[str, str]:
    """For the tests' own processes: they find Penstock where this one did."""
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def is_running(pid: int) -> bool:
    return liveness.state(pid) not in (None, "Z", "X")


def descriptors(pid: int) -> list[str]:
    """What each open descriptor of a process is."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(found)


class Ground(Protocol):
    """What a trial takes place on: a node, or a cluster of them."""

    transport: str

    @property
    def folder(self) -> Path:
        """Where its processes write what they do."""

    @property
    def url(self) -> str: ...

    @property
    def is_running(self) -> bool:
        """False where something left on its own."""

    @property
    def owners(self) -> list[str]:
        """What the names of its nodes' objects in /dev/shm begin with."""

    def connect(self, timeout: float = 10.0) -> Client: ...


class NodeUnderTest:
    """One data folder and the node on it. Its clients reach it as the environment says
    (`PENSTOCK_TEST_TRANSPORT`)."""

    def __init__(
        self, folder: Path | None = None, *, before: Sequence[str] = (), **config: Any
    ) -> None:
        """`before` goes before its command: where it is to run."""
        self._before = before
        self._listens: str | None = None
        self.transport = os.environ.get(TRANSPORT_VARIABLE) or "shm"
        self._made = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-crash-"))
        self.data = self.folder / "data"
        self.log_path = self.folder / "node.log"
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._state: tuple[int, Region] | None = None
        self._uuids: set[str] = set()
        self.starts = 0

    @property
    def url(self) -> str:
        return f"shm://{self.data}" if self.transport == "shm" else str(self.listens)

    @property
    def listens(self) -> str | None:
        """Where remote clients find it; None where none are served, or before the first start."""
        if self._listens is None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                record = msgspec.json.decode((self.data / "node.json").read_bytes())
                self._listens = record.get("listen") or None
        return self._listens

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self, timeout: float = 10.0) -> Client:
        if self.transport == "tcp":
            return connect(self.url, timeout=timeout, transport="tcp")
        return connect(self.url, timeout=timeout)

    # --- life ---
    def launch(self) -> int:
        """Start without waiting; the descriptor on which it says `ready`."""
        reaper.guard(os.fspath(self.data.parent))
        reader, writer = os.pipe()
        plan = {"data_folder": str(self.data), "ready_fd": writer, **self.config}
        if self.transport == "tcp":
            plan["listen"] = self.listens or ANY_PORT
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._before, sys.executable, NODE_MAIN, json.dumps(plan), str(self.data)],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )
        os.close(writer)
        self.starts += 1
        return reader

    def start(self) -> None:
        """Start, and wait until clients are admitted."""
        reader = self.launch()
        try:
            ready, _, _ = select.select([reader], [], [], READY_TIMEOUT)
            if not ready or not os.read(reader, 64):
                raise AssertionError(f"the node did not start:\n{self.tail()}")
            self._uuids.add(self.uuid)
        finally:
            os.close(reader)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT)

    def stop(self) -> int:
        """The clean end; AssertionError when it does not come within its bound."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            raise AssertionError(f"SIGTERM did not end the node:\n{self.tail()}") from None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self, lines: int = 40) -> str:
        text = self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # --- its parts ---
    @property
    def uuid(self) -> str:
        return self._record("uuid")

    @property
    def owner(self) -> str:
        """What the names of its objects in /dev/shm begin with."""
        return self._record("shm")

    def _record(self, field: str) -> str:
        record: dict[str, Any] = msgspec.json.decode((self.data / "node.json").read_bytes())
        return str(record[field])

    @property
    def owners(self) -> list[str]:
        return [self.owner]

    @property
    def state(self) -> Region:
        """The state table; a clean stop without clients takes it away, and the next one is new."""
        name = object_name(self.owner, "state")
        inode = os.stat("/dev/shm" + name).st_ino
        if self._state is None or self._state[0] != inode:
            self._forget_state()
            self._state = inode, Region.of_fd(open_existing(name, writable=True))
        return self._state[1]

    def _forget_state(self) -> None:
        known, self._state = self._state, None
        if known is not None:
            known[1].close()

    def writer_pid(self, index: int) -> int | None:
        """The process in that writer's seat, if it runs."""
        try:
            pid = WriterSlot(self.state, index).pid
        except FileNotFoundError:
            return None
        if not pid or not is_running(pid):
            return None
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if self.uuid.encode() in file.read():  # not another process with an old number
                return pid
        return None

    def writer_pids(self) -> list[int]:
        found = (self.writer_pid(index) for index in range(lo.WRITERS_MAX))
        return [pid for pid in found if pid is not None]

    def processes(self) -> list[int]:
        """Every process of this data folder, whoever its parent is by now."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and is_running(int(entry)):
                with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                    if str(self.data).encode() in file.read():
                        found.append(int(entry))
        return found

    def gateway_pid(self) -> int | None:
        """The process that serves remote clients, if it runs."""
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"gateway.main" in file.read():
                    return pid
        return None

    def shared_memory(self) -> list[str]:
        return listing(f"/penstock-{self.uuid}-")

    # --- the end ---
    def check_gone(self) -> None:
        """After a clean stop without clients nothing is left but the data."""
        wait_until(lambda: not self.processes(), 45.0, lambda: f"left over: {self.processes()}")
        assert self.shared_memory() == []
        assert not (self.data / "attach.sock").exists()
        assert list(self.data.rglob("*.tmp")) == []

    def clear(self, *, keep: bool = False) -> None:
        """Take away what a failed or finished test has left; `keep` leaves the files. The folder
        may be another one by now, or on a disk that nobody can read."""
        with contextlib.suppress(OSError):
            self._uuids.add(self.uuid)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
        self._forget_state()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for uuid in self._uuids:
            for name in listing(f"/penstock-{uuid}-"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink("/dev/shm" + name)
        if self._made and not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        reaper.release(os.fspath(self.data.parent))

    def __enter__(self) -> NodeUnderTest:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
