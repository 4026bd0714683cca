"""What tests of workers ask: deliver to a handler, move time, look at what is left."""

from __future__ import annotations

import itertools

import pytest

from penstock.testing import Broker, assert_jobs, assert_records, deliver, drain, produce

pytestmark = pytest.mark.over_tcp

GROUPS = (f"tested-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(penstock_broker_module: Broker) -> Broker:
    return penstock_broker_module


@pytest.fixture
def topic(broker):
    return broker.create_topic(partitions=2)


def resize(job):
    if job.value.startswith(b"bad"):
        raise ValueError("no image")


def test_each_record_is_handed_out_once_and_failures_come_after_their_time(broker, topic):
    group = next(GROUPS)
    assert deliver(broker, topic, resize, group=group) == []
    produce(broker, topic, [(b"k%d" % n, b"%d" % n) for n in range(40)] + [(b"k", b"bad")])
    handled = deliver(broker, topic, resize, group=group, backoff=(300.0, 300.0))
    assert len(handled) == 41
    [failed] = [one for one in handled if one.error is not None]
    assert (failed.job.value, str(failed.error)) == (b"bad", "no image")
    assert_jobs(broker, group, lag=1, leased=0)
    for times in range(2, 6):
        broker.advance(300.0)
        [again] = deliver(broker, topic, resize, group=group, backoff=(300.0, 300.0))
        assert again.job.deliveries == times
    assert_jobs(broker, group, lag=0, condemned=0)
    [letter] = drain(broker, f"{topic}.dlq", count=1)
    assert dict(letter.headers)["penstock.dlq.reason"] == b"ValueError: no image"
    assert deliver(broker, topic, resize, group=group) == []


def test_what_comes_again_at_once_is_for_the_next_call(broker, topic):
    group = next(GROUPS)
    produce(broker, topic, [b"bad 1", b"good", b"bad 2"])
    for times in range(1, 4):
        handled = deliver(
            broker, topic, lambda job: job.nack(delay=0.0), group=group, max_deliveries=3
        )
        assert [(one.job.deliveries, one.error) for one in handled] == [(times, None)] * 3
    assert_records(broker, f"{topic}.dlq", [b"bad 1", b"good", b"bad 2"])


def test_leases_of_a_program_under_test_are_seen(broker):
    topic, group = broker.create_topic(), next(GROUPS)
    produce(broker, topic, [b"1", b"2", b"3"])
    with broker.connect() as client, client.share_consumer(topic, group=group) as worker:
        held = worker.poll(2, timeout=10.0)
        while len(held) < 2:
            held += worker.poll(1, timeout=1.0)
        told = assert_jobs(broker, group, leased=2, ready=1)
        assert told.leased == {worker.member_id: 2}
        [other] = deliver(client, topic, resize, group=group)
        assert other.job.value not in [job.value for job in held]
        worker.ack_many(held)
    assert_jobs(broker, group, lag=0)


def test_failures_say_what_is_so(broker, topic):
    group = next(GROUPS)
    produce(broker, topic, [b"1"])
    deliver(broker, topic, resize, group=group)
    with pytest.raises(AssertionError, match=r"'lag': 3.*not .*'lag': 0"):
        assert_jobs(broker, group, lag=3, timeout=0.0)
    with pytest.raises(TypeError, match="assert_jobs\\(\\) has no dead"):
        assert_jobs(broker, group, dead=1)
    produce(broker, topic, [b"2"])
    with broker.connect() as client, client.admin() as admin:
        admin.pause_share_group(group, reason="by a test")
    with pytest.raises(AssertionError, match="is paused: by a test"):
        deliver(broker, topic, resize, group=group)
