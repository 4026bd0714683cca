"""Requests of one attachment, one after the other: their recipients and their answers.

    request ──> parts, one for each broker that has to do with it ──answers──> whole ──> complete

A node that is alone gets each request as it is. In a cluster requests about groups and transactions
go to the coordinator, look-ups to the leaders of their partitions (one that names several is
divided). All others go to the attachment's home broker. A broker that denies its role is doubted.
It is asked again, or another one, within `PATIENCE`: nothing was decided. An answer that names
partitions is handed on when their leaders have reported their state.

Owns what is asked and not answered. Used by the carrier's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock.client.remote.branches import Branch, Reach
from penstock.client.remote.fetcher import RemoteFetcher
from penstock.client.remote.leaders import COORDINATOR
from penstock.client.remote.mirror import MirroredSlot
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr
from penstock.core.errors import NotConnectedError, NotLeaderError
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh

REQUESTS_MAX: Final = 256
"""Requests of one attachment that wait for the one before."""
ANSWER_WITHIN: Final = 60.0
"""Seconds that a gateway is given for an answer; how long its client waits is its own affair."""
PATIENCE: Final = 4.0
"""Seconds within which somebody has to be found who answers a request."""
COMPLETE_WITHIN: Final = 2.0
"""Seconds for which an answer is held back until the state of its partitions is known."""
NOT_HOME: Final = 0.1
"""Seconds until a broker is asked again that could not answer for the cluster."""
TOPICS_KEPT: Final = 64
HOME: Final = -2
"""In the place of a page: the attachment's home broker."""
BROKERS: Final = -10
"""In the place of a page: the broker whose number, taken from this, makes it."""

_DECODER: Final = msgspec.msgpack.Decoder(ms.NodeMessage)
_ENCODER: Final = msgspec.msgpack.Encoder()
Reply = Any


class _Round:
    """Parts of one request that are asked together. `wanted`: what is not asked yet, by place in
    the request: a page, `COORDINATOR` or `HOME`. `make`: the request for some of these places."""

    def __init__(
        self, wanted: dict[int, int], make: Callable[[list[int]], msgspec.Struct], *,
        at_once: int, until: float,
    ) -> None:  # fmt: skip
        self.wanted = wanted
        self.make = make
        self.at_once = at_once
        self.until = until
        self.not_before = 0.0
        self.under_way: dict[int, tuple[Branch, dict[int, int]]] = {}
        self.replies: list[tuple[list[int], Reply]] = []
        self.refused: Reply = None


