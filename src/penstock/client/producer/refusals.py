"""The kinds of a log's refusals of batches, and their error messages.

Says what each means for the batch and those behind it. Decides nothing: the sender does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.client.producer.routes import Batch, PartitionRoute
from penstock.client.remote.address import Place
from penstock.core import errors as er
from penstock.core.storage import advice
from penstock.ipc import layout as lo

_ADVICE: Final = {
    er.ErrorCode.UNKNOWN_PARTITION: ": the topic was deleted; create it again",
    er.ErrorCode.WRONG_TOPIC_ID: ": the topic was deleted and created again since",
    er.ErrorCode.BATCH_TOO_LARGE: ": make batch_bytes smaller",
    er.ErrorCode.PARTITION_OFFLINE: ": its log is offline; see the node's log for the reason",
    er.ErrorCode.NOT_LEADER: ": no broker leads it now, and this producer does not send again",
    er.ErrorCode.NOT_COMMITTED: ": it is in the leader's log, and on too few replicas for now",
    er.ErrorCode.DUPLICATE_TOO_OLD: ": it was sent before, but too long ago to say where it is",
    er.ErrorCode.UNKNOWN_PRODUCER: ": the log does not know this producer (any more); if the batch "
    "was sent before, it may be written",
}
TOPIC_GONE: Final = frozenset({er.ErrorCode.UNKNOWN_PARTITION, er.ErrorCode.WRONG_TOPIC_ID})
UNSEEN: Final = frozenset(
    {
        er.ErrorCode.PARTITION_OFFLINE,
        er.ErrorCode.ACCESS_DENIED,
        er.ErrorCode.NAMESPACE_FULL,
    }
)
"""Refusals that say nothing of the batch, and whose log never saw it."""
NO_ROOM: Final = "found no room in the lane within"
LACKS: Final = {
    er.ErrorCode.NOT_LEADER: "found no leader within",
    er.ErrorCode.NOT_COMMITTED: "were on too few replicas within",
}
"""Texts about a batch that was sent back (`SENT_BACK`) and then expires."""
BY_GAP: Final = frozenset({er.ErrorCode.OUT_OF_ORDER_SEQUENCE, er.ErrorCode.UNKNOWN_PRODUCER})
"""A log's answers to batches that follow one it never saw."""


def ailment(routes: Iterable[PartitionRoute]) -> str:
    """Says which of these partitions takes nothing, and why; empty if all do."""
    for route in routes:
        status = route.state.status
        if status not in (lo.STATUS_ONLINE, lo.STATUS_ABSENT):
            name = lo.STATUS_NAMES.get(status, str(status))
            return f": {route!r} is {name}{advice(route.state.errno)}"
    return ""


def refusal(
    route: PartitionRoute, place: Place, count: int, code: er.ErrorCode
) -> er.PenstockError:
    """Returns the error of a batch of `count` records that was refused."""
    if code is er.ErrorCode.ACCESS_DENIED:
        return er.AccessDeniedError(
            f"{route!r} at {place} refused a batch of {count} records: this client's principal may "
            f"not write there (`penstock acl add PRINCIPAL write topic {route.topic}`)"
        )
    if code is er.ErrorCode.NAMESPACE_FULL:
        return er.ResourceLimitError(
            f"{route!r} at {place} refused a batch of {count} records: its namespace has as many "
            "bytes on the disk as its limit disk_bytes_max allows: delete or trim topics, shorten "
            "their retention, or have the node's operator raise it (`penstock quota limit "
            "NAMESPACE --disk-bytes-max SIZE`), then send again"
        )
    return er.ProduceError(
        f"{route!r} at {place} refused a batch of {count} records: {code.name.lower()}"
        f"{_ADVICE.get(code, '')}",
        code,
    )


def unsent(batch: Batch, seconds: float, why: str) -> er.DeliveryTimeout:
    """Returns the error of a batch that waited too long for a lane."""
    route = batch.route
    missed = route.lacks if route.ask_at else NO_ROOM
    fate = "were not sent again; they may be written" if batch.flew else "were not sent"
    return er.DeliveryTimeout(
        f"{batch.count} records for {route!r} {missed} {seconds} s and {fate}{why}"
    )


def unanswered(batch: Batch, seconds: float, why: str) -> er.DeliveryTimeout:
    """Returns the error of a batch that waited too long for its answer."""
    return er.DeliveryTimeout(
        f"{batch.count} records for {batch.route!r} were not acknowledged within {seconds} s; they "
        f"may still be written{why}"
    )


def lost(batch: Batch) -> er.ProduceError:
    """Returns the error of a batch whose lane is gone."""
    return er.ProduceError(
        f"the lane to {batch.route!r} was lost with {batch.count} records in it; they may or may "
        "not have been written"
    )
