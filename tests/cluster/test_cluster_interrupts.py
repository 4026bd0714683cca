"""Calls that are interrupted or cancelled while leaders move from broker to broker.

The trials and judges are those of `tests/interrupts`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from interrupts import living_trial as lives
from interrupts.cancelling import Cancel, Loop
from interrupts.consuming_trial import ConsumingTrial, commit, filled, poll
from interrupts.exact_trial import ExactTrial, step
from interrupts.living_trial import LivingTrial
from interrupts.producing_trial import ProducingTrial
from interrupts.rounds import CHOSEN, at_random, line_by_line
from interrupts.striking import Strike
from seeds import seed_of

from penstock.core.errors import PenstockError
from penstock.testing import Cluster, wait_until

pytestmark = [
    pytest.mark.timeout(0 if CHOSEN else 240, method="thread"),  # it needs SIGALRM itself
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # within ZeroMQ
]

RECORDS = 1000
EVERY = 0.25
"""Seconds between two moves of leaders."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, writers=1) as brokers:
        yield brokers


@contextmanager
def moving(cluster: Cluster, topic: str) -> Iterator[list[int]]:
    """Each partition of a topic is led by one broker after the other. Who has led."""
    led: list[int] = []
    over = threading.Event()

    def move() -> None:
        with cluster.connect() as client, client.admin() as admin:
            for number in itertools.count():
                if over.wait(EVERY):
                    return
                first = number % 3
                replicas = [1 + (first + each) % 3 for each in range(3)]
                try:
                    for place in admin.describe_partitions(topic):
                        admin.reassign_partition(topic, place.partition, replicas)
                    admin.elect_leaders(topic)
                    led.extend(place.leader for place in admin.describe_partitions(topic))
                except PenstockError:
                    continue  # a move that is under way

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield led
    finally:
        over.set()
        thread.join()


def moved(led: list[int]) -> None:
    """Another broker has led before this goes on."""
    wait_until(lambda: len({*led}) > 1, 20.0, "another leader")


@contextmanager
def connected(cluster: Cluster, way: str) -> Iterator[tuple[Any, Any, str]]:
    """A client that blocks, or one of a loop; what strikes it; a topic."""
    topic = f"struck-{next(_numbers)}"
    cluster.create_topic(topic, partitions=2)
    if way == "blocking":
        with cluster.connect() as client:
            yield client, Strike, topic
        return
    loop = Loop()
    with loop.connect(cluster) as client:
        yield client, Cancel, topic
    loop.close()


def flush(trial: ProducingTrial) -> None:
    trial.send("struck")
    trial.producer.flush(20)


def send_and_wait(trial: ProducingTrial) -> None:
    trial.producer.send_and_wait(trial.topic, trial.value("waited"), timeout=20)


WAYS = pytest.mark.parametrize("way", ["blocking", "asyncio"])


@WAYS
def test_a_struck_producer_loses_and_doubles_nothing_while_leaders_move(
    cluster: Cluster, way: str
) -> None:
    seed = seed_of(f"moving leaders, producers, {way}")
    verbs = (flush, send_and_wait)
    with connected(cluster, way) as (client, make, topic), moving(cluster, topic) as led:
        trial = ProducingTrial(client, topic, lambda: client.producer(acks="all"))
        struck = [line_by_line(trial, verb, seed, make) for verb in verbs]
        if way == "blocking":
            struck.append(at_random(trial, verbs, seed, "a producer of brokers"))
        moved(led)
        trial.judge()
    assert min(struck) > 0


@WAYS
def test_a_struck_consumer_passes_nothing_over_while_leaders_move(
    cluster: Cluster, way: str
) -> None:
    seed = seed_of(f"moving leaders, consumers, {way}")
    with connected(cluster, way) as (client, make, topic):
        with cluster.connect() as filler:
            filled(filler, topic, RECORDS)
        with moving(cluster, topic) as led:
            trial = ConsumingTrial(client, topic, RECORDS, guarantee="at-least-once", follow=False)
            trial.may_repeat = True
            for verb in (poll, commit):
                line_by_line(trial, verb, seed, make)
            if way == "blocking":
                assert at_random(trial, (poll, commit), seed, "at least once of brokers") > 0
            moved(led)
            trial.judge()


@WAYS
def test_a_struck_transaction_counts_once_or_not_at_all_while_leaders_move(
    cluster: Cluster, way: str
) -> None:
    seed = seed_of(f"moving leaders, transactions, {way}")
    with connected(cluster, way) as (client, make, topic):
        cluster.create_topic(f"{topic}-result", partitions=2)
        trial = ExactTrial(client, topic, f"{topic}-result")
        trial.fill(20)
        with moving(cluster, f"{topic}-result") as led:
            struck = line_by_line(trial, step, seed, make)
            if way == "blocking":
                struck = min(struck, at_random(trial, (step,), seed, "exactly once of brokers"))
            moved(led)
            trial.judge()
    assert struck > 0


@pytest.mark.parametrize("verb", [lives.client, lives.member, lives.transactional, lives.stage])
@WAYS
def test_what_is_struck_while_it_is_made_or_ended_is_in_nobodys_way_of_brokers(
    cluster: Cluster, way: str, verb: Any
) -> None:
    topic, loop = f"living-{next(_numbers)}", Loop()
    connect = cluster.connect if way == "blocking" else lambda: loop.connect(cluster)
    trial = LivingTrial(connect, topic)
    make = Strike if way == "blocking" else Cancel
    struck = line_by_line(trial, verb, seed_of(f"brokers, {verb.__name__}, {way}"), make)
    if verb is lives.member:
        trial.group_has_all()
    trial.judge()
    loop.close()
    assert struck > 0
