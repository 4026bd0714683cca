"""The faults of the crash machine: kills, stops and restarts of everything, one at a time.

A stop ends at some later moment (`go_on`), a killed node is started at once and becomes ready while
the next faults strike. Owns what is under way; which fault strikes when is the episode's.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from crash.node_under_test import READY_TIMEOUT, NodeUnderTest

from penstock.client.admin.admin import Admin, TopicConfig
from penstock.core.errors import PenstockError
from penstock.testing import wait_until

WRITERS: Final = 2
ADMIN_TIMEOUT: Final = 1.0

WEIGHTS: Final = {
    "kill writer": 44,
    "stop writer": 11,
    "kill all writers": 4,
    "kill producer": 11,
    "stop producer": 5,
    "kill consumer": 6,
    "stop consumer": 3,
    "kill writer and producer": 4,
    "kill node": 5,
    "kill node and writers": 2,
    "stop node": 3,
    "restart node": 1.5,
    "kill stopping node": 1.5,
    "stall writer": 0.3,
    "alter topic": 2,
    "make and delete topic": 2,
}
REMOTE_WEIGHTS: Final = {"kill gateway": 14.0, "stop gateway": 6.0}
"""Beside them, where clients are on another host."""
END_THE_NODE: Final = (
    "kill node", "kill node and writers", "restart node", "kill stopping node"
)  # fmt: skip


class Struck(Protocol):
    """A process that a fault may strike."""

    @property
    def pid(self) -> int: ...


class Victims(Protocol):
    """Who writes and who reads. Who is killed is replaced."""

    @property
    def producers(self) -> Sequence[Struck]: ...

    @property
    def consumers(self) -> Sequence[Struck]: ...

    def kill_a_producer(self) -> str: ...

    def kill_a_consumer(self) -> str: ...


class Faults:
    """See the module. `strike` by a name of `WEIGHTS` says to whom it happened."""

    def __init__(
        self,
        node: NodeUnderTest,
        crew: Victims,
        topics: Sequence[str],
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self._node = node
        self._crew = crew
        self._topics = topics
        self._rng = rng
        self._note = note
        self._stopped: list[tuple[float, int]] = []
        self._ready: tuple[int, float] | None = None
        self.passing: list[str] = []
        """Topics that were made, and perhaps deleted, on the way."""

    def strike(self, kind: str) -> str:
        work: Callable[[], str] = getattr(self, "_" + kind.replace(" ", "_"))
        return work()

    # --- what is under way ---
    def go_on(self, now: float) -> None:
        """Continue who was stopped for long enough, and notice a node that has become ready."""
        for entry in [entry for entry in self._stopped if entry[0] <= now]:
            self._stopped.remove(entry)
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry[1], signal.SIGCONT)
        self._look_for_ready(0.0)

    def next_at(self, latest: float) -> float:
        """When `go_on` has something to do, `latest` at the latest."""
        return min((at for at, _ in self._stopped), default=latest)

    def heal(self) -> None:
        """Everybody goes on, and the node admits clients."""
        self.go_on(float("inf"))
        if not self._look_for_ready(READY_TIMEOUT):
            raise AssertionError(f"the node is not ready after {READY_TIMEOUT} s")

    def _look_for_ready(self, timeout: float) -> bool:
        if self._ready is None:
            return True
        fd, since = self._ready
        readable, _, _ = select.select([fd], [], [], timeout)
        if readable:
            said = os.read(fd, 64)
            self.close()
            if not said:
                raise AssertionError("the node ended before it admitted clients")
            self._note(f"node {self._node.pid} ready after {time.monotonic() - since:.3f} s")
        return bool(readable)

    def close(self) -> None:
        if self._ready is not None:
            os.close(self._ready[0])
            self._ready = None

    def _kill(self, pids: Sequence[int]) -> str:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return str(pids)

    def _stop(self, pid: int, longest: float = 0.3) -> str:
        bound = self._rng.uniform(0.005, longest)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._stopped.append((time.monotonic() + bound, pid))
        return f"{pid} for {bound:.3f} s"

    def _writer(self) -> list[int]:
        pid = self._node.writer_pid(self._rng.randrange(WRITERS))
        return [] if pid is None else [pid]

    # --- writers ---
    def _kill_writer(self) -> str:
        return self._kill(self._writer())

    def _kill_all_writers(self) -> str:
        return self._kill(self._node.writer_pids())

    def _stop_writer(self) -> str:
        return ", ".join(map(self._stop, self._writer()))

    def _stall_writer(self) -> str:
        """Stopped for so long that the node, which is awake, has to replace it.

        One that opens its partitions is given `writer_open_timeout`.
        """
        if self._ready is not None:
            return "nobody"
        self.go_on(float("inf"))
        stalled = self._writer()
        for pid in stalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: not set(stalled) & set(self._node.writer_pids()),
            20.0,
            lambda: f"the node replaces its stalled writer {stalled}",
        )
        return str(stalled)

    # --- clients ---
    def _kill_producer(self) -> str:
        return self._crew.kill_a_producer()

    def _stop_client(self, actors: Sequence[Struck]) -> str:
        """Sometimes for so long that nodes and writers come and go meanwhile."""
        longest = 2.0 if self._rng.random() < 0.15 else 0.3
        return self._stop(self._rng.choice(actors).pid, longest)

    def _stop_producer(self) -> str:
        return self._stop_client(self._crew.producers)

    def _kill_writer_and_producer(self) -> str:
        return f"{self._kill_writer()} {self._kill_producer()}"

    def _kill_consumer(self) -> str:
        return self._crew.kill_a_consumer()

    def _stop_consumer(self) -> str:
        return self._stop_client(self._crew.consumers)

    # --- the gateway ---
    def _gateway(self) -> list[int]:
        pid = self._node.gateway_pid()
        return [] if pid is None else [pid]

    def _kill_gateway(self) -> str:
        return self._kill(self._gateway())

    def _stop_gateway(self) -> str:
        return ", ".join(map(self._stop, self._gateway()))

    # --- the node ---
    def _stop_node(self) -> str:
        return self._stop(self._node.pid)

    def _launch(self) -> None:
        self.close()
        self._ready = (self._node.launch(), time.monotonic())

    def _kill_node(self) -> str:
        pid = self._node.pid
        self._node.kill()
        self._launch()
        return str(pid)

    def _kill_node_and_writers(self) -> str:
        pids = self._node.writer_pids()
        self._node.signal(signal.SIGSTOP)
        return f"{self._kill(pids)} {self._kill_node()}"

    def _restart_node(self) -> str:
        """A clean stop, its clients living on."""
        if self._ready is not None:
            return "nobody"
        pid = self._node.pid
        self.go_on(float("inf"))
        status = self._node.stop()
        assert status == 0, f"the node ended with {status}"
        self._launch()
        return str(pid)

    def _kill_stopping_node(self) -> str:
        """SIGTERM, in half of the cases a writer killed as well, and kill -9 in mid-stop."""
        if self._ready is not None:
            return "nobody"
        self._node.signal(signal.SIGTERM)
        killed = self._kill_writer() if self._rng.random() < 0.5 else "[]"
        time.sleep(self._rng.uniform(0.0, 0.15))
        return f"{self._kill_node()} {killed}"

    def _administer(self, work: Callable[[Admin], object]) -> str:
        """Something asked of a node that may be dying: done, or a clear error in time."""
        if self._ready is not None:
            return "nobody"
        begun = time.monotonic()
        try:
            with self._node.connect(ADMIN_TIMEOUT) as client:
                work(client.admin(timeout=ADMIN_TIMEOUT))
        except PenstockError as error:
            outcome = type(error).__name__
        else:
            outcome = "done"
        took = time.monotonic() - begun
        assert took < 20 * ADMIN_TIMEOUT, f"the node's admin held its caller up for {took:.1f} s"
        return outcome

    def _alter_topic(self) -> str:
        name = self._rng.choice(self._topics)
        changes = {
            "durability": self._rng.choice(["os", "interval", "fsync"]),
            "segment_bytes": self._rng.choice([8 << 10, 64 << 10, None]),
            "flush_interval": 0.05,
        }
        outcome = self._administer(lambda admin: admin.alter_topic(name, **changes))
        return f"{name} {changes} {outcome}"

    def _make_and_delete_topic(self) -> str:
        name = f"{self._topics[0]}-passing-{len(self.passing)}"
        self.passing.append(name)

        def work(admin: Admin) -> None:
            admin.create_topic(name, TopicConfig(partitions=3, durability="fsync"))
            admin.delete_topic(name)

        return f"{name} {self._administer(work)}"
