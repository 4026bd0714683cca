"""Single records of a share group in a partition, as an operator looks at them: without a lease."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.cluster.shares.state import ShareState
from penstock.cluster.shares.waiting import record_of
from penstock.cluster.shares.window import BEHIND, CONDEMNED, LEASED, READY, SUSPECT, WAITING

PEEKED: Final = {
    "ready": (READY, SUSPECT),
    "behind": (BEHIND,),
    "waiting": (WAITING,),
    "leased": (LEASED,),
    "condemned": (CONDEMNED,),
}
"""States that one asks for, and those of the window."""
LOOK_MAX: Final = 50_000
"""Waiting records that one look goes through, the soonest ones."""
_NAMES: Final = {state: name for name, states in PEEKED.items() for state in states}


class PeekedRecord(NamedTuple):
    """`due_us`: of one that waits. `member`, `at_us`: who has a leased one, and since when.
    `reason`: of its last failure."""

    offset: int
    state: str
    deliveries: int
    due_us: int = 0
    member: str = ""
    at_us: int = 0
    reason: str = ""


def peeked(state: ShareState, name: str, first: int, count_max: int) -> list[PeekedRecord]:
    """Records in the state of this name ("": in any), from an offset on, in order."""
    states = PEEKED[name] if name else tuple(_NAMES)
    here = [kind for kind in states if kind != WAITING]
    rows = islice(state.window.listed(here, first), count_max) if here else ()
    found = [
        _told(state, PeekedRecord(offset, _NAMES[kind], deliveries), holder)
        for offset, kind, deliveries, holder in rows
    ]
    if WAITING in states:
        waiting = map(record_of, islice(state.waiting, LOOK_MAX))
        found += [
            PeekedRecord(one.offset, _NAMES[WAITING], one.deliveries, one.due_us)
            for one in nsmallest(
                count_max, (it for it in waiting if it.offset >= first), attrgetter("offset")
            )
        ]
        found = sorted(found)[:count_max]
    return [_with_reason(state, one) for one in found]


def _told(state: ShareState, one: PeekedRecord, holder: int) -> PeekedRecord:
    if one.state != _NAMES[LEASED]:
        return one
    lease = state.leases[holder]
    return one._replace(member=lease.member, at_us=lease.at_us)


def _with_reason(state: ShareState, one: PeekedRecord) -> PeekedRecord:
    failures = state.failures.get(one.offset)
    return one._replace(reason=failures[-1].reason) if failures else one
