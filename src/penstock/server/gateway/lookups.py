"""What remote clients ask of logs (`ipc.lookups`), answered from files and shared memory.

Owns nothing: each answer is made from what stands there at that moment. It reads indexes and batch
headers, never the node, and never a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.errors import UnknownTopicError
from penstock.ipc import lookups as lk
from penstock.ipc.waits import run
from penstock.logs import LocalLogs, Log
from penstock.server.gateway.membership import Membership
from penstock.session import Session

AGES_BUDGET: Final = 0.2
"""Seconds of one request that asks when records were appended."""


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
            finding = logs.finding_time(log, request.timestamp, committed=request.committed)
            return lk.TimeLookedUp(run(finding))
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
            return lk.PositionsLookedUp([list(positions.items()) for positions in found])


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


def _of(session: Session, place: lk.LogPlace) -> Log:
    return _log(session, place.page, place.topic_id, place.partition)


def _log(session: Session, index: int, topic_id: bytes, partition: int) -> Log:
    page = session.page(index)
    if page.identity != (topic_id, partition):
        raise UnknownTopicError(
            f"page {index} is not that of partition {partition} of topic {topic_id.hex()} (any "
            "more): ask for the topic again"
        )
    return Log(page, topic_id, partition)
