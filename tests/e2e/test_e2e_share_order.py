"""Share groups with an order of keys, and with turns of tenants, at a real node."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from cli_runner import call_cli, run_cli
from event_loops import run

from penstock import aio
from penstock.core import errors as er
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 25.0
GROUPS = (f"ordered-{number}" for number in itertools.count())


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node):
    return node.create_topic()


class Ordered:
    """Makes workers of one group."""

    def __init__(self, client, topic):
        self.client, self.topic = client, topic
        self.group = next(GROUPS)

    def __call__(self, **options):
        options = {"group": self.group, "order": "key", **options}
        return self.client.share_consumer(self.topic, **options)


@pytest.fixture
def work(client, topic):
    """Makes workers of one group of the test's own."""
    return Ordered(client, topic)


def send(client, topic, keys, tenant=None):
    """A record for each key, whose value is its number."""
    with client.producer() as producer:
        for number, key in enumerate(keys):
            headers = None if tenant is None else {"tenant": tenant(number)}
            producer.send(topic, b"%d" % number, key=key, headers=headers, partition=0)


def all_of(jobs, count, max_records=None):
    found = []

    def came():
        found.extend(jobs.poll(max_records, timeout=0.2))
        return len(found) >= count

    wait_until(came, WITHIN, lambda: f"{len(found)} of {count} jobs, {jobs.metrics()}")
    return found


def numbers(jobs):
    return [int(job.value) for job in jobs]


def test_of_a_key_one_job_is_out_at_a_time_and_others_go_on(client, topic, work):
    send(client, topic, [b"a", b"a", b"b", None, b"a", None])
    with work() as one, work() as two:
        jobs = all_of(one, 4)
        assert numbers(jobs) == [0, 2, 3, 5]
        assert two.poll(timeout=0.05) == []
        first, *others = jobs
        one.ack_many(others)
        first.release()
        one.flush()
        [again] = all_of(two, 1)
        assert (again.offset, again.deliveries) == (0, 1), "it was given back, and is first still"
        again.nack(delay=0.2)
        two.flush()
        [again] = all_of(one, 1)
        assert (again.offset, again.deliveries) == (0, 2), "its key waits with it"
        again.reject("never")
        one.flush()
        [job] = all_of(two, 1)
        assert job.offset == 1, "what is dead holds nobody up"
        with client.admin() as admin:
            told = admin.describe_share_group(work.group)
            assert (told.order, told.fair, told.partitions[0].behind) == ("key", None, 1)
        job.ack()
        two.flush()
        assert numbers(all_of(one, 1)) == [4]


def test_many_jobs_of_few_keys_are_done_by_several_workers_each_key_in_its_order(
    client, topic, work
):
    send(client, topic, [b"%d" % (number * number % 17) for number in range(400)])
    by_key: dict[bytes, list[int]] = defaultdict(list)
    with work(ack_interval=0.0) as one, work(ack_interval=0.0, max_records=3) as two:
        out: set[bytes] = set()

        def step():
            for worker in (one, two):
                jobs = worker.poll(timeout=0.02)
                keys = {job.key for job in jobs}
                assert len(keys) == len(jobs)
                assert not keys & out, "of one key one is out"
                out.update(keys)
                for job in jobs:
                    by_key[job.key].append(job.offset)
                    job.ack()
                worker.flush()
                out.difference_update(keys)
            return sum(map(len, by_key.values())) == 400

        wait_until(step, WITHIN, lambda: f"{by_key} {one.metrics()} {two.metrics()}")
        assert one.metrics()["stale"] == two.metrics()["stale"] == 0
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


def test_a_key_with_many_jobs_holds_up_no_others_behind_it(client, topic, work):
    send(client, topic, [b"hot"] * 3000 + [b"%d" % number for number in range(50)])
    with work(max_records=20) as jobs:
        found = all_of(jobs, 51)
        assert numbers(found) == [0, *range(3000, 3050)]
        assert jobs.poll(timeout=0.05) == []


def test_jobs_that_are_done_with_a_transaction_let_the_next_of_their_key_go(client, topic, work):
    send(client, topic, [b"a", b"a"])
    with work() as one, work() as two, client.producer(transactional_id=work.group) as producer:
        jobs = all_of(one, 1)
        assert two.poll(timeout=0.05) == []
        with producer.transaction(done=jobs):
            producer.send(topic, b"9", key=b"out", partition=0)
        found = all_of(two, 2)
        assert sorted(numbers(found)) == [1, 9]


