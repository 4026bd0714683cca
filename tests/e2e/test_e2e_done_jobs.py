"""Jobs that are done with a transaction, at a real node: with what it sent, or not at all."""

from __future__ import annotations

import itertools

import pytest
from event_loops import run

import penstock
from penstock import aio
from penstock.client.transactions import inputs
from penstock.core import errors as er
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 25.0
GROUPS = (f"makers-{number}" for number in itertools.count())


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node):
    return node.create_topic()


@pytest.fixture
def outputs(node):
    """A topic, and what readers of committed records see in it."""
    return node.create_topic()


@pytest.fixture
def work(client, topic):
    """Makes workers of one group of the test's own."""
    group = next(GROUPS)
    return lambda **options: client.share_consumer(topic, **{"group": group, **options})


@pytest.fixture
def producer(client, topic):
    with client.producer(transactional_id=f"maker-of-{topic}") as made:
        yield made


def polled(jobs, count):
    found: list[penstock.Job] = []

    def came():
        found.extend(jobs.poll(count - len(found), timeout=0.2))
        return len(found) == count

    wait_until(came, WITHIN, lambda: f"{len(found)} of {count} jobs, {jobs.metrics()}")
    return found


def committed(client, topic):
    with client.consumer(topic, isolation="read_committed", follow=False) as reader:
        return [record.value for record in reader]


def left(client, group):
    """Records of a group that are not final: ready, waiting, leased."""
    [part] = client.admin().describe_share_group(group).partitions
    return part.ready, part.waiting, part.leased


def test_jobs_and_outputs_count_together(node, client, topic, outputs, work, producer):
    produce(node, topic, [b"%d" % n for n in range(6)])
    with work() as jobs, work() as other:
        first, *rest = polled(jobs, 6)
        with producer.transaction(done=rest[:4]):
            for job in rest[:4]:
                producer.send(outputs, b"did %d" % job.offset)
            assert left(client, jobs.group) == (0, 0, 6), "they are this worker's until the end"
        assert [job.is_answered for job in (first, *rest)] == [False, *[True] * 4, False]
        assert committed(client, outputs) == [b"did %d" % n for n in range(1, 5)]
        assert left(client, jobs.group) == (0, 0, 2)
        for job in rest[:4]:
            job.nack()  # answered before: nothing more comes of it
        with first, producer.transaction(done=first):
            pass  # without an output, and left by `with` of the job, too
        jobs.flush()
        assert jobs.metrics()["acked"] == 5
        assert jobs.metrics()["stale"] == jobs.metrics()["nacked"] == 0
        assert left(client, jobs.group) == (0, 0, 1)
        jobs.close()
        [again] = polled(other, 1)
        assert (again.offset, again.deliveries) == (5, 1)


def test_an_abort_leaves_the_jobs_with_their_worker(node, client, topic, outputs, work, producer):
    produce(node, topic, [b"a", b"b"])
    with work(backoff=(0.0, 0.0)) as jobs:
        held = polled(jobs, 2)
        with (  # noqa: PT012 - what leaves a transaction
            pytest.raises(ValueError, match="broken"),
            producer.transaction(done=held),
        ):
            producer.send(outputs, b"never")
            raise ValueError("broken")
        assert not any(job.is_answered for job in held)
        assert left(client, jobs.group) == (0, 0, 2)
        producer.begin_transaction()
        producer.send(outputs, b"neither")
        producer.abort_transaction()
        held[0].nack(reason="broken")
        with producer.transaction(done=held[1:]):
            producer.send(outputs, b"did b")
        [again] = polled(jobs, 1)
        assert (again.value, again.deliveries) == (b"a", 2)
        producer.begin_transaction()
        producer.send(outputs, b"did a")
        producer.commit_transaction(done=again)
        assert committed(client, outputs) == [b"did b", b"did a"]
        assert left(client, jobs.group) == (0, 0, 0)


def test_one_stale_lease_aborts_it_all(node, client, topic, outputs, work, producer):
    produce(node, topic, [b"a", b"b", b"c"])
    jobs = work()
    held = polled(jobs, 3)
    with work() as other:
        jobs.close()  # gives them back
        taken = polled(other, 3)
        with (
            pytest.raises(er.StaleGenerationError, match=r"offset 0 of .*-0 is not this worker's"),
            producer.transaction(done=held),
        ):
            producer.send(outputs, b"late")
        assert not any(job.is_answered for job in held)
        other.ack_many(taken[1:2])
        other.flush()
        mixed = [taken[0], held[1], taken[2]]
        with (
            pytest.raises(er.StaleGenerationError, match="offset 1 of"),
            producer.transaction(done=mixed),
        ):
            producer.send(outputs, b"late, too")
        assert left(client, other.group) == (0, 0, 2), "what it still has, it has"
        with producer.transaction(done=[taken[0], taken[2]]):
            producer.send(outputs, b"in time")
        assert committed(client, outputs) == [b"in time"]
        assert left(client, other.group) == (0, 0, 0)


