"""Nodes for tests: a real node as a process, one inside the test on a thread, and raw clients.

Raw clients speak the attach protocol over a plain channel, so that a test can say what no library
client would. Every wait is for a condition, with a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from penstock.core.encode import encode_batch
from penstock.core.errors import NotConnectedError
from penstock.core.header import BatchIdentity
from penstock.ipc import channel, liveness, paths, shm
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.lane import Ack, LaneSender
from penstock.ipc.ownership import unlink_own
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.server.config import NodeConfig
from penstock.server.node.node import Node
from penstock.testing import reaper, remains

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 25.0
"""Seconds. A member's session lasts 30, and what is to come before its end has to come in time."""
_T = TypeVar("_T")


def eventually(
    condition: Callable[[], _T | None], what: str = "condition", timeout: float = TIMEOUT
) -> _T:
    """The first true value of `condition`; fails the test when none comes in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(0.005)


def environment() -> dict[str, str]:
    """For child processes that import penstock from this checkout."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [f"{ROOT}/src", inherited]))}


def uuid_of(folder: Path) -> str:
    record = msgspec.json.decode((folder / "node.json").read_bytes())
    return str(record["uuid"])


def shared_objects(folder: Path) -> list[str]:
    """The names of the folder's objects in /dev/shm, without what they have in common."""
    prefix = f"/penstock-{uuid_of(folder)}-"
    return [re.sub("^[0-9a-f]{16}-", "", name.removeprefix(prefix)) for name in shm.listing(prefix)]


def owner_of(folder: Path) -> str:
    """What the names of the objects of its last run begin with."""
    return str(msgspec.json.decode((folder / "node.json").read_bytes())["shm"])


def remove_shared_objects(folder: Path) -> None:
    """Those of the folder's last run, and nothing of one that it is a copy of."""
    unlink_own(os.fspath(folder))


