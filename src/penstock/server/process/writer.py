"""One generation of a writer process: its pidfd, its control channel and the orders still to send.

Owns the descriptors of one process from start to death. Never decides whether a process is started,
killed or replaced: that is the supervisor's. Death is what the pidfd says, nothing else (rule 7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.errors import NotConnectedError, PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel, close_fds, pair
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.liveness import open_pidfd
from penstock.server.process.fork_server import Start, spawn

logger = logging.getLogger("penstock.node")

ORDERS_MAX: Final = 100_000
"""Orders that may wait for a writer which does not read. Beyond that it is killed, and its
successor gets the present state."""
REPORTS_PER_WAKE: Final = 64

Order = tuple[ms.WriterOrder, Doorbell | None]


class WriterProcess:
    """A started process. `on_report` gets what it says, `on_dead` its exit status, once."""

    def __init__(
        self,
        index: int,
        generation: int,
        command: Sequence[str],
        inherited: Sequence[int],
        on_report: Callable[[ms.WriterReport], None],
        on_dead: Callable[[int], None],
        start: Start = spawn,
    ) -> None:
        self.index = index
        self.generation = generation
        self._on_report = on_report
        self._on_dead = on_dead
        self._is_trusted = True
        self._orders: deque[Order] = deque()
        self._loop = asyncio.get_running_loop()
        ours, theirs = pair()
        try:
            fd = theirs.fileno()
            self._process = start(
                [*command, "--generation", str(generation), "--channel-fd", str(fd)],
                [fd, *inherited],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        try:
            # Ours and not reaped yet, so the pid cannot be another process's.
            self._pidfd = open_pidfd_of_child(self.pid)
        except BaseException:
            ours.close()
            self._process.kill()
            self._process.wait()
            raise
        self._channel: Channel = Channel(ours, inbound=ms.WriterReport)
        self._loop.add_reader(self._pidfd, self._died)
        self._loop.add_reader(self._channel.fileno(), self._read)

    @property
    def log_fields(self) -> dict[str, object]:
        return {"writer": self.index, "pid": self.pid, "generation": self.generation}

    def post(self, order: ms.WriterOrder, bell: Doorbell | None = None) -> None:
        """Send now, or as soon as the writer reads. Orders arrive in the order of the calls."""
        if self._channel.closed:
            return
        if self._orders:
            self._orders.append((order, bell))
            if len(self._orders) > ORDERS_MAX:
                logger.error(
                    "writer %d (pid %d) has left %d orders unread: it is killed",
                    self.index, self.pid, ORDERS_MAX,
                    extra={**self.log_fields, "reason": "orders unread"},
                )  # fmt: skip
                self._orders.clear()
                self.kill()
        elif not self._send(order, bell):
            self._orders.append((order, bell))
            self._loop.add_writer(self._channel.fileno(), self._flush)

    def _send(self, order: ms.WriterOrder, bell: Doorbell | None) -> bool:
        """False: the writer's buffer is full, try again when there is room."""
        fds: list[int] = []
        if bell is not None:
            if bell.fileno() >= 0:
                fds = [bell.fileno()]
            elif isinstance(order, ms.AddLane):
                # The client left while this waited; the order to retire the lane comes behind it.
                order = ms.AddLane(order.name, True, order.replicates)
            else:
                return True
        try:
            self._channel.send_nowait(order, fds)
        except BlockingIOError:
            return False
        except NotConnectedError:
            pass  # it is dying: the pidfd will say so, and a successor is told everything
        except (PenstockError, OSError) as error:
            logger.error(
                "writer %d cannot be told %s: %s", self.index, order, error, extra=self.log_fields
            )
            self.kill()
        return True

    def _flush(self) -> None:
        while self._orders:
            if not self._send(*self._orders[0]):
                return
            if self._orders:
                self._orders.popleft()
        self._loop.remove_writer(self._channel.fileno())

    def _read(self) -> bool:
        """Hand on what the writer reports; True when there may be more."""
        for _ in range(REPORTS_PER_WAKE):
            try:
                received = self._channel.recv_nowait()
            except BlockingIOError:
                return False
            except (PenstockError, OSError) as error:
                logger.error(
                    "writer %d (pid %d): %s: it is killed",
                    self.index,
                    self.pid,
                    error,
                    extra=self.log_fields,
                )
                self._is_trusted = False
                received = None
                self.kill()
            if received is None:
                self._stop_watching_channel()
                return False
            report, fds = received
            close_fds(fds)
            self._on_report(report)
        return True

    def _stop_watching_channel(self) -> None:
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._orders.clear()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _died(self) -> None:
        while self._is_trusted and self._read():  # what it said before it died still counts
            pass
        self.close()
        self._on_dead(self._process.wait())

    def close(self) -> None:
        """Let go of the descriptors; a living process sees its channel end and leaves."""
        if self._channel.closed:
            return
        self._stop_watching_channel()
        self._loop.remove_reader(self._pidfd)
        self._channel.close()
        os.close(self._pidfd)


def open_pidfd_of_child(pid: int) -> int:
    try:
        return open_pidfd(pid)
    except ProcessLookupError:
        # It ended at once and is not reaped: the plain call takes a zombie and reads as dead.
        return os.pidfd_open(pid)


def describe_exit(status: int) -> str:
    """How a process ended, for a log line."""
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"
