"""Sends the partitions that this broker leads to their followers, up to the log's end.

    a request --nothing there--> parked --appended, HW moved, too long--> ready --> sent
        |-------there is more----------------------------------------------^

Followers in sync go first, and get all that is there. A follower that catches up has a bound of the
bytes under way to it, and a share of each message. So it delays nobody's acknowledgements. Batches
go out unchanged, from the mapped segments. Owns the order of sending; the machine knows the
followers' log ends.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.cluster.replica import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    ReplicaLeader,
    ReplicaRefusal,
)
from penstock.core.errors import PenstockError
from penstock.core.reader import Limit, LogReader
from penstock.core.storage import Storage
from penstock.server.replicator import protocol
from penstock.server.replicator.counts import ReplicatorCounts
from penstock.server.replicator.partition import ReplicatedPartition

logger = logging.getLogger("penstock.replicator")

ANSWER_BYTES: Final = 1 << 20
"""The bytes of one answer of a partition at most, but for its last batch."""
MESSAGE_BYTES: Final = 2 << 20
"""The bytes of one message at most, likewise."""
BEHIND_BYTES: Final = 2 << 20
"""The bytes under way to one follower of partitions in which it is not in sync, likewise."""
BEHIND_SHARE: Final = 256 << 10
"""The part of `BEHIND_BYTES` in one message while others are in sync and wait."""
BEHIND_FORGOTTEN: Final = 2.0
"""Seconds after which that is not counted any more: it does not ask for that partition again."""
PARK: Final = 2.0
"""Seconds after which a request is answered with nothing."""
PARK_RESTLESS: Final = 0.25
"""The same for a follower outside the ISR, or one that does not answer yet for all that it has:
each request is another look."""
NEWS_AFTER: Final = 0.05
"""Seconds after which a follower that waits for batches is told of a high watermark alone."""
RECENT_MAX: Final = 16
"""Runs of a partition that are kept mapped for other followers."""
FRESH_FOR: Final = 5.0
"""Seconds for which what was read, and a segment that is open, count as the log's. Later it may be
compacted, and tombstones of keys in the old bytes may be gone from all that follows."""
READERS_MAX: Final = 256
"""Logs that are open for reading."""


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """A request without an answer: its follower has all that there is. `is_whole`: and answers for
    all of it."""

    served: LedPartition
    peer: FetchPeer
    number: int
    offset: int
    since: float
    is_whole: bool


class Ready(NamedTuple):
    """An answer to be sent, as long as that leader leads."""

    leader: ReplicaLeader
    number: int
    offset: int


class Run(NamedTuple):
    """Batches up to `end`, where they are mapped; read at that time."""

    end: int
    pieces: list[memoryview]
    nbytes: int
    read_at: float


class FetchPeer:
    """A follower's connection after its hello."""

    def __init__(self, identity: bytes, broker: int, epoch: int, now: float) -> None:
        self.identity = identity
        self.broker = broker
        self.epoch = epoch
        self.fd = -1
        self.heard_at = self.said_at = now
        self.serial = 0
        """The last one that came."""
        self.is_gone = False
        self.fresh: OrderedDict[LedPartition, Ready] = OrderedDict()
        self.behind: OrderedDict[LedPartition, Ready] = OrderedDict()
        self.diverged: list[tuple[int, Diverged]] = []
        self.refused: list[tuple[int, FetchRefused]] = []
        self.under_way: dict[int, tuple[int, float]] = {}  # of those behind: (bytes, since)

    @property
    def may_get_more(self) -> bool:
        """Whether there is room for what is sent to those behind."""
        return sum(nbytes for nbytes, _ in self.under_way.values()) < BEHIND_BYTES

    @property
    def has_news(self) -> bool:
        waits = self.fresh or self.diverged or self.refused
        return bool(waits or (self.behind and self.may_get_more))

    def forget_old(self, now: float) -> None:
        """Forgets batches that are under way for too long: the follower does not ask for that
        partition again."""
        for page, (_, since) in list(self.under_way.items()):
            if now - since > BEHIND_FORGOTTEN:
                del self.under_way[page]

    def __str__(self) -> str:
        return f"broker {self.broker}"


