"""Sends records to remote consumers, in one fair round after another over all cursors.

    idle ──ring, More, Fetch, timer──► fresh ──served a little, more is there──► behind ──► idle
                                         └──────────── nothing more ───────────────────────►┘

Each round serves every *fresh* session, a little each, and then those *behind* in turn, a piece
each, up to a bound. So a consumer that catches up delays another's new records by at most one
round. A session that goes idle arms its ticket and looks again (rule 13), so that nothing here
polls. The belt looks now and then for changes that no writer rings for, such as a deleted topic.

Owns the order of sending, and its bounds: credit, bytes under way, quotas. Never blocks and never
decodes a record. An unforeseen error with one endpoint ends that endpoint.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core import errors as er
from penstock.core.header import HEADER_BYTES, parse
from penstock.ipc import layout as lo
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.cursors import BATCH_WORK, Cursor, FetchedPiece, OpenFiles
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.gateway.fetch_session import ConnectionBytes, FetchSession, PrincipalBytes
from penstock.server.gateway.partition_states import Known
from penstock.server.gateway.peers import Peer

logger = logging.getLogger("penstock.gateway")

BELT: Final = 0.5
"""Seconds within which everything is looked at once, rung for or not (rule 13)."""
UNWATCHED_EVERY: Final = 0.1
"""Seconds between two looks at pages for which no writer rings, to tell how they moved."""
NO_SLOT_EVERY: Final = 0.02
"""The same for an endpoint that the node gave no client slot."""
AGAIN: Final = 0.005
"""Seconds until another try: a writer was just publishing, or a peer's outbox is full."""
NAME_WAIT: Final = 0.25
"""Seconds for which a topic may be unknown: it may have been created just now."""
ALLOWED_FOR: Final = 1.0
"""Seconds for which a cursor goes on without its consumer's rights being looked at again."""
PAGES_AT_ONCE: Final = 256
"""Pages in one `Pages`: reading the state of each takes time."""
_SLICES: Final = 10
"""Parts of the belt."""
_LARGE: Final = 64
"""Cursors of an endpoint, from which on the belt looks at it in parts as well."""

Allow = Callable[[str, str, int, float], float]
"""(principal, client id, bytes sent, now) -> seconds to hold the endpoint back, 0 for none."""
Names = Callable[[bytes], str | None]
"""The name of a topic by its id; None where it is not known (yet, or any more)."""
Failed = Callable[[GatewayEndpoint, str], None]
"""(endpoint, why): ends an endpoint that cannot be gone on with."""
MayRead = Callable[[str, str], object]
"""(principal, topic): raises `AccessDeniedError` where that principal may not read that topic."""

MayKnow = Callable[[str, bytes], bool]
"""(principal, topic id): whether that principal may know of the topic."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`payload_bytes`: what one `Fetched` is filled up to (and passed by less than a batch).
    `fresh_bytes`: bytes that come at once after an idle time. `round_bytes`: sent in one round.
    `connection_bytes`: under way to one connection's cursors without `More`; each of its endpoints
    may have one payload under way beyond that. `principal_bytes`: the same of all connections of a
    principal. `files_max`: segments open at a time.
    `pages_every`: seconds between two `Pages` of an endpoint."""

    payload_bytes: int = 256 << 10
    fresh_bytes: int = 64 << 10
    round_bytes: int = 1 << 20
    connection_bytes: int = 32 << 20
    principal_bytes: int = 128 << 20
    files_max: int = 512
    pages_every: float = 0.020