def test_a_noisy_tenant_holds_up_nobody(client, topic, work):
    send(client, topic, [None] * 900, lambda number: b"noisy" if number < 880 else b"%d" % number)
    with work(order=None, fair="header:tenant", max_records=40) as jobs:
        found: list[int] = []
        while len(found) < 900:
            turn = all_of(jobs, 1)
            jobs.ack_many(turn)
            found += numbers(turn)
        last = max(found.index(number) for number in range(880, 900))
        assert last < 400, f"the last of the others came after {last} jobs"
        assert sorted(found) == list(range(900))


def test_a_worker_that_wants_another_order_is_refused_while_others_are_there(client, work, topic):
    send(client, topic, [b"a", b"a", b"a"])
    with work() as one:
        held = all_of(one, 1)
        with (
            work(order=None) as other,
            pytest.raises(er.GroupError, match="order='key', fair=None"),
        ):
            other.poll(timeout=WITHIN)
        held[0].ack()
    with work(order=None) as alone:
        assert numbers(all_of(alone, 2)) == [1, 2], "without an order"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "value"}, "order='value'"),
        ({"fair": "tenant"}, "fair='tenant'"),
        ({"fair": "header:"}, "header:NAME"),
        ({"fair": "header:" + "n" * 201}, "200 bytes"),
    ],
)
def test_what_nobody_can_order_by_is_refused(work, options, says):
    with pytest.raises(er.ConfigError, match=says):
        work(**options)


def test_an_event_loop_gets_its_jobs_in_order_too(node, client, topic, work):
    send(client, topic, [b"a", b"b", b"a"])

    async def main():
        async with (
            await aio.connect(node.url) as loop,
            await loop.share_consumer(topic, group=work.group, order="key") as jobs,
        ):
            found = []
            async for job in jobs:
                found.append(job.offset)
                job.ack()
                if len(found) == 3:
                    return found

    assert run(main()) in ([0, 1, 2], [0, 2, 1])


def test_what_retention_took_has_no_key_and_holds_up_nobody(client, topic, work):
    with work() as jobs:
        assert jobs.poll(timeout=0.05) == [], "the group begins at offset 0"
    send(client, topic, [b"a"] * 8)
    client.admin().trim(topic, before=6)
    with work() as jobs:
        for offset in (6, 7):
            [job] = all_of(jobs, 1)
            assert job.offset == offset
            job.ack()
        jobs.flush()
        assert jobs.metrics()["expired"] == 6


def test_a_topic_that_is_made_again_begins_anew(client, topic, work):
    send(client, topic, [b"a", b"a"])
    with work() as jobs:
        assert numbers(all_of(jobs, 1)) == [0]
        client.admin().delete_topic(topic)
        client.admin().create_topic(topic)
        send(client, topic, [b"a", b"b"])
        assert numbers(all_of(jobs, 2)) == [0, 1]


def test_an_operator_sees_the_order(node, client, topic, work):
    send(client, topic, [b"a", b"a"], lambda _: b"t")
    options = {"order": "key", "fair": "header:tenant"}
    with work(**options) as jobs:
        held = all_of(jobs, 1)
        told = call_cli("group", "describe", work.group, url=node.url)
        assert "in order of each key, turns by header:tenant, " in told.lines[1]
        assert told.lines[2].split()[8:11] == ["CONDEMNED", "BEHIND", "LAG"]
        assert told.lines[3].split()[8:11] == ["0", "1", "2"]
        jobs.ack_many(held)


@pytest.mark.over_tcp(False)
def test_a_pool_says_what_its_workers_say(node, topic):
    options = ("--order", "key", "--fair", "nonsense")
    ran = run_cli("work", "json:dumps", "-t", topic, "-g", "pool", *options, url=node.url)
    assert ran.code == 1
    assert "fair='nonsense' must be 'key'" in ran.err


@pytest.mark.over_tcp(False)
def test_who_is_behind_whom_outlives_the_node():
    with Broker(writers=1) as broker, broker.connect() as client:
        topic = broker.create_topic()
        send(client, topic, [b"a", b"a", b"b"])
        with client.share_consumer(topic, group="durable", order="key") as jobs:
            first, other = all_of(jobs, 2)
            assert (first.offset, other.offset) == (0, 2)
            other.ack()
            jobs.flush()
            broker.kill()
            broker.start()
            send(client, topic, [b"c", b"b", b"a"])
            assert [job.offset for job in all_of(jobs, 2)] == [3, 4]
            first.ack()
            assert [job.offset for job in all_of(jobs, 1)] == [1]
            assert jobs.metrics()["stale"] == 0
