"""Answers remote clients' questions about logs (`ipc.lookups`) from files and shared memory.

Owns nothing: each answer comes from the state at that moment. It reads indexes and batch headers,
and never asks the node. Of records it reads only their times, which may expand the body of one
batch at a time. A look-up by time that takes long is answered in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.client.consumer.logs import LocalLogs, LogHandle
from penstock.client.session import Session
from penstock.core.errors import UnknownTopicError
from penstock.ipc import lookups as lk
from penstock.ipc.waits import run
from penstock.server.gateway.membership import Membership

AGES_BUDGET: Final = 0.2
"""Seconds of one request that asks when records were appended."""
TIME_BUDGET: Final = 0.2
"""Seconds of one request that asks for a time, and then the step that is begun: at most one batch
that is looked into."""


def answer(session: Session, membership: Membership, request: lk.Request) -> lk.Reply:
    """The answer to `request` by what `session`, an attachment to the node, sees.

    Raises `NotLeaderError` where a partition is led elsewhere, `UnknownTopicError` where a page is
    not that partition's, `StorageError`.
    """
    for place in _places(request):
        page = session.page(place.page)
        membership.check(page, place.topic_id, place.partition)
    logs = LocalLogs(session)
    match request:
        case lk.LookUpTime():
            log = _log(session, request.page, request.topic_id, request.partition)
            at = logs.find_time(
                log,
                request.timestamp,
                committed=request.committed,
                start=request.start,
                budget=TIME_BUDGET,
            )
            return lk.TimeLookedUp(at.offset, again=not at.is_over)
        case lk.LookUpAppends():
            places = [(_of(session, place), place.offset) for place in request.places]
            return lk.AppendsLookedUp(run(logs.dating(places, AGES_BUDGET)))
        case lk.LookUpSegments():
            place = request.place
            return lk.SegmentsLookedUp(*run(logs.sizing(_of(session, place), place.offset)))
        case lk.LookUpPages():
            return lk.PagesLookedUp(request.pages, list(run(logs.looking_at_disk())))
        case lk.LookUpPositions():
            found = run(logs.positioning(request.clients))
            return lk.PositionsLookedUp(
                [list(each.positions.items()) for each in found],
                [None if each.age is None else round(each.age * 1e6) for each in found],
            )


def _places(request: lk.Request) -> Sequence[lk.LogPlace | lk.LookUpTime]:
    """The partitions that it asks about."""
    match request:
        case lk.LookUpTime():
            return (request,)
        case lk.LookUpAppends():
            return request.places
        case lk.LookUpSegments():
            return (request.place,)
        case _:  # pages and positions are each broker's own
            return ()


def _of(session: Session, place: lk.LogPlace) -> LogHandle:
    return _log(session, place.page, place.topic_id, place.partition)


def _log(session: Session, index: int, topic_id: bytes, partition: int) -> LogHandle:
    page = session.page(index)
    if page.identity != (topic_id, partition):
        raise UnknownTopicError(
            f"page {index} is not that of partition {partition} of topic {topic_id.hex()} (any "
            "more): ask for the topic again"
        )
    return LogHandle(page, topic_id, partition)
