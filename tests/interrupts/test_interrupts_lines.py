"""An exception at any line of a call leaves the client usable and honest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from interrupts.consuming_trial import PARTITIONS, ConsumingTrial, filled, iterate, poll
from interrupts.exact_trial import ExactTrial, abort, step
from interrupts.producing_trial import ProducingTrial
from interrupts.rounds import line_by_line
from seeds import seed_of

from penstock import TopicConfig
from penstock.testing import Broker

STRUCK_MIN = 2
"""Strikes without which a test has shown nothing."""

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["shm", "tcp"])
def node(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(writers=2, transport=request.param) as broker:
        yield broker


def send(trial: ProducingTrial) -> None:
    trial.send("struck")


def send_wide(trial: ProducingTrial) -> None:
    trial.producer.send(trial.topic, trial.value("wide"), headers=[("a", b"b")], partition=1)


def send_and_wait(trial: ProducingTrial) -> None:
    trial.producer.send_and_wait(trial.topic, trial.value("waited"), timeout=10)


def send_batch(trial: ProducingTrial) -> None:
    values = [trial.value(f"batch{number}") for number in range(4)]
    trial.producer.send_batch(trial.topic, values, keys=values)


def send_arrow(trial: ProducingTrial) -> None:
    values = [trial.value(f"arrow{number}") for number in range(4)]
    trial.producer.send_arrow(trial.topic, pa.table({"value": values}))


def result(trial: ProducingTrial) -> None:
    trial.sent[0][1].result(10)


def flush(trial: ProducingTrial) -> None:
    trial.producer.flush(10)


PRODUCERS: dict[str, dict[str, Any]] = {
    "lingering": {},
    "at once": {"linger": 0.0},
    "fsynced": {"durability": "fsynced"},
    "ring": {"acks": 0},
    "small": {"batch_bytes": 1024, "buffer_bytes_max": 1024},
}


@pytest.mark.parametrize("options", PRODUCERS.values(), ids=PRODUCERS)
def test_a_producer_that_is_struck_anywhere_loses_and_doubles_nothing(
    node: Broker, options: dict[str, Any]
) -> None:
    seed = seed_of("lines of a producer")
    topic = f"produced-{next(_numbers)}"
    with node.connect() as client:
        client.admin().create_topic(topic, TopicConfig(partitions=2))
        trial = ProducingTrial(
            client, topic, lambda: client.producer(delivery_timeout=15.0, **options)
        )
        verbs = (send, send_wide, send_and_wait, send_batch, send_arrow, result, flush)
        struck = {verb.__name__: line_by_line(trial, verb, seed) for verb in verbs}
        trial.judge()
    assert min(struck.values()) >= STRUCK_MIN, struck


def batches(trial: ConsumingTrial) -> object:
    return next(trial.consumer.batches(4, timeout=0.05), None)


def commit(trial: ConsumingTrial) -> None:
    trial.consumer.commit()


CONSUMERS: dict[str, tuple[dict[str, Any], tuple[Callable[[ConsumingTrial], object], ...]]] = {
    "alone": ({}, (poll, batches, iterate)),
    "at least once": ({"guarantee": "at-least-once", "commit_interval": 0.01},
                      (poll, batches, iterate, commit)),
    "manual": ({"guarantee": "manual"}, (poll, commit)),
    "at most once": ({"guarantee": "at-most-once"}, (poll, iterate)),
    "exactly once": ({"guarantee": "exactly-once"}, (poll, iterate)),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_consumer_that_is_struck_anywhere_brings_each_record_once(
    node: Broker, kind: str
) -> None:
    seed = seed_of("lines of a consumer")
    topic = f"consumed-{next(_numbers)}"
    options, verbs = CONSUMERS[kind]
    with node.connect() as client:
        client.admin().create_topic(topic, TopicConfig(partitions=PARTITIONS))
        filled(client, topic)

        trial = ConsumingTrial(client, topic, follow=False, **options)
        struck = {verb.__name__: line_by_line(trial, verb, seed) for verb in verbs}
        trial.judge()
    assert min(struck.values()) >= STRUCK_MIN, struck


def test_a_transaction_that_is_struck_anywhere_counts_once_or_not_at_all(node: Broker) -> None:
    seed = seed_of("lines of a transaction")
    number = next(_numbers)
    with node.connect() as client:
        for topic in (f"source-{number}", f"result-{number}"):
            client.admin().create_topic(topic, TopicConfig(partitions=2))
        trial = ExactTrial(client, f"source-{number}", f"result-{number}")
        trial.fill(20)
        struck = {verb.__name__: line_by_line(trial, verb, seed) for verb in (step, abort)}
        trial.judge()
    assert min(struck.values()) >= STRUCK_MIN, struck