class FetchHandler:
    """The fetches of all endpoints. The gateway makes one, and calls `turn` after each round of
    events."""

    def __init__(
        self,
        known: Known,
        names: Names,
        counts: GatewayCounts,
        limits: FetchLimits | None = None,
        *,
        allow: Allow,
        may_read: MayRead,
        may_know: MayKnow,
        failed: Failed,
    ) -> None:
        self._known = known
        self._names = names
        self._counts = counts
        self._limits = limits or FetchLimits()
        self._allow = allow
        self._may_read = may_read
        self._may_know = may_know
        self._failed = failed
        self._files = OpenFiles(self._limits.files_max)
        self._line_of: dict[GatewayEndpoint, FetchSession] = {}
        self._links: dict[Peer, ConnectionBytes] = {}
        self._shares: dict[str, PrincipalBytes] = {}
        self._lines: deque[FetchSession] = deque()  # of the belt
        self._fresh: deque[FetchSession] = deque()
        self._behind: deque[FetchSession] = deque()
        self._timers: list[tuple[float, int, FetchSession]] = []
        self._number = itertools.count()
        self._next_belt = 0.0
        self._slice = 0
        self._now = 0.0  # of the last turn

    # --- what endpoints ask for ------------------------------------------------------------------
    def fetch(self, endpoint: GatewayEndpoint, message: fr.Fetch) -> None:
        """Begin a cursor, or begin it again."""
        line = self._line(endpoint)
        self.drop(endpoint, fr.Drop(endpoint.number, message.cursor))
        if len(line.cursors) + len(line.asked) >= fr.CURSORS_MAX:
            error: er.PenstockError = er.ResourceLimitError(
                f"this consumer reads {fr.CURSORS_MAX} partitions, the bound CURSORS_MAX of one: "
                "make another one for the others"
            )
            self._refuse(line, message.cursor, message.offset, error)
            return
        if message.page >= lo.PAGES_MAX:
            error = er.UnknownTopicError(f"page {message.page} is outside 0..{lo.PAGES_MAX - 1}")
            self._refuse(line, message.cursor, message.offset, error)
            return
        line.asked[message.cursor] = message, self._now + NAME_WAIT
        self._begin_asked(line, self._now)

    def _begin_asked(self, line: FetchSession, now: float) -> None:
        """Begin the cursors whose topics are known."""
        for number, (message, until) in list(line.asked.items()):
            page = line.endpoint.states.page(message.page)
            if self._known.membership.is_elsewhere(page, message.topic_id, message.partition):
                del line.asked[number]
                why = self._known.membership.why_not(message.page)
                self._refuse(line, number, message.offset, er.NotLeaderError(why))
                continue
            topic = self._names(message.topic_id)
            is_hidden = topic is None or not self._may_know(
                line.endpoint.principal, message.topic_id
            )
            if is_hidden and now < until:
                self._later(line, now + AGAIN)
                continue
            del line.asked[number]
            try:
                self._check_read(line.endpoint.principal, message.topic_id, topic)
            except er.PenstockError as error:
                self._refuse(line, number, message.offset, error)
                continue
            assert topic is not None
            cursor = Cursor(message, topic, page, self._known)
            line.add(cursor)
            line.make_ready(cursor)
            self._counts.cursors += 1
            self._activate(line)

    def _check_read(self, principal: str, topic_id: bytes, topic: str | None) -> None:
        """Raises unless the principal may read that topic. A topic that it may not know of gives
        the error of a missing one."""
        unknown = er.UnknownTopicError(
            f"there is no topic with the id {topic_id.hex()} (any more): it was deleted"
        )
        if topic is None:
            raise unknown
        try:
            self._may_read(principal, topic)
        except er.AccessDeniedError:
            if self._may_know(principal, topic_id):
                raise
            raise unknown from None

    def more(self, endpoint: GatewayEndpoint, message: fr.More) -> None:
        """The client has consumed so many bytes."""
        line = self._line(endpoint)
        cursor = line.cursors.get(message.cursor)
        if cursor is None or not cursor.out_bytes or message.credit < HEADER_BYTES:
            endpoint.peer.charge()  # nothing of it was under way, or no batch that was consumed
        if cursor is not None:
            line.credit(cursor, message.credit)
            line.unblock()
            self._unblock(line.link)  # others that wait go first
            self._activate(line)

    def drop(self, endpoint: GatewayEndpoint, message: fr.Drop) -> None:
        """End a cursor."""
        line = self._line(endpoint)
        line.asked.pop(message.cursor, None)
        cursor = line.cursors.get(message.cursor)
        if cursor is not None:
            self._end(line, cursor)
            self._activate(line)

    def watch_durable(self, endpoint: GatewayEndpoint, page: int, offset: int) -> None:
        """Tells the endpoint by `Pages` once that page is durable up to `offset` (exclusive). For
        producers, after answers whose records are not synced yet. Writers ring the endpoint's lanes
        for that: publish a ticket there, and call `rung`."""
        line = self._line(endpoint)
        line.waits[page] = max(offset, line.waits.get(page, 0))
        self._activate(line)

    def gone(self, endpoint: GatewayEndpoint) -> None:
        """The endpoint ended: free everything. Its session is about to be closed, and with it what
        it shares with writers, which is not looked at any more."""
        line = self._line_of.pop(endpoint, None)
        if line is None:
            return
        line.is_gone = True
        for queue in (self._lines, self._fresh, self._behind):
            if line in queue:
                queue.remove(line)
        for cursor in line.cursors.values():
            self._files.forget(cursor)
        self._counts.cursors -= len(line.cursors)
        line.close()
        self._unblock(line.link)
        line.link.lines -= 1
        if not line.link.lines:
            del self._links[endpoint.peer]
            line.link.share.links -= 1
            if not line.link.share.links:
                del self._shares[endpoint.principal]

    def rung(self, endpoint: GatewayEndpoint) -> None:
        """Its doorbell rang, and was cleared: pages may have moved."""
        line = self._line_of.get(endpoint)
        if line is not None:
            self._activate(line)

    def unhold(self, endpoint: GatewayEndpoint) -> None:
        """There are other quotas now: let it try by those."""
        line = self._line_of.get(endpoint)
        if line is not None and line.held_until:
            line.held_until = 0.0
            self._activate(line)

    def _line(self, endpoint: GatewayEndpoint) -> FetchSession:
        line = self._line_of.get(endpoint)
        if line is None:
            link = self._links.get(endpoint.peer)
            if link is None:
                share = self._shares.setdefault(endpoint.principal, PrincipalBytes())
                share.links += 1
                link = self._links[endpoint.peer] = ConnectionBytes(share)
            line = self._line_of[endpoint] = FetchSession(endpoint, link)
            link.lines += 1
            self._lines.append(line)
        return line

    # --- turns -----------------------------------------------------------------------------------
    def turn(self, now: float) -> float | None:
        """One round of sending; seconds until it wants another one without any event (None: only
        on events, 0: at once)."""
        self._now = now
        self._take_timers(now)
        if now >= self._next_belt:
            self._look_around(now)
        alone = len(self._fresh) + len(self._behind) == 1
        limits = self._limits
        room = limits.round_bytes
        share = limits.payload_bytes if alone else limits.fresh_bytes
        for _ in range(len(self._fresh)):
            if room <= 0:
                break
            room -= self._serve_turn(self._fresh.popleft(), now, share)
        room = max(room, 1)  # a cursor that is behind gets its share also where many are fresh
        while self._behind and room > 0:
            room -= self._serve_turn(self._behind.popleft(), now, limits.payload_bytes)
        if self._fresh or self._behind:
            return 0.0
        until = [self._next_belt] if self._lines else []
        if self._timers:
            until.append(self._timers[0][0])
        return max(0.0, min(until) - now) if until else None

    @property
    def is_pending(self) -> bool:
        """Whether `turn` has something to do."""
        return bool(self._fresh or self._behind)

    def _activate(self, line: FetchSession) -> None:
        if not line.is_queued:
            line.is_queued = True
            self._fresh.append(line)

    def _serve_turn(self, line: FetchSession, now: float, share: int) -> int:
        """One line's turn; what it took, in bytes."""
        try:
            return self._process(line, now, share)
        except Exception as error:
            self._give_up(line, error)
            return BATCH_WORK

    def _give_up(self, line: FetchSession, error: Exception) -> None:
        endpoint = line.endpoint
        logger.error("fetching for %s failed", endpoint, exc_info=error)
        self._counts.refusals["failure"] += 1
        self.gone(endpoint)
        self._failed(endpoint, f"the gateway failed at fetching for it: {error!r}")

    def _process(self, line: FetchSession, now: float, share: int) -> int:
        line.is_queued = False
        if line.asked:
            self._begin_asked(line, now)
        line.look(now)
        taken = self._serve(line, now, share) if line.ready else 0
        if not line.ready:
            line.arm()
            line.look(now)
        self._tell(line, now)
        if line.ready and self._may_go(line, now):
            line.is_queued = True
            self._behind.append(line)
        elif line.has_unwatched:
            self._later(line, now + (UNWATCHED_EVERY if line.is_rung else NO_SLOT_EVERY))
        return taken

    def _may_go(self, line: FetchSession, now: float) -> bool:
        """Whether more may be sent to it now; if not, somebody will call again."""
        if line.held_until > now:
            self._later(line, line.held_until)
            return False
        limits, link = self._limits, line.link
        if line.out_bytes >= limits.payload_bytes:
            if link.out_bytes >= limits.connection_bytes:
                link.blocked[line] = None
                return False
            if link.share.out_bytes >= limits.principal_bytes:
                link.share.blocked[line] = None
                return False
        if not line.endpoint.has_room:
            self._later(line, now + AGAIN)
            return False
        return True

    def _unblock(self, link: ConnectionBytes) -> None:
        share = link.share
        blocked, link.blocked = link.blocked, {}
        if share.blocked and share.out_bytes < self._limits.principal_bytes:
            blocked, share.blocked = blocked | share.blocked, {}
        for line in blocked:
            self._activate(line)

    # --- time ------------------------------------------------------------------------------------
    def _later(self, line: FetchSession, when: float) -> None:
        """Look at it then, at the latest."""
        if not line.due or when < line.due:
            line.due = when
            heapq.heappush(self._timers, (when, next(self._number), line))

    def _take_timers(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            when, _, line = heapq.heappop(timers)
            if line.due == when and not line.is_gone:
                line.due = 0.0
                self._activate(line)

    def _look_around(self, now: float) -> None:
        """The belt: a part of everything at a time, so that it never takes long."""
        lines = self._lines
        large = [line for line in lines if len(line.cursors) > _LARGE]
        slices = _SLICES if large else min(max(len(lines), 1), _SLICES)
        self._next_belt = now + BELT / slices
        for _ in range(math.ceil(len(lines) / slices)):
            line = lines[0]
            lines.rotate(-1)
            if len(line.cursors) <= _LARGE:
                self._look_closely(line)
            else:
                self._activate(line)
        self._slice = (self._slice + 1) % _SLICES
        for line in large:
            self._look_closely(line, self._slice, _SLICES)

    def _look_closely(self, line: FetchSession, part: int = 0, parts: int = 1) -> None:
        try:
            line.look_closely(part, parts)
            self._activate(line)
        except Exception as error:
            self._give_up(line, error)

    # --- sending ---------------------------------------------------------------------------------
    def _serve(self, line: FetchSession, now: float, share: int) -> int:
        """Send what is ready, up to a share of about so many bytes."""
        taken = 0
        while taken < share and self._may_go(line, now):
            cursor = line.next_ready()
            if cursor is None:
                break
            taken += BATCH_WORK
            try:
                piece = self._read(line, cursor, now, share - taken)
            except er.PenstockError as error:
                self._fail(line, cursor, error)
                continue
            except Exception as error:
                logger.exception("%s: reading %s failed", line.endpoint, cursor)
                self._fail(line, cursor, er.PenstockError(f"{cursor}: the gateway failed: {error}"))
                continue
            if piece is None:
                if cursor.credit > 0 and cursor.has_more:
                    cursor.again_at = now + AGAIN
                    line.is_restless = True
                    self._later(line, cursor.again_at)
                continue
            taken += piece.work
            if not self._send(line, cursor, piece, now):
                break
            if cursor.credit > 0 and cursor.has_more:
                line.make_ready(cursor)
        return taken

    def _read(
        self, line: FetchSession, cursor: Cursor, now: float, share: int
    ) -> FetchedPiece | None:
        if now - cursor.allowed_at >= ALLOWED_FOR:
            self._may_read(line.endpoint.principal, cursor.topic)
            cursor.allowed_at = now
        if cursor.credit <= 0:
            cursor.check()
            return None
        most = min(cursor.credit, self._limits.payload_bytes)
        self._files.touch(cursor)
        try:
            return cursor.read(most, share, now)
        except er.StorageError as error:
            if not error.retriable:
                raise
            self._files.rest()  # it may be the descriptors that are missing
            self._files.touch(cursor)
            return cursor.read(most, share, now)

    def _send(self, line: FetchSession, cursor: Cursor, piece: FetchedPiece, now: float) -> bool:
        endpoint = line.endpoint
        line.spend(cursor, piece.nbytes)
        pages = line.news_of(cursor.page.index)
        message = fr.Fetched(
            endpoint.number, cursor.number, piece.start, piece.next_offset, piece.aborted, pages,
            piece.leader_epoch,
        )  # fmt: skip
        if not endpoint.peer.send(codec.encode(message), piece.payload):
            return False
        if piece.nbytes:
            assert piece.payload is not None
            age = time.time() - parse(piece.payload).append_timestamp / 1e6
            self._counts.delivered.of(cursor.topic_id).observe(max(0.0, age))
            self._counts.use(endpoint.principal, "consume", piece.nbytes)
            delay = self._allow(endpoint.principal, endpoint.client_id, piece.nbytes, now)
            if delay > 0:
                self._counts.throttles["consume"] += 1
                self._counts.throttled_seconds["consume"] += delay
                line.held_until = now + delay
                endpoint.post(fr.Throttled(endpoint.number, "consume", delay))
        return True

    def _tell(self, line: FetchSession, now: float) -> None:
        """How pages moved, where no data told it."""
        news = line.durable_news() if line.waits else []
        if line.stale:
            if now >= line.next_pages:
                line.next_pages = now + self._limits.pages_every
                for page in list(islice(line.stale, PAGES_AT_ONCE)):
                    news += line.news_of(page)
            if line.stale:
                self._later(line, line.next_pages)
        if news:
            line.endpoint.post(fr.Pages(line.endpoint.number, news))
        if line.waits:
            self._later(line, now + UNWATCHED_EVERY)

    def _fail(self, line: FetchSession, cursor: Cursor, error: er.PenstockError) -> None:
        self._end(line, cursor)
        self._refuse(line, cursor.number, cursor.offset, error)

    def _refuse(
        self, line: FetchSession, cursor: int, offset: int, error: er.PenstockError
    ) -> None:
        kind = type(error).__name__
        self._counts.refusals[kind] += 1
        logger.log(
            logging.DEBUG if isinstance(error, er.NotLeaderError) else logging.INFO,
            "%s: fetching ended at offset %d: %s", line.endpoint, offset, error,
        )  # fmt: skip
        divergence = error.divergence if isinstance(error, er.LogTruncatedError) else None
        line.endpoint.post(
            fr.CursorFailed(line.endpoint.number, cursor, offset, kind, str(error), divergence)
        )

    def _end(self, line: FetchSession, cursor: Cursor) -> None:
        self._files.forget(cursor)
        line.remove(cursor)
        self._counts.cursors -= 1
        self._unblock(line.link)
