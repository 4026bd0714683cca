"""Raft in a broker: timers, the disk, messages, and the image of the committed entries.

Carries out the machine's effects, in its order. Times are the loop's. A process that was stopped
comes back with old messages to read. So a leader whose time is up looks at the clock first. It
steps down before it takes old answers for a majority that hears it now.

Owns the image; others read it between two turns of the loop. Never blocks it: the disk has a
thread, and so have large snapshots. A fatal error (a disk that fails, a log that makes no sense)
ends it for good, and calls `failed`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cluster.controller import Image, Place, pack, unpack
from penstock.cluster.controller.records import METADATA_VERSION
from penstock.cluster.decisions import Record
from penstock.cluster.raft import (
    Effects,
    LogEntry,
    Members,
    Raft,
    RaftConfig,
    RaftMessage,
    Snapshot,
)
from penstock.cluster.raft.messages import DATA, PreVote, Vote
from penstock.core.errors import (
    DataFolderError,
    NotLeaderError,
    PenstockError,
    UnsupportedVersionError,
)
from penstock.server.quorum.raft_storage import REMEDY, RaftDisk
from penstock.server.quorum.storage_thread import Storing
from penstock.version import __version__

logger = logging.getLogger("penstock.quorum")

APPLIED_AT_ONCE: Final = 200
"""Entries that are applied in one turn of the loop."""
LATE: Final = 0.1
"""Seconds by which a timer is late before it was this process that was not there."""
INLINE_BYTES: Final = 64 << 10
"""Up to so many bytes a snapshot is read in the loop."""
ENTRY_BYTES: Final = 32
SNAPSHOT_ENTRIES: Final = 10_000
SNAPSHOT_BYTES: Final = 1 << 20
"""The log is put together when it has so many entries; or so many bytes, and more than what it
would be put together to."""


class RaftNode:
    """One raft node with its disk and timers. `changed(places)`: the image changed, for those
    partitions at least, or for all of them (None). `committed(index, term)`: an entry is applied.
    `turned()`: after every event that may have changed the leader. `may_begin()`: whether a node
    without a log may be among the first of a cluster, and start an election. `may_vote()`: whether
    it knows its earlier votes. `newer()`: which other brokers run a newer version."""

    def __init__(
        self,
        node: int,
        disk: RaftDisk,
        config: RaftConfig,
        *,
        send: Callable[[int, RaftMessage], None],
        changed: Callable[[set[Place] | None], None],
        committed: Callable[[int, int], None],
        turned: Callable[[], None],
        failed: Callable[[PenstockError], None],
        may_begin: Callable[[], bool],
        may_vote: Callable[[], bool],
        newer: Callable[[], str],
    ) -> None:
        self.node = node
        self.image = Image()
        self.applied = 0
        self.counts: Counter[str] = Counter()
        self.failure: PenstockError | None = None
        self.raft: Raft | None = None
        self._disk = disk
        self._config = config
        self._send = send
        self._changed = changed
        self._committed = committed
        self._turned = turned
        self._on_failure = failed
        self._may_begin = may_begin
        self._may_vote = may_vote
        self._newer = newer
        self._loop = asyncio.get_running_loop()
        self.storing: Storing | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._todo: deque[Snapshot | LogEntry] = deque()
        self._is_over = False
        self._was_late = False
        self._is_applying = False
        self._is_restoring = False
        self._is_packing = False
        self._snapshot_bytes = 0
        self._log_bytes = 0
        """About what the entries since the snapshot have."""

    async def start(self, voters: tuple[int, ...]) -> None:
        """Read the disk, and begin. Raises `DataFolderError`, `StorageError`."""
        saved = await asyncio.to_thread(self._disk.open, voters)
        if self._disk.torn_bytes:
            logger.warning(
                "the quorum's log ended in %d bytes of a write that a crash cut off: they were "
                "never answered for, and are gone", self._disk.torn_bytes,
            )  # fmt: skip
        now = self._loop.time()
        try:
            raft = Raft(self.node, saved, self._config, random.SystemRandom().random, now)
        except (AssertionError, msgspec.MsgspecError) as error:
            raise DataFolderError(
                f"{self._disk.path} has a log that makes no sense: {error}. {REMEDY}"
            ) from error
        self.raft = raft
        self.storing = Storing(self._disk, self._stored, self.fail)
        self._guarded(lambda: self._carry_out(raft.tick(now)))

    async def close(self) -> None:
        """Store what is to be stored, and end."""
        self._is_over = True
        self._stop()
        if self.storing is not None:
            await asyncio.to_thread(self.storing.close)

    # --- what can be asked ---
    @property
    def leader(self) -> int | None:
        return self.raft.leader if self.raft is not None and not self._is_over else None

    @property
    def is_leader(self) -> bool:
        return self.raft is not None and not self._is_over and self.raft.is_leader

    @property
    def is_ready(self) -> bool:
        """Whether it leads, and the image has all that was committed before."""
        return self.is_leader and self._raft.is_ready and not self._todo and not self._is_restoring

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in its log, and nothing ever was as far as it knows."""
        return self._raft.log.last_index == 0

    @property
    def members(self) -> Members:
        return self.raft.members if self.raft is not None else Members(())

    @property
    def _raft(self) -> Raft:
        """Raises `NotLeaderError` where it does not run: nothing is led by it then."""
        if self.raft is None or self._is_over:
            raise NotLeaderError(
                f"broker {self.node} takes no part in the quorum"
                + (f": {self.failure}" if self.failure is not None else " yet")
            )
        return self.raft

    # --- events ---
    def receive(self, sender: int, message: RaftMessage) -> None:
        raft = self.raft
        if isinstance(message, (PreVote, Vote)) and not self._may_vote():
            self.counts["votes_withheld"] += 1
        elif raft is not None:
            self._step(lambda now: raft.receive(now, sender, message))

    def propose(self, data: bytes) -> int:
        """Its index. Raises `NotLeaderError`, `ResourceLimitError`."""
        self.look()
        index, effects = self._raft.propose(self._loop.time(), data)
        self._guarded(lambda: self._carry_out(effects))
        return index

    def change_members(self, members: Members) -> int:
        """Its index. Raises `NotLeaderError`, `ConfigError`."""
        self.look()
        index, effects = self._raft.change_members(self._loop.time(), members)
        logger.info("the quorum's members are to be %s", members)
        self._guarded(lambda: self._carry_out(effects))
        return index

    def transfer(self, to: int) -> None:
        """Have that voter lead. Raises `NotLeaderError`, `ConfigError`."""
        self.look()
        effects = self._raft.transfer(self._loop.time(), to)
        self._guarded(lambda: self._carry_out(effects))

    def gone(self, node: int) -> None:
        """Nothing listens for that broker any more."""
        raft = self.raft
        if raft is not None and raft.leader == node:
            self._step(lambda now: raft.gone(now, node))

    def look(self) -> None:
        """A leader whose time is up looks at the clock before anything else."""
        raft = self.raft
        if raft is None or self._is_over:
            return
        now = self._loop.time()
        if raft.is_leader and now >= raft.deadline:
            self._guarded(lambda: self._carry_out(raft.tick(now)))

    def _step(self, event: Callable[[float], Effects]) -> None:
        self.look()
        self._guarded(lambda: self._carry_out(event(self._loop.time())))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Carries out an action. An error that must not happen ends this broker's part, and not the
        node's loop."""
        if self._is_over:
            return
        try:
            action()
        except UnsupportedVersionError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("what the quorum says cannot be carried out")
            self.fail(PenstockError(f"what the quorum says cannot be carried out: {error!r}"))

    def _tick(self) -> None:
        raft, timer, self._timer = self.raft, self._timer, None
        if raft is None or timer is None:
            return
        now = self._loop.time()
        self._was_late = now - timer.when() > LATE and not raft.is_leader and not self._was_late
        is_new = raft.log.last_index == 0 and not self._may_begin()
        if self._was_late or is_new or not self._may_vote():
            # It was not there, and what the leader said meanwhile is still to be read; or it is
            # new where there is a cluster already, which will take it in; or has forgotten that.
            self._timer = self._loop.call_later(LATE, self._tick)
        else:
            self._guarded(lambda: self._carry_out(raft.tick(now)))

    def _stored(self, number: int) -> None:
        raft = self.raft
        if raft is not None:
            self._step(lambda now: raft.persisted(now, number))

    def fail(self, error: PenstockError) -> None:
        """This broker's part in the quorum is over."""
        if not self._is_over:
            self.failure = error
            self._is_over = True
            self._stop()
            self._turned()
            self._on_failure(error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._todo.clear()

    # --- effects ---
    def _carry_out(self, effects: Effects) -> None:
        raft, storing = self.raft, self.storing
        assert raft is not None
        assert storing is not None
        if effects.writes:
            storing.store(effects.writes)
        for to, message in effects.messages:
            self._send(to, message)
        if effects.restore is not None:
            self._todo.clear()  # all of it is in there
            self._todo.append(effects.restore)
        self._todo.extend(effects.committed)
        self._apply()
        self._turned()
        if not self._is_over:
            self._arm(raft.deadline)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # it looks again then
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    # --- the image ---
    def _apply(self) -> None:
        if self._is_applying or self._is_restoring:
            return
        self._is_applying = True
        try:
            places: set[Place] = set()
            applied: list[LogEntry] = []
            while self._todo and len(applied) < APPLIED_AT_ONCE:
                item = self._todo[0]
                if isinstance(item, Snapshot):
                    if applied:
                        break
                    self._todo.popleft()
                    self._restore(item)
                    return
                self._todo.popleft()
                self._replay(item, places)
                applied.append(item)
            if applied:
                self._changed(places)
            for entry in applied:
                self._committed(entry.index, entry.term)
        finally:
            self._is_applying = False
        if self._todo:
            self._loop.call_soon(self._guarded, self._go_on)
        self._compact()

    def _go_on(self) -> None:
        self._apply()
        self._turned()

    def _replay(self, entry: LogEntry, places: set[Place]) -> None:
        self.applied = entry.index
        self._log_bytes += ENTRY_BYTES + len(entry.data)
        places.update(self.replayed(entry, self.image.replay))

    def replayed(self, entry: LogEntry, replay: Callable[[Record], Place | None]) -> set[Place]:
        """Which partitions its records are about. Raises `UnsupportedVersionError`."""
        records = unpack(entry.data) if entry.kind == DATA else ()
        try:
            return {place for record in records if (place := replay(record)) is not None}
        except UnsupportedVersionError as error:
            raise self._too_new(f"entry {entry.index}", error) from error

    def _too_new(self, where: str, error: UnsupportedVersionError) -> UnsupportedVersionError:
        """That record cannot be replayed here: what this broker says as it stops."""
        newer = self._newer()
        return UnsupportedVersionError(
            f"{where} of the controller's log has {error}: this is Penstock {__version__} with "
            f"metadata version {METADATA_VERSION}, and a newer one wrote it"
            f"{f' ({newer})' if newer else ''}. This broker stops, and nothing is lost: start it "
            "with that release"
        )

    def _restore(self, snapshot: Snapshot) -> None:
        self.counts["snapshots_restored"] += 1
        self._is_restoring = True
        if len(snapshot.data) <= INLINE_BYTES:
            self._restored(snapshot, lambda: image_of(snapshot.data))
            return
        reading = self._loop.run_in_executor(None, image_of, snapshot.data)
        reading.add_done_callback(
            lambda done: self._guarded(lambda: self._restored(snapshot, done.result))
        )

    def _restored(self, snapshot: Snapshot, read: Callable[[], Image]) -> None:
        self._is_restoring = False
        try:
            self.image = read()
        except UnsupportedVersionError as error:
            raise self._too_new(f"the snapshot up to entry {snapshot.index}", error) from error
        self.applied = snapshot.index
        self._snapshot_bytes = len(snapshot.data)
        self._log_bytes = 0
        self._changed(None)
        self._loop.call_soon(self._guarded, self._go_on)

    def _compact(self) -> None:
        """Put a snapshot in the place of the log, where that is worth it."""
        raft = self.raft
        if self._is_packing or self._todo or raft is None or self.applied == 0:
            return
        entries = self.applied - raft.log.snapshot.index
        is_large = self._log_bytes > max(SNAPSHOT_BYTES, self._snapshot_bytes)
        if entries < 1 or not (entries >= SNAPSHOT_ENTRIES or is_large):
            return
        self._is_packing = True
        index, log_bytes = self.applied, self._log_bytes
        packing = self._loop.run_in_executor(None, data_of, self.image.copied())
        packing.add_done_callback(
            lambda done: self._guarded(lambda: self._packed(done.result(), index, log_bytes))
        )

    def _packed(self, data: bytes, index: int, log_bytes: int) -> None:
        self._is_packing = False
        self._log_bytes = max(0, self._log_bytes - log_bytes)
        raft = self.raft
        if raft is None or raft.log.snapshot.index >= index:
            return
        self.counts["snapshots_made"] += 1
        self._snapshot_bytes = len(data)
        self._carry_out(raft.compacted(data, index))


def data_of(image: Image) -> bytes:
    """A snapshot's data."""
    return pack(tuple(image.records()))


def image_of(data: bytes) -> Image:
    image = Image()
    for record in unpack(data):
        image.replay(record)
    return image
