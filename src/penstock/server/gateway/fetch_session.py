"""All that is fetched for one endpoint: its cursors, what wakes it, what it was told of pages.

Owns its ticket in the client slot and the pages that it watches.
Does not choose the next cursor (`fetch` does).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import fence
from penstock.ipc.state import StatePage
from penstock.server.gateway.cursors import Cursor
from penstock.server.gateway.endpoints import GatewayEndpoint, fresh_ticket

Standing = tuple[int, ...]
_DURABLE: Final = 1
_LOG_END: Final = 4
_NEVER: Final[Standing] = (-1,) * 9


class PrincipalBytes:
    """All connections of a principal: bytes under way, and who waits for some to arrive."""

    __slots__ = ("blocked", "links", "out_bytes")

    def __init__(self) -> None:
        self.links = 0
        self.out_bytes = 0
        self.blocked: dict[FetchSession, None] = {}


class ConnectionBytes:
    """A connection: bytes under way to its cursors, and who waits for some of them to arrive."""

    __slots__ = ("blocked", "lines", "out_bytes", "share")

    def __init__(self, share: PrincipalBytes) -> None:
        self.share = share
        self.lines = 0
        self.out_bytes = 0
        self.blocked: dict[FetchSession, None] = {}

    def count(self, nbytes: int) -> None:
        """So many more are under way; fewer, where that is negative."""
        self.out_bytes += nbytes
        self.share.out_bytes += nbytes


def standing_of(page: StatePage) -> Standing:
    """All of a page that a reader is told; to be compared."""
    return (*page.ends(), page.leader_epoch, page.generation, page.status, page.errno)


class FetchSession:
    """The cursors and watched pages of one endpoint. `fetch` owns `is_queued`, `due`, `held_until`
    and `next_pages`."""

    __slots__ = ("_eager", "_q", "_seen", "_slot", "_told", "_wanting",
                 "_words", "asked", "cursors", "due", "endpoint", "held_until", "is_gone",
                 "is_queued", "is_restless", "link", "next_pages", "out_bytes", "ready", "stale",
                 "states", "waits")  # fmt: skip

    def __init__(self, endpoint: GatewayEndpoint, link: ConnectionBytes) -> None:
        self.endpoint = endpoint
        self.states = endpoint.states
        self._q = endpoint.session.state.q
        self.link = link
        self.cursors: dict[int, Cursor] = {}
        self.asked: dict[
            int, tuple[fr.Fetch, float]
        ] = {}  # whose topic is not known yet, until when
        self.ready: deque[Cursor] = deque()
        self.stale: dict[int, None] = {}  # pages that moved without data for this endpoint
        self.waits: dict[int, int] = {}  # page -> offset up to which it is to be durable
        self.out_bytes = 0
        self.held_until = 0.0
        self.next_pages = 0.0
        self.due = 0.0  # when a timer looks at it; 0: none does
        self.is_queued = False
        self.is_gone = False
        self.is_restless = False  # to be looked at, whether words have changed or not
        self._words: list[int] | None = None  # indexes of its cursors' ends in the state table
        self._seen: list[int] = []  # the values at the last look
        self._told: dict[int, Standing] = {}
        self._eager = 0  # cursors with credit
        self._wanting: dict[int, int] = {}  # page -> cursors with credit, which new data wakes
        is_consumer = endpoint.kind == lo.KIND_CONSUMER  # writers ring nobody else
        self._slot: ClientSlot | None = endpoint.session.slot if is_consumer else None

    @property
    def is_rung(self) -> bool:
        """Whether writers wake it for cursors with credit."""
        return self._slot is not None

    @property
    def has_unwatched(self) -> bool:
        """Whether there are cursors for whose pages no writer rings."""
        return bool(self.cursors) and (self._slot is None or self._eager < len(self.cursors))

    # --- cursors ---------------------------------------------------------------------------------
    def add(self, cursor: Cursor) -> None:
        self.cursors[cursor.number] = cursor
        if cursor.credit > 0:
            self._want(cursor.page.index, 1)
        self._words = None
        self.is_restless = True

    def remove(self, cursor: Cursor) -> None:
        """It is over: nothing of it is under way any more."""
        del self.cursors[cursor.number]
        self.link.count(-cursor.out_bytes)
        self.out_bytes -= cursor.out_bytes
        cursor.out_bytes = 0
        if cursor.credit > 0:
            self._want(cursor.page.index, -1)
        cursor.credit = 0
        cursor.close()
        self._words = None
        self.is_restless = True

    def credit(self, cursor: Cursor, nbytes: int) -> None:
        """The client has consumed so many bytes of it."""
        had = cursor.credit > 0
        back = cursor.consumed(nbytes)
        self.out_bytes -= back
        self.link.count(-back)
        if cursor.credit > 0 and not had:
            self._want(cursor.page.index, 1)
        self.is_restless = True

    def spend(self, cursor: Cursor, nbytes: int) -> None:
        """So many bytes of it are sent."""
        cursor.sent(nbytes)
        self.out_bytes += nbytes
        self.link.count(nbytes)
        if cursor.credit <= 0 < cursor.credit + nbytes:
            self._want(cursor.page.index, -1)

    # --- what wakes it ---------------------------------------------------------------------------
    def _want(self, page: int, step: int) -> None:
        self._eager += step
        before = self._wanting.get(page, 0)
        after = before + step
        if after:
            self._wanting[page] = after
        else:
            del self._wanting[page]
        if self._slot is not None and (before == 0) != (after == 0):
            self._slot.watch_one(page, after > 0)

    def arm(self) -> None:
        """Arms the ticket: from now on a writer that publishes on a watched page rings. Look again
        after this."""
        if self._slot is not None and self._wanting:
            self._slot.publish_sleeping(fresh_ticket())
            fence()

    def look(self, now: float) -> bool:
        """Finds changes: cursors that may go on become ready, other pages are noted. Returns
        whether there is a cursor that may go on."""
        cursors = self.cursors
        if self._words is None:
            words = (word for cursor in cursors.values() for word in cursor.words)
            self._words = list(dict.fromkeys(words))
        if cursors:
            # Most looks find nothing, and thousands of cursors are a lot to be asked one by one.
            seen = list(map(self._q.__getitem__, self._words))
            if seen == self._seen and not self.is_restless:
                return bool(self.ready)
            self._seen = seen
        self.is_restless = False
        told = self._told
        for cursor in cursors.values():
            if cursor.credit > 0 and cursor.has_more:
                if cursor.again_at <= now:
                    self.make_ready(cursor)
                else:
                    self.is_restless = True
            elif cursor.log_end != told.get(cursor.page.index, _NEVER)[_LOG_END]:
                self.stale[cursor.page.index] = None
        return bool(self.ready)

    def look_closely(self, part: int = 0, parts: int = 1) -> None:
        """At what no writer rings for: the belt."""
        for cursor in list(self.cursors.values())[part::parts]:
            if cursor.is_troubled:
                self.make_ready(cursor)
            page = cursor.page
            if standing_of(page) != self._told.get(page.index):
                self.stale[page.index] = None

    def make_ready(self, cursor: Cursor) -> None:
        if not cursor.is_ready:
            cursor.is_ready = True
            self.ready.append(cursor)

    def next_ready(self) -> Cursor | None:
        """Returns the next cursor to serve."""
        while self.ready:
            cursor = self.ready.popleft()
            cursor.is_ready = False
            if self.cursors.get(cursor.number) is cursor:
                return cursor
        return None

    # --- what others are told --------------------------------------------------------------------
    def news_of(self, page: int) -> list[fr.PageState]:
        """Returns the state of a page, if it differs from the last one told to this endpoint, and
        the endpoint may know it."""
        standing = standing_of(self.states.page(page))
        self.stale.pop(page, None)
        if self._told.get(page) == standing:
            return []
        self._told[page] = standing
        return self.states.shown(page)

    def durable_news(self) -> list[fr.PageState]:
        """Pages that its producer waits for to be durable, and that have come further."""
        news: list[fr.PageState] = []
        for index, offset in list(self.waits.items()):
            told = self._told.get(index, _NEVER)
            durable = self.states.page(index).durable
            if durable >= offset:
                del self.waits[index]
            if durable != told[_DURABLE]:
                news += self.news_of(index)
        return news

    def close(self) -> None:
        """All of it is over, and nothing under way any more."""
        for cursor in self.cursors.values():
            cursor.close()
        self.cursors.clear()
        self.link.count(-self.out_bytes)
        self.out_bytes = 0
        self.ready.clear()
        self.asked.clear()
        self.waits.clear()
        self.unblock()

    def unblock(self) -> None:
        """It waits for no bytes of its neighbours."""
        self.link.blocked.pop(self, None)
        self.link.share.blocked.pop(self, None)
