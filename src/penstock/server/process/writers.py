"""The writers of a node: started when needed, watched, replaced when dead, stopped in order.

    absent --need--> running --pidfd--> dead --backoff--> running
                        |  silent: killed, then as dead
                        +--stop--> draining --Stopped, pidfd--> stopped

A successor is told everything by `orders_for`, so nothing that was said to the dead one is kept
here. Owns processes, restarts and the doorbells, which outlive the processes (rule 10). Knows no
topics, lanes or clients.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.core.errors import PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.state import WriterSlot
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.tables import Tables
from penstock.server.process.fork_server import Start, spawn
from penstock.server.process.writer import Order, WriterProcess, describe_exit

logger = logging.getLogger("penstock.node")

WATCH_INTERVAL: Final = 0.5
SUSPECT_FOR: Final = 1.0
"""Seconds between the two observations that condemn a silent writer. A machine that was suspended
wakes node and writers together, and the writers get this long to say so."""
KILL_TIMEOUT: Final = 5.0
WRITER_COMMAND: Final = (sys.executable, "-m", "penstock.server.writer.main")


class Seat:
    """The place of one writer: what stays when its process is replaced."""

    def __init__(self, index: int, backoff: float) -> None:
        self.index = index
        self.doorbell = Doorbell()
        self.process: WriterProcess | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.backoff = backoff
        self.started_at = 0.0
        self.restarts = 0
        self.suspect_since: float | None = None
        self.opening: set[int] = set()
        """Pages whose `OpenPartition` is unanswered: recovery gives no sign of life."""
        self.has_stopped = False
        self.gone = asyncio.Event()


class Supervisor:
    """All seats of a node. `orders_for` gives what a fresh writer must be told, in order."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        *,
        lock_fd: int,
        orders_for: Callable[[int], Iterable[Order]],
        on_report: Callable[[int, ms.WriterReport], None],
        command: Sequence[str] = WRITER_COMMAND,
        start: Start = spawn,
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._lock_fd = lock_fd
        self._orders_for = orders_for
        self._on_report = on_report
        self._command = command
        self._start_process = start
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._watch: asyncio.TimerHandle | None = None
        self.seats: dict[int, Seat] = {}

    def seat(self, index: int) -> Seat:
        """The seat of a writer, made when first asked for; its doorbell is there from then on."""
        seat = self.seats.get(index)
        if seat is None:
            seat = self.seats[index] = Seat(index, self._config.restart_backoff)
        return seat

    def ensure(self, index: int) -> Seat:
        """Have that writer running, now or when its backoff ends."""
        seat = self.seat(index)
        if seat.process is None and seat.timer is None and not self._stopping:
            self._start(seat)
        return seat

    def post(self, index: int, order: ms.WriterOrder, bell: Doorbell | None = None) -> None:
        """Tell a writer. One that does not run is started, and `orders_for` says it all then: the
        caller has noted what this order is about before."""
        seat = self.seat(index)
        if seat.process is None:
            self.ensure(index)
        else:
            self._note(seat, order)
            seat.process.post(order, bell)

    def post_running(self, order: ms.WriterOrder, bell: Doorbell | None = None) -> None:
        """Tell every writer that runs."""
        for seat in self.seats.values():
            if seat.process is not None:
                seat.process.post(order, bell)

    @staticmethod
    def _note(seat: Seat, order: ms.WriterOrder) -> None:
        if isinstance(order, ms.OpenPartition):
            seat.opening.add(order.page)

    # --- life ---
    def _start(self, seat: Seat) -> None:
        if self._stopping:
            return
        seat.timer = None
        seat.has_stopped = False
        index = seat.index
        seat.opening.clear()
        seat.suspect_since = None
        seat.gone.clear()
        seat.started_at = time.monotonic()
        try:
            seat.process = WriterProcess(
                index,
                self._folder.next_generation(),
                [*self._command, *self._arguments(seat)],
                [seat.doorbell.fileno(), self._lock_fd],
                lambda report: self._reported(seat, report),
                lambda status: self._died(seat, status),
                self._start_process,
            )
        except (PenstockError, OSError) as error:
            logger.error("writer %d cannot be started: %s", index, error, extra={"writer": index})
            self._restart_later(seat)
            return
        process = seat.process
        logger.info(
            "writer %d started: pid %d, generation %d", index, process.pid, process.generation,
            extra=process.log_fields,
        )  # fmt: skip
        for order, bell in self._orders_for(index):
            self._note(seat, order)
            process.post(order, bell)
        if self._watch is None:
            self._watch = self._loop.call_later(WATCH_INTERVAL, self._look)

    def _arguments(self, seat: Seat) -> list[str]:
        values = {
            "--writer": seat.index,
            "--restarts": seat.restarts,
            "--believed-us": self._folder.clock.now_us(),
            "--data": self._folder.path,
            "--shm": self._folder.record.shm,
            "--doorbell-fd": seat.doorbell.fileno(),
            "--batch-bytes-max": self._config.batch_bytes_max,
            "--spin": self._config.writer_spin,
            "--log-level": logging.getLevelName(logger.getEffectiveLevel()),
            "--log-format": self._config.log_format,
        }
        return [str(word) for pair in values.items() for word in pair]

    def _reported(self, seat: Seat, report: ms.WriterReport) -> None:
        if isinstance(report, ms.Stopped):
            seat.has_stopped = True
            return
        if isinstance(report, (ms.PartitionOpened, ms.PartitionFailed)):
            seat.opening.discard(report.page)
        self._on_report(seat.index, report)

    def _died(self, seat: Seat, status: int) -> None:
        process, seat.process = seat.process, None
        assert process is not None
        seat.gone.set()
        if self._stopping:
            logger.info(
                "writer %d ended: %s",
                seat.index,
                describe_exit(status),
                extra={"writer": seat.index, "pid": process.pid, "reason": describe_exit(status)},
            )
            return
        seat.restarts += 1
        if time.monotonic() - seat.started_at >= self._config.restart_healthy_after:
            seat.backoff = self._config.restart_backoff
        logger.warning(
            "writer %d (pid %d, generation %d) died: %s; its successor starts in %.2f s",
            seat.index, process.pid, process.generation, describe_exit(status), seat.backoff,
            extra={**process.log_fields, "reason": describe_exit(status)},
        )  # fmt: skip
        self._restart_later(seat)

    def _restart_later(self, seat: Seat) -> None:
        if self._stopping:
            return
        seat.timer = self._loop.call_later(seat.backoff, self._start, seat)
        seat.backoff = min(seat.backoff * 2, self._config.restart_backoff_max)

    # --- stopped is not dead (rule 8) ---
    def _look(self) -> None:
        """Kill writers that gave no sign of life at two looks; the pidfd brings the successor."""
        now = time.monotonic()
        running = [seat for seat in self.seats.values() if seat.process is not None]
        for seat in running:
            self._look_at(seat, now)
        self._watch = self._loop.call_later(WATCH_INTERVAL, self._look) if running else None

    def _look_at(self, seat: Seat, now: float) -> None:
        process = seat.process
        assert process is not None
        config = self._config
        slot = WriterSlot(self._tables.state, seat.index)
        claimed = slot.generation == process.generation
        silent = slot.silent_for if claimed else now - seat.started_at
        bound = config.writer_stall_timeout
        if seat.opening or not claimed:
            bound = max(bound, config.writer_open_timeout)
        if silent <= bound:
            seat.suspect_since = None
        elif seat.suspect_since is None:
            seat.suspect_since = now
        elif now - seat.suspect_since >= SUSPECT_FOR:
            logger.error(
                "writer %d (pid %d) has given no sign of life for %.1f s (%s %g): it is killed",
                seat.index, process.pid, silent,
                "writer_open_timeout" if bound > config.writer_stall_timeout
                else "writer_stall_timeout",
                bound,
                extra={**process.log_fields, "reason": "no sign of life"},
            )  # fmt: skip
            seat.suspect_since = None
            process.kill()

    # --- the end ---
    async def stop(self, timeout: float) -> bool:
        """Stop all writers; True when each one drained, synced and closed its logs.

        A writer that is dead at this moment is started once more, to close its logs clean.
        """
        for seat in self.seats.values():
            if seat.timer is not None:
                seat.timer.cancel()
                self._start(seat)
        self._stopping = True
        seats = [seat for seat in self.seats.values() if seat.process is not None]
        for seat in seats:
            assert seat.process is not None
            seat.process.post(ms.StopWriter())
        late = await _wait_gone(seats, timeout)
        for seat in late:
            if seat.process is not None:
                logger.warning(
                    "writer %d (pid %d) has not drained within %g s (drain_timeout): it is killed, "
                    "what is left in its lanes is drained by the next start",
                    seat.index, seat.process.pid, timeout,
                    extra={**seat.process.log_fields, "reason": "not drained in time"},
                )  # fmt: skip
                seat.process.kill()
        await _wait_gone(late, KILL_TIMEOUT)
        return all(seat.has_stopped for seat in self.seats.values() if seat.started_at)

    def close(self) -> None:
        """Let go of everything; writers that still run see their channel end and leave."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        for seat in self.seats.values():
            if seat.timer is not None:
                seat.timer.cancel()
            if seat.process is not None:
                seat.process.close()
            seat.doorbell.close()


async def _wait_gone(seats: Sequence[Seat], timeout: float) -> list[Seat]:
    """Wait until those processes are dead; the ones that are not after `timeout` seconds."""
    waits = [asyncio.ensure_future(seat.gone.wait()) for seat in seats]
    if waits:
        await asyncio.wait(waits, timeout=timeout)
    for wait in waits:
        wait.cancel()
    return [seat for seat in seats if seat.process is not None]