def test_what_cannot_be_done_with_a_transaction_is_refused_by_name(
    node, topic, outputs, work, producer
):
    produce(node, topic, [b"%d" % n for n in range(4)])
    with work() as jobs:
        held = polled(jobs, 4)
        held[0].ack()
        for done, error, words in (
            (held, er.TransactionError, "at 0, delivery 1, answered>: it cannot be acknowledged"),
            ([held[1], held[2], held[1]], er.ConfigError, "at 1, delivery 1> is named twice"),
            ([held[1].record], er.ConfigError, "is no job"),
            (b"jobs", er.ConfigError, "is done with jobs"),
            (7, er.ConfigError, "is done with jobs"),
        ):
            with pytest.raises(error, match=words), producer.transaction(done=done):
                raise AssertionError("nothing of it is begun")
        with (  # noqa: PT012 - what leaves a transaction
            pytest.raises(er.TransactionError, match="answered>: it cannot be"),
            producer.transaction(done=held[1:]),
        ):
            producer.send(outputs, b"never")
            held[2].nack(reason="answered within")
        with producer.transaction(done=held[3]):
            producer.send(outputs, b"another one begins")


def test_as_many_as_a_message_takes(node, client, topic, outputs, work, producer):
    produce(node, topic, [b"%d" % n for n in range(2200)])
    with work(prefetch_bytes=1 << 20) as jobs:
        held = polled(jobs, 2200)
        every_other = held[::2]
        with (
            pytest.raises(er.ResourceLimitError, match=r"1100 jobs in 1100 runs.*RUNS_MAX=1000"),
            producer.transaction(done=every_other),
        ):
            raise AssertionError("nothing of it is begun")
        with producer.transaction(done=every_other[:1000]):
            producer.send(outputs, b"a thousand")
        rest = [job for job in held if not job.is_answered]
        assert len(rest) == 1200
        with producer.transaction(done=rest[1000:]):  # without gaps
            pass
        assert left(client, jobs.group) == (0, 0, 1000)
        jobs.ack_many(rest)
        jobs.flush()
        assert left(client, jobs.group) == (0, 0, 0)
        assert jobs.metrics()["stale"] == 0


def test_offsets_and_jobs_that_no_message_takes(
    node, client, topic, outputs, work, producer, monkeypatch
):
    """Each of both has bounds of its own, which together are more than a message takes."""
    monkeypatch.setattr(inputs, "MESSAGE_BYTES_MAX", 300)
    produce(node, topic, [b"%d" % n for n in range(100)])
    with (
        work() as jobs,
        client.consumer(topic, group=next(GROUPS), guarantee="exactly-once") as own,
    ):
        held, batch = polled(jobs, 100), own.poll(1, timeout=WITHIN)
        told = (
            r"was not asked to commit: offsets of 1 consumed partitions, and jobs in 50 runs of "
            r"offsets by \d+ leases \(done=\), take \d+ bytes, over MESSAGE_BYTES_MAX=300 .*Abort"
        )
        with (
            pytest.raises(er.ResourceLimitError, match=told),
            producer.transaction(consumed=batch, done=held[::2]),
        ):
            producer.send(outputs, b"never")
        again = own.poll(1, timeout=WITHIN)
        with producer.transaction(consumed=again, done=held[:1]):
            producer.send(outputs, b"little at once")
        assert [record.offset for record in again] == [record.offset for record in batch]
        jobs.ack_many(held[1:])
        jobs.flush()
        assert jobs.metrics()["stale"] == 0


def test_in_an_event_loop(node, topic, outputs, work):
    produce(node, topic, [b"%d" % n for n in range(4)])
    group = next(GROUPS)

    async def main():
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=f"loop-of-{topic}") as producer,
            client.share_consumer(topic, group=group) as jobs,
        ):
            held: list[penstock.Job] = []
            while len(held) < 4:
                held += await jobs.poll(4 - len(held), timeout=WITHIN)
            async with producer.transaction(done=held[:2]):
                for job in held[:2]:
                    await producer.send(outputs, b"did %d" % job.offset)
            with pytest.raises(ValueError, match="broken"):  # noqa: PT012
                async with producer.transaction(done=held[2:]):
                    await producer.send(outputs, b"never")
                    raise ValueError("broken")
            with pytest.raises(er.TransactionError, match="answered>: it cannot be"):
                async with producer.transaction(done=held):
                    pass
            await producer.begin_transaction()
            await producer.send(outputs, b"did %d" % held[2].offset)
            await producer.commit_transaction(done=held[2])
            assert [job.is_answered for job in held] == [True, True, True, False]

    run(main())
    with node.connect() as client:
        assert committed(client, outputs) == [b"did 0", b"did 1", b"did 2"]
        assert left(client, group) == (1, 0, 0), "given back by the close"


def test_the_outcome_is_asked_for_over_a_restart_of_the_node():
    """The node is killed between what was sent and the end, and again after that: leases, outputs
    and what is done are the same for all who ask."""
    with Broker() as node:
        node.create_topic("jobs")
        node.create_topic("outputs")
        produce(node, "jobs", [b"a", b"b"])
        with (
            node.connect() as client,
            client.share_consumer("jobs", group="g") as jobs,
            client.producer(transactional_id="t", timeout=WITHIN) as producer,
        ):
            held = polled(jobs, 2)
            producer.begin_transaction()
            producer.send("outputs", b"did a").result(WITHIN)
            node.restart(kill=True)
            producer.commit_transaction(done=held[0])
            node.restart(kill=True)
            assert committed(client, "outputs") == [b"did a"]
            with producer.transaction(done=held[1]):
                producer.send("outputs", b"did b")
            assert committed(client, "outputs") == [b"did a", b"did b"]
            assert jobs.poll(timeout=0.1) == []
            assert left(client, "g") == (0, 0, 0)
