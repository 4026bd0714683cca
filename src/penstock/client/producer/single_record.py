"""The short way of single records: with linger 0 and little in flight, straight into the lane.

A record that leaves alone needs no box, no lid and no choice between runs. The entry kept for it
is made after the doorbell of its writer, and so while the writer already works.
"""

from __future__ import annotations

import os
import time

from penstock.client.producer.batch_builder import SealSettings, seal_one
from penstock.client.producer.delivery import Awaited, Box
from penstock.client.producer.partitioner import partition_of
from penstock.client.producer.record_options import RecordFields
from penstock.client.producer.routes import Batch, PartitionRoute, TopicRoutes
from penstock.client.producer.sender import Sender


def _route_of(topic: TopicRoutes, key: bytes | None, fields: RecordFields) -> PartitionRoute:
    """Chooses a record's route as `batch_builder.choose` does."""
    partition = fields.partition
    if partition is None:
        work = fields.work
        ident = work.dedup_id if key is None and work is not None else key
        count = len(topic.routes)
        partition = topic.next_sticky() if ident is None else partition_of(ident, count)
        if topic.spread and key is not None and key in topic.spread:
            partition = topic.spread_on(key, partition)
    return topic.routes[partition]


def express(
    awaited: Awaited,
    sender: Sender,
    topic: TopicRoutes,
    settings: SealSettings,
    value: bytes | None,
    key: bytes | None,
    fields: RecordFields,
    timeout: float,
) -> Box | None:
    """Sends one record now; returns its box, None where it has to queue.

    Raises `RecordTooLargeError` with nothing sent. Lock of the producer held.
    """
    routes = topic.routes
    route = routes[0] if len(routes) == 1 else _route_of(topic, key, fields)
    link = route.link
    is_open = link is not None and not route.pending and route.ask_at is None
    is_open = is_open and route.may_fly(route.epoch)
    if link is None or not is_open or link.is_crowded:
        return None
    if len(link.flights) >= sender.pace.eager_max:
        return None
    now_us = time.time_ns() // 1000
    sequence = route.next_sequence
    link.begin(route)  # an interrupt leaves neither a gap nor a sequence shared by two: see `mend`
    encoded = seal_one(value, key, fields, now_us, route, settings)
    flight = link.write(route.page, encoded)
    if flight is not None and not link.wake_writer():
        os.sched_yield()  # it looks for records, and may wait for this very processor to do so
    now = time.monotonic()
    box = Box(awaited, route.topic, 0, now_us, now, now + timeout)
    box.sealed, box.count = True, 1
    batch = Batch(box, route, encoded, 1, sequence)
    box.batches.append(batch)
    if flight is None:
        link.writing = None
        sender.post(box.batches)
    else:
        sender.launched(link, batch, flight)
    return box
