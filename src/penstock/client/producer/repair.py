"""Mends the state that an interrupted call left (see `penstock.client.producer.books`).

It trusts only facts that no interrupt can cut in half: the tail of a lane, and the fields of each
batch and each box. It rebuilds queues and counts from them. An interrupt may end this too: done
again, it comes to the same.
"""

from __future__ import annotations

import threading

from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.callbacks import Outcomes
from penstock.client.producer.delivery import Box
from penstock.client.producer.routes import Batch, PartitionRoute
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState
from penstock.core import errors as er
from penstock.core.encode import PiecedBatch


def mend(state: ProducerState, outcomes: Outcomes, sender: Sender, boxes: Boxes) -> None:
    """Mends what the lock's last holder left, ended by an interrupt or an error (see `Books`)."""
    box = boxes.closing
    for batch in [] if box is None else box.batches:
        if not batch.done:
            batch.route.batches[batch] = None
    mend_sender(sender)
    if box is not None:
        if box.error is not None and not isinstance(box.error, er.DroppedError):
            outcomes.note(box)
        elif not box.batches:
            _seal_again(state, sender, boxes, box)
        boxes.closed(box)
    outcomes.callbacks.mend()
    if not state.is_closed:
        state.nudge()


def _seal_again(state: ProducerState, sender: Sender, boxes: Boxes, box: Box) -> None:
    """Seals a box that still has its records. An error of the records shows again: in the
    producer's own thread, if not before. In the main thread it may come from a signal handler."""
    try:
        rows = boxes.close(box)
        if rows is not None:
            boxes.launch(box, rows, sender.topics.get(box.topic))
    except Exception as error:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not isinstance(error, er.PenstockError):
            state.nudge()
            raise
        boxes.fail(box, error)


def mend_sender(sender: Sender) -> None:
    """Mends the sender after an interrupt of the lock's last holder. Lanes and batches hold the
    truth, and all else follows from it. Done again, it changes nothing."""
    for link in list(sender.links.values()):
        what = link.published()
        if isinstance(what, Batch):
            sender.flies(link, what, link.first)
        elif what is not None:  # a record whose sender knows nothing of it
            what.next_to_fly = what.next_sequence
            what.has_gap = True  # if the log does not take it
        link.mend()
        link.wake_writer()
    if sender.finishing is not None:
        if sender.finishing.done:
            sender.finished(sender.finishing)
        sender.finishing = None
    for route in list(sender.routes()):
        for batch in list(route.batches):
            if batch.flight is None and isinstance(batch.encoded, PiecedBatch):
                batch.encoded = None  # its memory is gone, and who sent it was told
                batch.looked_at = batch.count
            if batch.flight is None and batch.encoded is None and not batch.done:
                sender.finish(batch, batch.error or er.PenstockError("an interrupt ended it"))
        route.mend()
    sender.retired = [route for route in dict.fromkeys(sender.retired) if not _knows(sender, route)]
    sender.buffered = sum(
        batch.length for route in sender.routes() for batch in route.batches if not batch.done
    )


def _knows(sender: Sender, route: PartitionRoute) -> bool:
    """Returns whether it is a route of a topic that is there."""
    known = sender.topics.get(route.topic)
    return known is not None and route in known.routes