class RequestRouter:
    """The open requests of one attachment. `home` is its home broker, and `reads` says whether its
    client is a consumer. `say` tells the client, `open_lane` answers requests for a lane."""

    def __init__(
        self, view: ClusterView, reach: Reach, far: RemoteFetcher, slot: MirroredSlot, *,
        home: int, reads: bool,
        say: Callable[[Reply], None], open_lane: Callable[[ms.OpenLane], None],
    ) -> None:  # fmt: skip
        self._view = view
        self._reach = reach
        self._far = far
        self._slot = slot
        self._home = home
        self._reads = reads
        self._tell = say
        self._open_lane = open_lane
        self.is_known = False
        """Whether a coordinator has answered, which then has to see its client alive."""
        self._requests: deque[msgspec.Struct] = deque()
        self._request: msgspec.Struct | None = None
        self._round: _Round | None = None
        self._answer: Reply = None
        """To the request, while it is completed."""
        self._asked = 0
        self._topics: dict[str, list[int]] = {}
        """The pages of topics that were asked for last."""

    @property
    def is_waiting(self) -> bool:
        """Returns whether a request waits for a broker that can answer it."""
        return self._round is not None and bool(self._round.wanted)

    def take(self, message: msgspec.Struct) -> bool:
        """Takes a request of the client; it is answered after those before it. False: too many
        wait."""
        self._requests.append(message)
        return len(self._requests) <= REQUESTS_MAX

    def clear(self) -> None:
        """Forgets all requests: nobody waits for answers any more."""
        self._requests.clear()
        self._request = self._round = self._answer = None

    def pump(self, now: float) -> None:
        """Sends the requests that can be sent now."""
        self._ask_on(now)
        self._tell_why()

    def _ask_on(self, now: float) -> None:
        while True:
            if self._round is None:
                if not self._requests:
                    return
                message = self._requests.popleft()
                if isinstance(message, ms.OpenLane):
                    self._open_lane(message)
                    continue
                self._request, self._answer = message, None
                self._round = self._first_round(message, now)
            if not self._go_on(self._round, now):
                return

    def _tell_why(self) -> None:
        """Notes why a request waits, for a client whose patience ends."""
        round_ = self._round
        self._far.waits_for = self._nobody(round_).message if round_ and round_.wanted else ""

    # --- to whom ---
    def _first_round(self, message: msgspec.Struct, now: float) -> _Round:
        wanted, make, at_once = {0: HOME}, lambda _: message, 1
        until = now + PATIENCE
        if not self._view.is_cluster:
            return _Round(wanted, make, at_once=at_once, until=until)
        if isinstance(message, (co.Request, sh.Request, lk.LookUpPositions)):
            wanted = {0: COORDINATOR}
        elif isinstance(message, op.Request) and message.broker is not None:
            wanted = {0: BROKERS - message.broker}
        elif isinstance(message, lk.LookUpTime):
            wanted = {0: message.page}
        elif isinstance(message, lk.LookUpSegments):
            wanted = {0: message.place.page}
        elif isinstance(message, lk.LookUpPages) and message.pages:
            return self._look_at(message.pages, until)
        elif isinstance(message, lk.LookUpAppends) and message.places:
            places = message.places
            return _Round(
                {at: place.page for at, place in enumerate(places)},
                lambda some: lk.LookUpAppends([places[at] for at in some]),
                at_once=lk.PLACES_AT_ONCE, until=until,
            )  # fmt: skip
        elif isinstance(message, ms.TrimPartition):
            pages = self._topics.get(message.name, [])
            if 0 <= message.partition < len(pages):
                wanted = {0: pages[message.partition]}
        return _Round(wanted, make, at_once=at_once, until=until)

    @staticmethod
    def _look_at(pages: Sequence[int], until: float) -> _Round:
        return _Round(
            dict(enumerate(pages)), lambda some: lk.LookUpPages([pages[at] for at in some]),
            at_once=lk.PAGES_AT_ONCE, until=until,
        )  # fmt: skip

    def _broker_for(self, what: int, now: float) -> int | None:
        """Returns the broker that answers for it; None while none is known."""
        if what == HOME:
            return self._home
        if what < BROKERS:
            return BROKERS - what
        brokers = self._view.brokers
        if what == COORDINATOR and brokers.leader(what) == fr.NOBODY:
            return self._home  # which makes it come to be
        broker = brokers.settled(what, now)
        return None if broker == fr.NOBODY else broker

    # --- asking ---
    def _go_on(self, round_: _Round, now: float) -> bool:
        """Takes one step; True: there is another one to take at once."""
        if round_.wanted and now >= round_.not_before and round_.refused is None:
            self._ask(round_, now)
        is_late = self._answer is not None and now >= round_.until
        if round_.under_way and not is_late:
            return False
        if round_.wanted and round_.refused is None and now < round_.until:
            return False
        self._round = None
        if self._answer is not None:
            self._completed(round_)
        elif round_.refused is not None or round_.wanted:
            self._say(round_.refused or self._nobody(round_))
        else:
            self._answered(round_, now)
        return True

    def _ask(self, round_: _Round, now: float) -> None:
        by_broker: dict[int, dict[int, int]] = {}
        for at, what in round_.wanted.items():
            broker = self._broker_for(what, now)
            if broker is not None:
                by_broker.setdefault(broker, {})[at] = what
        for broker, places in by_broker.items():
            branch = self._reach(broker)
            if branch is None:
                continue
            left = list(places)
            while left:
                some, left = left[: round_.at_once], left[round_.at_once :]
                self._asked += 1
                round_.under_way[self._asked] = branch, {at: places[at] for at in some}
                body = msgspec.Raw(_ENCODER.encode(round_.make(some)))
                branch.send(fr.Ask(branch.number, self._asked, ANSWER_WITHIN, body))
            for at in places:
                del round_.wanted[at]

    # --- answers ---
    def answer(self, branch: Branch, message: fr.Answer, now: float) -> None:
        """Takes an answer; its pages are published already."""
        round_ = self._round
        found = None if round_ is None else round_.under_way.get(message.request)
        if round_ is None or found is None or found[0] is not branch:
            return
        del round_.under_way[message.request]
        places = found[1]
        if message.proof and isinstance(self._request, co.AddPartitions):
            self._view.proofs.learn(self._request, message.proof)
        if not self._view.is_cluster:
            self._round = None
            self._tell(message.body)
        else:
            self._take(round_, branch, places, message, now)
        self.pump(now)

    def _take(
        self, round_: _Round, branch: Branch, places: dict[int, int], message: fr.Answer, now: float
    ) -> None:
        try:
            reply: Reply = _DECODER.decode(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            reply = message.body  # the client judges it
        if isinstance(reply, ms.Refused):
            if reply.error != NotLeaderError.__name__:
                round_.refused = reply
                return
            for at, what in places.items():
                if what == HOME or self._view.brokers.leader(what) == fr.NOBODY:
                    round_.not_before = now + NOT_HOME
                else:
                    self._view.brokers.doubt(what, branch.broker, now)
                round_.wanted[at] = what
            if now >= round_.until:
                round_.refused = ms.Refused(NotConnectedError.__name__, reply.message)
            return
        if isinstance(reply, lk.PagesLookedUp):
            following = {page.page for page in message.pages if page.status == lo.STATUS_FOLLOWING}
            for at, what in list(places.items()):
                if what in following:  # its node knows already, and its writer not yet
                    self._view.brokers.doubt(what, branch.broker, now)
                    round_.wanted[at] = places.pop(at)
        for what in places.values():
            self._view.brokers.trust(what)
        if COORDINATOR in places.values() and not branch.serves_groups:
            branch.serves_groups = self.is_known = True
            self._slot.slot.copy_notice(branch.notice)
        round_.replies.append((list(places), reply))

    def left(self, branch: Branch, why: str, now: float) -> None:
        """Handles the end of a branch: the result of requests sent by it is unknown."""
        round_ = self._round
        if round_ is None:
            return
        for number, (by, places) in list(round_.under_way.items()):
            if by is branch:
                del round_.under_way[number]
                if isinstance(self._request, lk.Request) or self._answer is not None:
                    round_.wanted.update(places)  # it changes nothing
                else:
                    round_.refused = ms.Refused(NotConnectedError.__name__, why)
        self.pump(now)

    def refused(self, broker: int, error: str, message: str, now: float) -> None:
        """Refuses the requests for a broker that refused a branch."""
        round_ = self._round
        if round_ is None:
            return
        if any(self._broker_for(what, now) == broker for what in round_.wanted.values()):
            round_.refused = ms.Refused(error, message)
            self.pump(now)

    # --- wholes ---
    def _answered(self, round_: _Round, now: float) -> None:
        """Joins the answers of all parts."""
        request = self._request
        reply = round_.replies[0][1]
        if isinstance(request, lk.LookUpPages) and isinstance(reply, lk.PagesLookedUp):
            found = {page for _, part in round_.replies for page in part.pages}
            reply = lk.PagesLookedUp([page for page in request.pages if page in found], reply.disk)
        elif isinstance(request, lk.LookUpAppends) and isinstance(reply, lk.AppendsLookedUp):
            times: list[float | None] = [None] * len(request.places)
            for places, part in round_.replies:
                for at, time in zip(places, part.times, strict=False):
                    times[at] = time
            reply = lk.AppendsLookedUp(times)
        pages = self._named_in(reply)
        if not pages:
            self._say(reply)
            return
        self._answer = reply
        self._round = self._look_at(pages, now + COMPLETE_WITHIN)

    def _named_in(self, reply: Reply) -> list[int]:
        """Returns the partitions of a reply whose state has to be known before the client
        hears it."""
        match reply:
            case ms.TopicFound(topic=topic):
                self._topics.pop(topic.name, None)
                self._topics[topic.name] = topic.pages
                if len(self._topics) > TOPICS_KEPT:
                    del self._topics[next(iter(self._topics))]
                return topic.pages
            case co.GroupAssignment(partitions=owned):
                return [
                    one.page
                    for one in owned
                    if one.offset == co.NO_OFFSET or not self._view.knows(one.page)
                ]
            case (
                co.GroupDescription(partitions=described)
                | sh.ShareDescription(partitions=described)
            ):
                return [each.page for each in described if 0 <= each.page < lo.PAGES_MAX]
        return []

    def _completed(self, round_: _Round) -> None:
        """Answers with what could be found out about its partitions."""
        answer, self._answer = self._answer, None
        for _, places in round_.under_way.values():
            round_.wanted.update(places)
        if self._reads and not all(self._view.knows(page) for page in round_.wanted.values()):
            answer = self._nobody(round_)  # it could not tell where they begin
        self._say(answer)

    def _nobody(self, round_: _Round) -> ms.Refused:
        """Returns the refusal for a request that found no broker in time."""
        what = next(iter(round_.wanted.values()))
        leader = self._view.brokers.leader(what) if what != HOME else fr.NOBODY
        name = {HOME: "the cluster", COORDINATOR: "the coordinator"}.get(
            what, f"broker {BROKERS - what}" if what < BROKERS else f"the partition on page {what}"
        )
        return ms.Refused(
            NotConnectedError.__name__,
            f"no broker answers for {name} now"
            + (f": {leader} is to, and is not reached" if leader != fr.NOBODY else "")
            + "; ask again, and see `penstock cluster describe` if that does not help",
        )

    def _say(self, reply: Reply) -> None:
        self._request = None
        self._tell(reply)
