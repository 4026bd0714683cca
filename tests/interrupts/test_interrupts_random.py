"""Signals at random moments, whose handlers raise: each guarantee holds, and nothing gets stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from interrupts.consuming_trial import PARTITIONS, ConsumingTrial, commit, filled, poll
from interrupts.exact_trial import ExactTrial
from interrupts.producing_trial import ProducingTrial
from interrupts.rounds import CHOSEN, at_random
from seeds import seed_of

from penstock import TopicConfig
from penstock.testing import Broker

pytestmark = pytest.mark.timeout(0 if CHOSEN else 240, method="thread")  # it needs SIGALRM itself

RECORDS = 4000
"""In each partition: each pass over them takes a group of its own."""


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(writers=2) as broker:
        yield broker


def consuming(client: Any, topic: str, guarantee: str) -> ConsumingTrial:
    return ConsumingTrial(client, topic, RECORDS, guarantee=guarantee, follow=False)


def test_a_producer_holds_under_random_signals(node: Broker) -> None:
    seed = seed_of("signals, a producer")
    with node.connect() as client:
        client.admin().create_topic("produced", TopicConfig(partitions=PARTITIONS))
        trial = ProducingTrial(client, "produced", lambda: client.producer(linger=0.001))
        verbs = (
            lambda trial: trial.send("struck"),
            lambda trial: trial.producer.flush(10),
            lambda trial: trial.sent[-1][1].result(10),
            lambda trial: trial.producer.send_batch(trial.topic, [trial.value("b")] * 1),
        )
        struck = at_random(trial, verbs, seed, "a producer")
        trial.judge()
    assert struck >= 5


def test_at_least_once_holds_under_random_signals(node: Broker) -> None:
    seed = seed_of("signals, at least once")
    with node.connect() as client:
        client.admin().create_topic("read", TopicConfig(partitions=PARTITIONS))
        filled(client, "read", RECORDS)
        trial = consuming(client, "read", "at-least-once")
        struck = at_random(trial, (poll, commit), seed, "at least once")
        trial.judge()
    assert struck >= 5


def test_at_most_once_holds_under_random_signals(node: Broker) -> None:
    seed = seed_of("signals, at most once")
    with node.connect() as client:
        client.admin().create_topic("claimed", TopicConfig(partitions=PARTITIONS))
        filled(client, "claimed", RECORDS)
        trial = consuming(client, "claimed", "at-most-once")
        struck = at_random(trial, (poll,), seed, "at most once")
        trial.judge()
    assert struck >= 5


def test_exactly_once_holds_under_random_signals(node: Broker) -> None:
    seed = seed_of("signals, exactly once")
    with node.connect() as client:
        for topic in ("source", "result"):
            client.admin().create_topic(topic, TopicConfig(partitions=2))
        trial = ExactTrial(client, "source", "result")
        trial.fill(20)
        struck = at_random(trial, (lambda each: each.step(),), seed, "exactly once")
        trial.judge()
    assert struck >= 5
