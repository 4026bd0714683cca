"""An exception at the lines where most is at stake, and what the next call makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from interrupts.consuming_trial import PARTITIONS, ConsumingTrial, filled
from interrupts.producing_trial import ProducingTrial
from interrupts.striking import Alarmed, Interrupted, StrikeAt

from penstock import TopicConfig
from penstock.client.client import Client
from penstock.testing import Broker

STRIKES = 5
"""What goes to the partition that was struck is chosen by keys."""
TRIES_MAX = 400
"""The producer's own thread is often first, and nothing strikes it."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Broker(writers=1) as broker, broker.connect() as client:
        yield client


def topic_of(client: Client) -> str:
    topic = f"repaired-{next(_numbers)}"
    client.admin().create_topic(topic, TopicConfig(partitions=PARTITIONS))
    return topic


def strike_at(trial: Any, verb: Callable[[Any], object], function: str, text: str) -> None:
    struck = 0
    for _ in range(TRIES_MAX):
        struck += trial.round(verb, StrikeAt(function, text, Interrupted))
        if struck == STRIKES:
            break
    trial.judge()
    assert struck == STRIKES, f"struck {struck} times in {function} at {text!r}"


def flush(trial: ProducingTrial) -> None:
    trial.send("struck")
    trial.producer.flush(10)


def send(trial: ProducingTrial) -> None:
    trial.send("struck")


PLACES = {
    "before the tail of the lane moves": ("try_write", "self.last_start = tail"),
    "once the tail has moved": ("try_write", "self.next_sequence = sequence + 1"),
    "before the frame is accounted for": ("note", "self.flights[sequence] = batch"),
    "while a box is sealed": ("close", "rows = batch_builder.close_lid(box)"),
    "while an answer is taken in": ("reap", "self._settle(batch, ack)"),
    "while a batch gets its outcome": ("finish", "self.buffered -= batch.length"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_a_struck_flush_leaves_is_mended_by_the_next_call(
    client: Client, place: tuple[str, str]
) -> None:
    topic = topic_of(client)
    trial = ProducingTrial(client, topic, lambda: client.producer(delivery_timeout=10.0))
    strike_at(trial, flush, *place)


def test_a_record_that_left_alone_and_is_not_accounted_for_takes_nobodys_sequence(
    client: Client,
) -> None:
    topic = topic_of(client)
    trial = ProducingTrial(
        client, topic, lambda: client.producer(delivery_timeout=10.0, linger=0.0)
    )
    strike_at(trial, send, "express", "if flight is not None and not link.wake_writer")


def test_what_a_struck_poll_had_fetched_comes_with_the_next(client: Client) -> None:
    topic = filled(client, topic_of(client))
    trial = ConsumingTrial(client, topic, follow=False)
    strike_at(trial, lambda each: each.consumer.poll(5), "fetch", "self.is_torn = was_torn or")


def test_an_interrupt_while_records_are_sealed_again_is_no_fault_of_theirs(client: Client) -> None:
    topic, struck = topic_of(client), 0
    with client.producer(linger=5.0, delivery_timeout=10.0) as producer:
        for number in range(TRIES_MAX):
            delivery = producer.send(topic, b"%d" % number)
            sealing = StrikeAt("close", "rows = batch_builder.close_lid(box)", Interrupted)
            mending = StrikeAt("_seal_again", "rows = boxes.close(box)", Alarmed)
            for strike in (sealing, mending):
                with suppress(Interrupted, Alarmed), strike.armed():
                    producer.flush(10)
            assert delivery.result(10).offset is not None
            struck += mending.has_struck
            if struck == STRIKES:
                break
    assert struck == STRIKES


def test_a_commit_after_an_interrupted_assignment_leaves_it_out(client: Client) -> None:
    topic = filled(client, topic_of(client))
    with client.consumer(topic, group=topic, guarantee="at-least-once") as consumer:
        strike = StrikeAt("taking_on", "self._commits.place(owned)", Interrupted)
        with suppress(Interrupted), strike.armed():
            consumer.poll(3, timeout=25)
        assert strike.has_struck
        consumer.commit()
        assert set(consumer.committed().values()) <= {None}
        assert [record.offset for record in consumer.poll(3, timeout=25)] == [0, 1, 2]
