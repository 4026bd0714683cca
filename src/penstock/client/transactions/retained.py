"""Checks before a commit that the logs still have the records of a transaction.

A power cut of the node's host takes records that were appended and not synced, and a producer on
another host lives on. Each log that was cut goes on in another leader epoch than the one that
acknowledged. Only looks; the caller knows by which session the answer counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.client.producer.routes import PartitionRoute
from penstock.client.session import Session
from penstock.core import errors as er


def check_kept(
    session: Session, sent: Iterable[PartitionRoute], transactional_id: str, timeout: float
) -> None:
    """Raises `TransactionError` where a log is another one now, `PenstockTimeout` while one of
    these is not open yet. Topics that were deleted since are passed over."""
    deadline = time.monotonic() + timeout
    topics: dict[tuple[str, bytes], list[PartitionRoute]] = {}
    for route in sent:
        if route.leader_epoch is not None:
            topics.setdefault((route.topic, route.topic_id), []).append(route)
    for (name, topic_id), routes in topics.items():
        try:
            found = session.find_topic(name, max(0.05, deadline - time.monotonic()))
        except er.UnknownTopicError:
            continue
        if found.topic_id != topic_id:
            continue
        for route in routes:
            page = session.page(found.pages[route.partition])
            if page.identity != (topic_id, route.partition):
                raise er.PenstockTimeout(
                    f"{route!r} is not open yet at {session.socket}, and may have lost records of "
                    f"the transaction of {transactional_id!r} to a power cut"
                )
            if page.leader_epoch != route.leader_epoch:
                raise er.TransactionError(
                    f"the transaction of {transactional_id!r} was aborted: the host of the node at "
                    f"{session.socket} lost its power, and {route!r} may have lost records of it "
                    f"that were appended and not synced (leader epoch {route.leader_epoch}, now "
                    f"{page.leader_epoch}). Send them again in another transaction; with "
                    'transaction_durability="fsynced" a commit waits for the sync'
                )
