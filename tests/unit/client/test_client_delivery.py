"""Deliveries: from a record to its outcome, at every moment of its way."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import pytest

from penstock.client.producer.callbacks import FAILURES_KEPT, Callbacks, Failures
from penstock.client.producer.delivery import (
    BatchDelivery,
    BatchReceipt,
    Box,
    Delivery,
    Receipt,
)
from penstock.client.producer.routes import Batch, PartitionRoute
from penstock.core.encode import encode_batch
from penstock.core.errors import ForkedClientError, PenstockTimeout, ProduceError
from penstock.core.header import BatchIdentity

TOPIC_ID = bytes(16)


class Owner:
    """Stands for the producer: waits never."""

    def __init__(self):
        self.waits = []
        self.outcome = None
        self.called = []

    def await_box(self, box, ordinal, timeout):
        self.waits.append((ordinal, timeout))
        if self.outcome is not None:
            raise self.outcome

    def call_when_done(self, delivery, box, callback):
        self.called.append((delivery, box, callback))


@pytest.fixture
def owner():
    return Owner()


def box_of(owner, *counts):
    """A sealed box whose batches hold so many records each, in partitions 0, 1, ..."""
    box = Box(cast(Any, owner), "t", 0, 0, 0.0, 12.5)
    box.sealed = True
    box.count = sum(counts)
    sequence = 0
    for partition, count in enumerate(counts):
        route = PartitionRoute("t", TOPIC_ID, partition, 0, 0, cast(Any, None))
        encoded = encode_batch([b"x"] * count, BatchIdentity(TOPIC_ID, 0), base_timestamp=0)
        box.batches.append(Batch(box, route, encoded, count, sequence))
        sequence += count
    if len(counts) > 1:
        which = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        where = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        box.placement = (which, where)
    return box


def finish(batch, base_offset=None, timestamp=None, error=None, level=None):
    batch.base_offset, batch.append_timestamp, batch.error = base_offset, timestamp, error
    batch.durability = f"level of {batch.route.partition}"
    batch.durability = level or f"level of {batch.route.partition}"
    batch.done = True


def test_a_receipt_names_the_offset_of_its_very_record(owner):
    box = box_of(owner, 3, 2)
    finish(box.batches[0], 100, 7)
    finish(box.batches[1], 500, 8)
    receipts = [Delivery(box, ordinal).result(1.5) for ordinal in range(5)]
    assert receipts == [
        *(Receipt("t", 0, 100 + index, "level of 0", 7) for index in range(3)),
        *(Receipt("t", 1, 500 + index, "level of 1", 8) for index in range(2)),
    ]
    assert owner.waits == [(ordinal, 1.5) for ordinal in range(5)]


def test_overtaken_ordinals_lead_to_the_record_that_was_sent(owner):
    box = box_of(owner, 3)
    box.order = {0: 2, 5: 0, 3: 1}  # 1, 2 and 4 came too late
    finish(box.batches[0], 10, 0)
    assert [Delivery(box, ordinal).result().offset for ordinal in (0, 5, 3)] == [12, 10, 11]
    assert [ordinal for ordinal in range(7) if box.holds(ordinal)] == [0, 3, 5]


def test_at_level_ring_there_is_no_offset(owner):
    box = box_of(owner, 2)
    finish(box.batches[0], 100, 7, level="ring")  # its answer came, and promises no more
    assert Delivery(box, 1).result() == Receipt("t", 0, None, "ring", None)


def test_done_is_known_record_by_record(owner):
    box = box_of(owner, 3, 2)
    deliveries = [Delivery(box, ordinal) for ordinal in range(5)]
    assert not any(delivery.done() for delivery in deliveries)
    finish(box.batches[1], 0, 0)
    assert [delivery.done() for delivery in deliveries] == [False, False, False, True, True]
    assert not box.done
    assert (repr(deliveries[0]), repr(deliveries[4])) == (
        "<Delivery to 't': pending>",
        "<Delivery to 't': done>",
    )
    finish(box.batches[0], 0, 0)
    assert all(delivery.done() for delivery in deliveries)
    assert box.done
    assert owner.waits == [], "done never waits"


def test_nothing_is_known_of_a_box_that_is_open_or_being_encoded(owner):
    open_box = Box(cast(Any, owner), "t", 0, 0, 0.0, 0.0)
    assert not open_box.done
    assert not Delivery(open_box, 0).done()
    encoding = box_of(owner, 2, 2)
    batches, encoding.batches, encoding.placement = encoding.batches, [], None
    assert not Delivery(encoding, 3).done()
    assert repr(Delivery(encoding, 3)) == "<Delivery to 't': pending>"
    encoding.batches.append(batches[0])
    assert not Delivery(encoding, 3).done()


def test_a_failed_batch_fails_its_records_and_no_others(owner):
    box = box_of(owner, 2, 2)
    error = ProduceError("refused")
    finish(box.batches[0], 5, 5)
    finish(box.batches[1], error=error)
    assert Delivery(box, 1).exception() is None
    assert Delivery(box, 2).exception() is error
    with pytest.raises(ProduceError, match="refused"):
        Delivery(box, 3).result()
    assert Delivery(box, 0).result().offset == 5
    assert box.batches[1].unseen() == ("t", 1, error, 0), "both were looked at"


def test_a_failed_box_fails_all_its_records(owner):
    box = box_of(owner, 2, 2)
    assert box.fail(ValueError("cannot be encoded")) is box
    for ordinal in range(3):
        delivery = Delivery(box, ordinal)
        assert delivery.done()
        with pytest.raises(ValueError, match="encoded"):
            delivery.result()
    assert isinstance(Delivery(box, 3).exception(), ValueError)
    assert box.unseen() == ("t", -1, box.error, 0)
    with pytest.raises(ValueError, match="encoded"):
        BatchDelivery(box).result()


def test_a_wait_that_runs_out_is_raised_and_never_an_outcome(owner):
    owner.outcome = PenstockTimeout("too slow")
    delivery = Delivery(box_of(owner, 1), 0)
    with pytest.raises(PenstockTimeout):
        delivery.result(0.5)
    with pytest.raises(PenstockTimeout):
        delivery.exception(0.5)


@pytest.mark.rule(7)
def test_rule_7_a_delivery_of_the_parent_is_an_error_in_a_forked_child(owner):
    owner.outcome = ForkedClientError("made before fork()")
    delivery = Delivery(box_of(owner, 1), 0)
    with pytest.raises(ForkedClientError):
        delivery.result()
    assert delivery.exception() is owner.outcome


def test_what_was_looked_at_is_counted_for_the_report_of_flush(owner):
    box = box_of(owner, 5)
    error = ProduceError("refused")
    finish(box.batches[0], error=error)
    assert box.batches[0].unseen() == ("t", 0, error, 5)
    for ordinal in (0, 3):
        assert Delivery(box, ordinal).exception() is error
    assert box.batches[0].unseen() == ("t", 0, error, 3)
    with pytest.raises(ProduceError):
        BatchDelivery(box).result()
    assert box.batches[0].unseen() == ("t", 0, error, 0)


def test_a_batch_delivery_has_a_receipt_for_every_run(owner):
    box = box_of(owner, 3, 2)
    delivery = BatchDelivery(box)
    assert (delivery.done(), repr(delivery)) == (False, "<BatchDelivery to 't': pending>")
    finish(box.batches[0], 100, 7)
    assert not delivery.done()
    finish(box.batches[1], None, None)
    assert (delivery.done(), repr(delivery)) == (True, "<BatchDelivery to 't': done>")
    assert delivery.result(2.0) == [
        BatchReceipt("t", 0, 100, 3, "level of 0", 7),
        BatchReceipt("t", 1, None, 2, "level of 1", None),
    ]
    assert owner.waits == [(None, 2.0)]


def test_a_batch_delivery_raises_its_first_error_after_all_are_known(owner):
    box = box_of(owner, 1, 1, 1)
    finish(box.batches[0], 1, 1)
    finish(box.batches[1], error=ProduceError("first"))
    finish(box.batches[2], error=ProduceError("second"))
    with pytest.raises(ProduceError, match="first"):
        BatchDelivery(box).result()
    assert [batch.looked_at for batch in box.batches] == [1, 1, 1]


def test_a_batch_delivery_of_nothing_is_done(owner):
    box = Box(cast(Any, owner), "t", 0, 0, 0.0, 0.0)
    box.sealed = True
    assert BatchDelivery(box).done()
    assert BatchDelivery(box).result() == []


def test_callbacks_are_called_once_in_order_and_their_errors_are_logged(owner, caplog):
    box = box_of(owner, 2)
    first, second = Delivery(box, 0), Delivery(box, 1)
    called = []

    def fails(delivery):
        called.append(delivery)
        raise RuntimeError("of the user's making")

    box.callbacks += [(first, fails), (second, called.append)]
    callbacks = Callbacks()
    callbacks.run()
    callbacks.take(box)
    assert (len(callbacks), box.callbacks, called) == (2, [], [])
    with caplog.at_level(logging.ERROR):
        callbacks.run()
    callbacks.take(box)
    callbacks.run()
    assert called == [first, second]
    assert len(callbacks) == 0
    assert "of the user's making" in caplog.text


def failed_box(owner, partition, error):
    box = box_of(owner, 2)
    box.batches[0].route.partition = partition
    finish(box.batches[0], error=error)
    return box


def test_failures_of_which_nobody_asks_are_told_in_full_and_kept_in_part(owner):
    failures = Failures()
    for number in range(5 * FAILURES_KEPT):
        box = failed_box(owner, number % 3, ProduceError(f"number {number}"))
        failures.note(box.batches[0])
    assert len(failures._kept) <= 2 * FAILURES_KEPT
    error = failures.error()
    assert error is not None
    assert "10000 records were not delivered; first: t-0: number 0" in str(error)
    assert sum(entry[3] for entry in error.failed) == 10 * FAILURES_KEPT
    assert {entry[:2] for entry in error.failed} == {("t", 0), ("t", 1), ("t", 2)}
    assert len(error.failed) <= 2 * FAILURES_KEPT + 3


def test_failures_that_somebody_has_looked_at_are_not_kept(owner):
    failures = Failures()
    for number in range(3 * FAILURES_KEPT):
        box = failed_box(owner, 0, ProduceError(f"number {number}"))
        failures.note(box.batches[0])
        for ordinal in range(2):
            assert Delivery(box, ordinal).exception() is box.batches[0].error
    assert len(failures._kept) <= 2 * FAILURES_KEPT
    assert failures.error() is None


def test_a_callback_is_handed_to_the_owner(owner):
    box = box_of(owner, 1)
    delivery = Delivery(box, 0)
    delivery.add_done_callback(print)
    assert owner.called == [(delivery, box, print)]