class LedPartition:
    """A partition that is led here. By broker: who waits, where it reads, and the high watermark
    that it was told last. `recent`: by its offset, what was read last, for the next follower."""

    __slots__ = ("parked", "partition", "readers", "recent", "told")

    def __init__(self, partition: ReplicatedPartition) -> None:
        self.partition = partition
        self.parked: dict[int, Parked] = {}
        self.readers: dict[int, LogReader] = {}
        self.told: dict[int, int] = {}
        self.recent: OrderedDict[int, Run] = OrderedDict()


class Serving:
    """The fetches of all followers. `asked` is called after each fetch that the machine took."""

    def __init__(
        self,
        storage: Storage,
        counts: ReplicatorCounts,
        find: Callable[[int], ReplicatedPartition | None],
        asked: Callable[[ReplicatedPartition], None],
    ) -> None:
        self._storage = storage
        self._counts = counts
        self._find = find
        self._asked = asked
        self._served: dict[int, LedPartition] = {}
        self._open: OrderedDict[LogReader, float] = OrderedDict()
        """And when each was used last."""
        self._uninformed: dict[LedPartition, None] = {}
        self._waiting: OrderedDict[Parked, None] = OrderedDict()
        """All that are parked, the oldest first."""
        self._restless: dict[Parked, None] = {}
        """Those of them that do not wait for `PARK`."""

    # --- roles ---
    def turned(self, partition: ReplicatedPartition) -> None:
        """It leads, or does not any more; or it does so again."""
        leader = None if partition.is_gone else partition.leader
        served = self._served.get(partition.page)
        if served is not None and (leader is None or served.partition is not partition):
            self._end(served)
            served = None
        if leader is not None and served is None:
            self._served[partition.page] = LedPartition(partition)
        elif served is not None:
            served.recent.clear()

    def _end(self, served: LedPartition) -> None:
        """Nobody is answered from here any more; who waits is told to ask again."""
        del self._served[served.partition.page]
        self._uninformed.pop(served, None)
        for reader in served.readers.values():
            self._open.pop(reader, None)
            reader.close()
        for parked in list(served.parked.values()):
            self._take_up(parked)
            refused = FetchRefused(parked.number, ReplicaRefusal.NOT_LEADER, 0)
            parked.peer.refused.append((served.partition.page, refused))

    # --- requests ---
    def take(self, peer: FetchPeer, message: protocol.Fetch, now: float) -> None:
        """A follower asks."""
        peer.serial = message.serial
        self._counts.fetches_in += len(message.requests)
        for page, topic_id, request in message.requests:
            peer.under_way.pop(page, None)
            if request.broker != peer.broker:
                raise protocol.WireError(f"{peer} asks for broker {request.broker}")
            partition = self._find(page)
            if partition is None or partition.topic_id != topic_id or partition.replica is None:
                # It hears of the partition earlier than this broker does, or for longer.
                self._refuse(peer, page, FetchRefused(request.number, ReplicaRefusal.NOT_LEADER, 0))
                continue
            self._fetch(peer, partition, request, now)

    def _fetch(
        self, peer: FetchPeer, partition: ReplicatedPartition, request: FetchRequest, now: float
    ) -> None:
        partition.look()
        assert partition.replica is not None
        answer = partition.replica.fetch(now, request)
        if isinstance(answer, FetchRefused):
            self._refuse(peer, partition.page, answer)
            return
        if isinstance(answer, Diverged):
            peer.diverged.append((partition.page, answer))
            return
        self._asked(partition)
        leader, served = partition.leader, self._served[partition.page]
        assert leader is not None
        log = partition.log
        if answer.offset < log.log_end or answer.offset != request.offset:
            self._make_ready(served, peer, Ready(leader, request.number, answer.offset))
            return
        is_whole = request.stored >= log.log_end
        self._park(Parked(served, peer, request.number, answer.offset, now, is_whole), leader)
        if served.told.get(peer.broker) != log.high_watermark:
            self._uninformed[served] = None

    def _park(self, parked: Parked, leader: ReplicaLeader) -> None:
        waits = parked.served.parked
        if (older := waits.get(parked.peer.broker)) is not None:
            self._take_up(older)
        waits[parked.peer.broker] = parked
        self._waiting[parked] = None
        self._sort(parked, leader)

    def _sort(self, parked: Parked, leader: ReplicaLeader) -> None:
        if not parked.is_whole or parked.peer.broker not in leader.isr:
            self._restless[parked] = None

    def _take_up(self, parked: Parked) -> None:
        del parked.served.parked[parked.peer.broker], self._waiting[parked]
        self._restless.pop(parked, None)

    def _refuse(self, peer: FetchPeer, page: int, refused: FetchRefused) -> None:
        self._counts.refused_in += 1
        peer.refused.append((page, refused))

    def _make_ready(self, served: LedPartition, peer: FetchPeer, ready: Ready) -> None:
        if not peer.is_gone:
            (peer.fresh if peer.broker in ready.leader.isr else peer.behind)[served] = ready

    def moved(self, partition: ReplicatedPartition) -> None:
        """Its log has grown, or its high watermark; or its ISR is another."""
        served = self._served.get(partition.page)
        if served is None or not served.parked:
            return
        log_end = partition.log.log_end
        for parked in list(served.parked.values()):
            if parked.offset < log_end:
                self._unpark(parked)
            elif partition.leader is not None:
                self._sort(parked, partition.leader)
        if served.parked:
            self._uninformed[served] = None

    def _unpark(self, parked: Parked) -> None:
        self._take_up(parked)
        leader = parked.served.partition.leader
        if leader is not None:
            self._make_ready(
                parked.served, parked.peer, Ready(leader, parked.number, parked.offset)
            )

    # --- time ---
    def inform(self) -> None:
        """Followers that wait for batches are told of high watermarks now, every `NEWS_AFTER`."""
        uninformed, self._uninformed = self._uninformed, {}
        for served in uninformed:
            high_watermark = served.partition.log.high_watermark
            for parked in list(served.parked.values()):
                if served.told.get(parked.peer.broker) != high_watermark:
                    self._unpark(parked)

    def check(self, now: float) -> None:
        """Answer requests that have waited long enough."""
        while self._waiting and now - (parked := next(iter(self._waiting))).since > PARK:
            self._unpark(parked)
        for parked in [each for each in self._restless if now - each.since > PARK_RESTLESS]:
            self._unpark(parked)

    def forget(self, peer: FetchPeer) -> None:
        """Its connection has ended."""
        peer.is_gone = True
        for parked in [each for each in self._waiting if each.peer is peer]:
            self._take_up(parked)

    # --- answers ---
    def compose(self, peer: FetchPeer, now: float) -> tuple[protocol.Answers, list[memoryview]]:
        """Returns the next message to that follower."""
        fetched: list[tuple[int, int, Fetched]] = []
        pieces: list[memoryview] = []
        nbytes = 0
        while peer.fresh and nbytes < MESSAGE_BYTES and has_room(fetched, pieces):
            nbytes += self._add(peer, *peer.fresh.popitem(last=False), fetched, pieces)
        peer.forget_old(now)
        share = BEHIND_SHARE if fetched else BEHIND_BYTES
        while peer.behind and share > 0 and peer.may_get_more and has_room(fetched, pieces):
            served, ready = peer.behind.popitem(last=False)
            size = self._add(peer, served, ready, fetched, pieces, min(share, ANSWER_BYTES))
            peer.under_way[served.partition.page] = size, now
            share -= size
        diverged, refused = peer.diverged[: protocol.ITEMS_MAX], peer.refused[: protocol.ITEMS_MAX]
        del peer.diverged[: len(diverged)], peer.refused[: len(refused)]
        self._counts.answers_out += 1
        self._counts.bytes_out += nbytes
        return protocol.Answers(peer.serial, fetched, diverged, refused), pieces

    def _add(
        self,
        peer: FetchPeer,
        served: LedPartition,
        ready: Ready,
        fetched: list[tuple[int, int, Fetched]],
        pieces: list[memoryview],
        bytes_max: int = ANSWER_BYTES,
    ) -> int:
        """Add an answer to a message; its bytes."""
        partition = served.partition
        page, log, number = partition.page, partition.log, ready.number
        if partition.leader is not ready.leader or self._served.get(page) is not served:
            self._refuse(peer, page, FetchRefused(number, ReplicaRefusal.NOT_LEADER, 0))
            return 0
        run = None
        if ready.offset < log.log_end:
            try:
                run = self._read(served, peer.broker, ready.offset, bytes_max)
            except PenstockError as error:
                self._counts.unread += 1
                logger.error("%s: not read at offset %d for %s: %s",
                             partition, ready.offset, peer, error)  # fmt: skip
            if run is None:  # it asks again
                self._refuse(peer, page, FetchRefused(number, ReplicaRefusal.NOT_LEADER, 0))
                return 0
            pieces += run.pieces
        served.told[peer.broker] = log.high_watermark
        count = 0 if run is None else len(run.pieces)
        answer = Fetched(
            number, ready.leader.epoch, ready.offset, log.high_watermark, log.log_start
        )
        fetched.append((page, count, answer))
        return 0 if run is None else run.nbytes

    def _read(self, served: LedPartition, broker: int, offset: int, bytes_max: int) -> Run | None:
        """Returns batches from that offset on; None where its writer is just publishing, or has
        trimmed. Batches that another follower got a moment ago are not read again."""
        log_end, recent = served.partition.log.log_end, served.recent
        pieces: list[memoryview] = []
        nbytes, at, now = 0, offset, time.monotonic()
        while at < log_end and nbytes < bytes_max:
            run = recent.get(at)
            if run is None or now - run.read_at > FRESH_FOR:
                run = self._read_on(served, broker, at, bytes_max - nbytes, now)
                if run is None:
                    break
                recent[at] = run
                recent.move_to_end(at)
                while len(recent) > RECENT_MAX:
                    recent.popitem(last=False)
            pieces += run.pieces
            nbytes += run.nbytes
            at = run.end
        if len(pieces) > protocol.RUNS_MAX // 2:
            pieces = [memoryview(b"".join(pieces))]
        return Run(at, pieces, nbytes, now) if pieces else None

    def _read_on(
        self, served: LedPartition, broker: int, offset: int, bytes_max: int, now: float
    ) -> Run | None:
        partition = served.partition
        log, state = partition.log, partition.state
        reader = self._reader(served, broker, offset, now)
        segment = state.segment_now()
        if segment is None:
            return None
        found = reader.fetch(Limit(log.log_end, *segment, log.log_start), bytes_max, every=True)
        if not found or offset < state.log_start:
            reader.seek(offset)
            return None
        pieces: list[memoryview] = []
        view, start, end = found[0].view, found[0].position, found[0].position
        nbytes = 0
        for head, its_view, position in found:
            if its_view is not view or position != end:
                pieces.append(view[start:end])
                view, start = its_view, position
            end = position + head.length
            nbytes += head.length
        pieces.append(view[start:end])
        return Run(reader.offset, pieces, nbytes, now)

    def _reader(self, served: LedPartition, broker: int, offset: int, now: float) -> LogReader:
        """Returns a reader at that offset, if there is one: finding a place costs more than
        reading. The readers that read longest ago hold no file open."""
        readers = served.readers
        for reader in readers.values():
            if reader.offset == offset:
                break
        else:
            if broker not in readers:
                folder = served.partition.folder
                readers[broker] = LogReader(self._storage, folder, offset)
            reader = readers[broker]
            reader.seek(offset)
        if now - self._open.get(reader, now) > FRESH_FOR:
            reader.seek(offset)
        self._open[reader] = now
        self._open.move_to_end(reader)
        while len(self._open) > READERS_MAX:
            idle, _ = self._open.popitem(last=False)
            idle.seek(idle.offset)
        return reader


def has_room(fetched: list[tuple[int, int, Fetched]], pieces: list[memoryview]) -> bool:
    """Whether a message takes one more answer."""
    return len(fetched) < protocol.ITEMS_MAX and len(pieces) <= protocol.RUNS_MAX // 2
