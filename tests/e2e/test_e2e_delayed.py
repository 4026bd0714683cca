"""Delayed records of share groups, many of them: jobs behind them, and what a kill takes."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from seeds import seed_of

from penstock.client.share.jobs import Job
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 30.0
MANY = 3000
GROUPS = (f"delayed-{number}" for number in itertools.count())


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node):
    return node.create_topic()


def counted(client, group, state):
    with client.admin() as admin:
        return sum(getattr(part, state) for part in admin.describe_share_group(group).partitions)


def send_waiting(client, topic, count, low, high):
    """So many records that are due between those seconds from now, in random order."""
    draw = random.Random(seed_of("delayed"))
    with client.producer() as producer:
        for first in range(0, count, 1000):
            values = [b"%d" % number for number in range(first, min(first + 1000, count))]
            producer.send_batch(topic, values, delays=[draw.uniform(low, high) for _ in values])
        producer.flush(WITHIN)


def test_who_takes_one_job_at_a_time_soon_finds_it_behind_many_that_wait(client, topic):
    group = next(GROUPS)
    send_waiting(client, topic, MANY, 3600, 7200)
    with client.producer() as producer:
        producer.send_batch(topic, [b"ready", b"too", b"and this"])
        producer.flush(WITHIN)
    with (
        client.share_consumer(topic, group=group) as jobs,
        client.share_consumer(topic, group=group) as others,
    ):
        [job] = jobs.poll(1, timeout=WITHIN)
        assert job.value == b"ready"
        counts = jobs.metrics()
        assert counts["delayed"] == MANY
        assert counts["requests"] < 40, "not one for each that waits"
        # Who found them is long at the first; others have the rest meanwhile.
        found: list[Job] = []

        def came() -> bool:
            found.extend(others.poll(timeout=0.2))
            return len(found) == 2

        wait_until(came, WITHIN)
        assert [(one.value, one.deliveries) for one in found] == [(b"too", 1), (b"and this", 1)]
        assert counted(client, group, "waiting") == MANY
        others.ack_many(found)
        job.ack()


def test_those_that_become_due_come_once_each_in_time_and_never_early(client, topic):
    group = next(GROUPS)
    send_waiting(client, topic, MANY, 1.0, 2.0)
    came = {}
    with client.share_consumer(topic, group=group) as jobs:

        def all_came():
            for job in jobs.poll(timeout=0.2):
                assert job.record.due <= time.time_ns() // 1000
                assert job.deliveries == 1
                assert job.value not in came
                came[job.value] = job.offset
                job.ack()
            return len(came) == MANY

        wait_until(all_came, WITHIN, lambda: f"{len(came)} of {MANY}")
        jobs.flush()
        assert jobs.metrics()["delayed"] > 0
    with client.admin() as admin:
        described = admin.describe_share_group(group)
    assert described.lag == 0
    assert described.counts["woken"] >= described.counts["delayed"] > 0


def test_a_delay_of_years_waits_and_holds_up_nobody(client, node, topic):
    group = next(GROUPS)
    with client.producer() as producer:
        producer.send(topic, b"in nine years", delay=9 * 365 * 86_400)
        producer.send(topic, b"now")
        producer.flush()
    with client.share_consumer(topic, group=group) as jobs:
        [job] = jobs.poll(timeout=WITHIN)
        assert job.value == b"now"
        job.ack()
        jobs.flush()
        assert counted(client, group, "waiting") == 1
        assert jobs.poll() == []


@pytest.mark.local("the node is the test's own, and killed")
def test_what_waits_outlives_the_kill_of_the_node_and_nothing_comes_early():
    with Broker(writers=1) as node:
        topic, group = node.create_topic(), next(GROUPS)
        with node.connect() as client:
            send_waiting(client, topic, 4000, 2.0, 4.0)
            came: dict[int, int] = {}
            with client.share_consumer(topic, group=group, node_timeout=WITHIN) as jobs:
                wait_until(lambda: jobs.poll() or jobs.metrics()["delayed"] >= 1000, WITHIN)
                node.kill()
                node.start()

                def all_came():
                    for job in jobs.poll(timeout=0.2):
                        assert (job.record.due or 0) <= time.time_ns() // 1000
                        came[job.offset] = came.get(job.offset, 0) + 1
                        job.ack()
                    return len(came) == 4000

                wait_until(all_came, 2 * WITHIN, lambda: f"{len(came)} of 4000")
                jobs.flush()
                assert set(came.values()) == {1}
            with client.admin() as admin:
                assert admin.describe_share_group(group).lag == 0