class NodeProcess:
    """`python -m penstock.server` on a folder, with its log."""

    def __init__(self, folder: Path, *arguments: str, program: Sequence[str] = ()) -> None:
        assert folder.name == remains.DATA, "or a killed test run leaves it"
        self.folder = folder
        self._arguments = arguments
        self._program = list(program) or ["-m", "penstock.server"]
        self._log = folder.with_name(folder.name + ".log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True, **popen: Any) -> NodeProcess:
        """Start, and wait until it admits clients unless told not to."""
        begun = time.monotonic()
        reaper.guard(os.fspath(self.folder.parent))
        reader, writer = os.pipe()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *[sys.executable, *self._program, "--data", str(self.folder)],
                    *["--ready-fd", str(writer), *self._arguments],
                ],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment(),
                **popen,
            )
        os.close(writer)
        try:
            if ready:
                assert select.select([reader], [], [], TIMEOUT)[0], f"not ready\n{self.log}"
                assert os.read(reader, 16) == b"ready\n", f"not ready\n{self.log}"
        finally:
            os.close(reader)
        self.started_in = time.monotonic() - begun
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_log(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        try:
            return eventually(lambda: re.search(pattern, self.log), pattern, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """One that just ended by itself may be reaped before this process hears of it."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.wait()

    def attach(self, kind: int = lo.KIND_ADMIN, **options: Any) -> RawClient:
        return RawClient(paths.socket_in(self.folder), kind, **options)

    def writers(self) -> list[ms.WriterInfo]:
        with self.attach() as client:
            return client.ask(ms.DescribeNode(), ms.NodeDescription).writers

    def end(self) -> None:
        """Whatever is left of it is removed."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        remove_shared_objects(self.folder)
        reaper.release(os.fspath(self.folder.parent))

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        if kind is not None:
            print(f"--- log of the node on {self.folder}\n{self.log}")


class NodeThread:
    """A node on a thread of the test, mostly with writers made for the test."""

    def __init__(self, config: NodeConfig, writer_command: Sequence[str]) -> None:
        self.config = config
        self.folder = Path(config.data_folder)
        self.error: BaseException | None = None
        self._command = writer_command
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error
        self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.node = Node(self.config, writer_command=self._command)
        await self.node.run(self._ready.set)

    def attach(self, kind: int = lo.KIND_ADMIN, **options: Any) -> RawClient:
        return RawClient(paths.socket_in(self.folder), kind, **options)

    def writers(self) -> list[ms.WriterInfo]:
        with self.attach() as client:
            return client.ask(ms.DescribeNode(), ms.NodeDescription).writers

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.node.stop)
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the node did not stop"

    def __enter__(self) -> NodeThread:
        self._thread.start()
        assert self._ready.wait(TIMEOUT), "the node is not ready"
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        remove_shared_objects(self.folder)


class RawClient:
    """A client on a plain channel. The descriptors that come are kept, or closed with it."""

    def __init__(
        self,
        socket: Path,
        kind: int = lo.KIND_ADMIN,
        *,
        resume: int | None = None,
        hello: bool = True,
        **changes: Any,
    ) -> None:
        self.channel = channel.Channel(channel.connect(socket, TIMEOUT), inbound=ms.NodeMessage)
        self.fds: list[int] = []
        if not hello:
            return
        try:
            start_time = liveness.start_time(os.getpid())
            assert start_time is not None
            said = ms.Hello(ms.PROTOCOL_VERSION, kind, start_time, "raw", resume)
            self.channel.send(msgspec.structs.replace(said, **changes))
            welcome = self.next()
            if isinstance(welcome, ms.Refused):
                raise Refusal(welcome)
            assert isinstance(welcome, ms.Welcome)
            self.welcome = welcome
        except BaseException:
            self.close()
            raise

    def next(self, timeout: float = TIMEOUT) -> Any:
        """The next message, None at the end."""
        received = self.channel.recv(timeout)
        if received is None:
            return None
        message, fds = received
        self.fds += fds
        return message

    def ask(self, request: msgspec.Struct, expect: type[_T]) -> _T:
        self.channel.send(request)
        answer = self.next()
        if isinstance(answer, ms.Refused):
            raise Refusal(answer)
        assert isinstance(answer, expect), answer
        return answer

    def create(self, name: str, **settings: Any) -> ms.TopicInfo:
        return self.ask(ms.CreateTopic(name, ms.TopicSettings(**settings)), ms.TopicFound).topic

    def open_lane(self, writer: int = 0, capacity: int | None = 65536) -> LaneSender:
        before = len(self.fds)
        opened = self.ask(ms.OpenLane(writer, capacity), ms.LaneOpened)
        lane_fd, _bell = self.fds[before:]
        return LaneSender(Region.of_fd(os.dup(lane_fd)), opened.name)

    def is_hung_up(self, timeout: float = TIMEOUT) -> bool:
        return self.next(timeout) is None

    def close(self, *, bye: bool = False) -> None:
        if bye:
            self.channel.send(ms.Bye())
        self.channel.close()
        channel.close_fds(self.fds)
        self.fds = []

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Refusal(Exception):
    """A `Refused` as an exception, with the class that it names."""

    def __init__(self, refused: ms.Refused) -> None:
        super().__init__(f"{refused.error}: {refused.message}")
        self.error = refused.error


class RawProducer:
    """A producer on a raw client: one record a batch, sequences from 0 on in each partition."""

    def __init__(self, client: RawClient, topic: ms.TopicInfo) -> None:
        self.client = client
        self.topic = topic
        self.lanes: dict[int, LaneSender] = {}
        self.sequences: dict[int, int] = {}

    def lane(self, page: int) -> LaneSender:
        writer = page % self.client.welcome.writers
        if writer not in self.lanes:
            self.lanes[writer] = self.client.open_lane(writer)
        return self.lanes[writer]

    def send(self, count: int = 1, partition: int = 0) -> None:
        """Put so many batches into the lane; no doorbell, so the writer finds them in its time."""
        page = self.topic.pages[partition]
        lane = self.lane(page)
        for _ in range(count):
            sequence = self.sequences.get(partition, 0)
            image = encode_batch(
                [b"record %d" % sequence],
                BatchIdentity(
                    self.topic.topic_id, partition, self.client.welcome.producer_id, 0, sequence
                ),
                base_timestamp=1_700_000_000_000_000,
            ).image()
            assert lane.try_write(page, [image], len(image)) is not None, "the lane is full"
            self.sequences[partition] = sequence + 1

    def acks(self, count: int) -> list[Ack]:
        """So many acknowledgements, of all lanes, as they come."""
        found: list[Ack] = []

        def enough() -> bool:
            for lane in self.lanes.values():
                found.extend(lane.acks())
            return len(found) >= count

        eventually(enough, f"{count} acknowledgements")
        return found

    def close(self) -> None:
        """As a producer takes its leave: what is in its lanes is still drained."""
        for lane in self.lanes.values():
            lane.mark_closed()
            lane.detach()
        try:
            self.client.close(bye=True)
        except NotConnectedError:  # the node is gone, the lanes say it
            self.client.close()


def log_end(node: NodeProcess | NodeThread, page: int) -> int:
    with node.attach() as client, Region.of_fd(os.dup(client.fds[0]), writable=False) as state:
        return StatePage(state, page).log_end


def descriptors(pid: int) -> list[str]:
    """What the open descriptors of a process point to, sockets and anonymous ones by kind."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        found.append(re.sub(r"\[\d+\]", "", target))
    return sorted(found)


def writers_of(pid: int) -> list[int]:
    """The living writers of a node."""
    return [child for child in children(pid) if b"penstock.server.writer.main" in words_of(child)]


def words_of(pid: int) -> list[bytes]:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]


def children(pid: int) -> Iterator[int]:
    """The living child processes of `pid`, in order of their pids."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    for child in sorted(map(int, text.split())):
        if liveness.state(child) not in (None, "Z"):
            yield child
