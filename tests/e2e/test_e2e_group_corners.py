"""Corners of the guarantees: loops within loops, seeks in the middle of things, calls given up."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from typing import Any

import pytest
from event_loops import run
from group_fixture import fill
from power_cuts import cut_power

from penstock import Offset, aio
from penstock.client.consumer.fetch_scheduler import FetchScheduler
from penstock.client.consumer.group.membership import GroupMembership
from penstock.client.consumer.records import Chunk
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.messages import Done
from penstock.testing.waiting import wait_until


@pytest.fixture
def broker(penstock_broker):
    return penstock_broker


def offsets(records):
    return [record.offset for record in records]


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", None])
def test_a_loop_that_takes_records_by_another_loop_passes_over_none(node, guarantee):
    topic = node.create_topic()
    fill(node, topic, 0, 3000)
    options = {} if guarantee is None else {"group": f"nested-{guarantee}", "guarantee": guarantee}
    with node.connect() as client:
        with client.consumer(topic, follow=False, **options) as consumer:
            came = []
            for record in consumer:
                came.append(record.offset)
                if record.offset % 7 == 0:
                    came += offsets(next(iter(consumer), None) for _ in range(1))
                if len(came) > 4000:
                    break
        assert came == list(range(3000))


@pytest.mark.rule(18)
def test_rule_18_a_seek_into_a_claim_that_is_under_way_brings_nothing_twice(broker):
    topic = broker.create_topic()

    async def main():
        got: Counter[int] = Counter()
        options: dict[str, Any] = {"group": "seeks", "guarantee": "at-most-once"}
        async with aio.connect(broker.url) as client, client.consumer(topic, **options) as consumer:
            assert not await consumer.poll()
            assert await consumer.assignment() == [(topic, 0)]
            await asyncio.to_thread(fill, broker, topic, 0, 10)
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(asyncio.TimeoutError):
                    async with asyncio.timeout(0.2):
                        await consumer.poll(timeout=5)
                with pytest.raises(er.GroupError, match="up to 10"):
                    await consumer.seek(topic, 0, 5)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            while sum(got.values()) < 10:
                batch = await consumer.poll(timeout=25)
                assert batch, got
                got.update(batch.offsets.tolist())
            assert not await consumer.poll(timeout=0.5)
            return got

    assert run(main()) == Counter(range(10))


@pytest.mark.over_tcp
@pytest.mark.rule(7)
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_rule_7_a_forked_child_gets_nothing_of_its_parents_loop(node, guarantee):
    topic = node.create_topic()
    fill(node, topic, 0, 3000)
    options = {"group": f"fork-{guarantee}", "guarantee": guarantee, "follow": False}
    reading, writing = os.pipe()
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        came = []
        child = None
        try:
            for record in consumer:
                if child == 0:
                    os.write(writing, b"%d " % record.offset)
                    continue
                came.append(record.offset)
                if child is None and record.offset == 1000:
                    child = os.fork()
        except BaseException:
            if child != 0:
                raise
        finally:
            if child == 0:
                os._exit(0)
        assert child is not None
        os.waitpid(child, 0)
        os.close(writing)
        with open(reading, "rb") as theirs:
            assert theirs.read() == b""
        assert came == list(range(3000))


def test_a_seek_elsewhere_does_not_finish_the_record_in_hand(node):
    topic = node.create_topic(partitions=2)
    with node.connect() as client, client.producer() as producer:
        for partition in (0, 1):
            producer.send_batch(topic, [b"%d" % n for n in range(10)], partition=partition)
        producer.flush()

        def fail():
            with client.consumer(topic, group="elsewhere") as consumer:
                for record in consumer:
                    if record.partition == 0 and record.offset == 3:
                        consumer.seek(topic, 1, 0)
                        raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        with client.consumer(topic, group="elsewhere", follow=False) as consumer:
            came = Counter((record.partition, record.offset) for record in consumer)
    assert (0, 3) in came


@pytest.mark.parametrize("guarantee", ["manual", "exactly-once"])
def test_what_a_torn_poll_fetched_is_committed_by_nobody(node, guarantee, monkeypatch):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    options = {"group": f"torn-{guarantee}", "guarantee": guarantee}
    with node.connect() as client:
        with client.consumer(topic, **options) as consumer:
            assert offsets(consumer.poll(4, timeout=25)) == [0, 1, 2, 3]
            tear(monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(4)
            monkeypatch.undo()
            if guarantee == "manual":
                consumer.commit()
            else:
                assert [one.offset for one in consumer.offsets_of().offsets] == [4]
        with client.consumer(topic, follow=False, **options) as consumer:
            assert set(offsets(consumer)) >= {4, 5, 6, 7, 8, 9}


def test_a_commit_behind_a_struck_assignment_is_of_what_is_owned(node, monkeypatch):
    """Ctrl-C strikes between the moment when a partition is read and the one when it is owned."""
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 10)

    def struck(*given):
        raise KeyboardInterrupt

    options = {"group": "struck", "guarantee": "manual"}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        with client.consumer(topic, **options) as other:
            wait_until(lambda: consumer.poll() is None or len(consumer.assignment()) == 1)
            wait_until(lambda: other.poll() is None or len(other.assignment()) == 1)
        with monkeypatch.context() as patched:
            patched.setattr(GroupMembership, "own", struck)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(20, timeout=25)
        consumer.commit()
        assert set(consumer.committed()) == {(topic, 0), (topic, 1)}
        assert len(consumer.poll(20, timeout=25)) > 0


def tear(monkeypatch):
    """Ctrl-C strikes when a poll has fetched, before it says so."""
    gather = FetchScheduler.gather

    def torn(*given):
        if gather(*given):
            raise KeyboardInterrupt
        return []  # it is on its way

    monkeypatch.setattr(FetchScheduler, "gather", torn)
    monkeypatch.setattr(FetchScheduler, "only", lambda self: None)


@pytest.mark.rule(18)
def test_rule_18_what_a_torn_poll_fetched_is_not_claimed_behind_its_back(node, monkeypatch):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    options = {"group": "torn", "guarantee": "at-most-once", "follow": False}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        tear(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(4, timeout=5)
        monkeypatch.undo()
        assert offsets(consumer) == list(range(10))
        assert consumer.metrics()["skipped"] == 0


def test_a_batch_from_before_a_reset_does_not_move_the_group(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client:
        with client.consumer(topic, group="before-reset") as consumer:
            consumer.poll(8, timeout=5)
            batch = consumer.poll(2)
            client.admin().reset_offsets(group="before-reset", topic=topic, to=Offset.earliest())
            wait_until(lambda: consumer.assignment() and consumer.position(topic, 0) == 0)
            assert offsets(consumer.unpack(batch)) == []
        with client.consumer(topic, group="before-reset", follow=False) as consumer:
            assert offsets(consumer) == list(range(10))


@pytest.mark.over_tcp
@pytest.mark.rule(15)
@pytest.mark.parametrize("begin", ["latest", "sought", "reset"])
def test_rule_15_what_is_committed_before_anything_came_has_its_epoch(broker, begin):
    topic = broker.create_topic()
    fill(broker, topic, 0, 10)
    fill(broker, topic, 10, 10)
    start = "latest" if begin == "latest" else "earliest"
    with broker.connect() as client:
        with client.consumer(topic, group="young", start=start) as consumer:
            consumer.assignment()
            if begin == "sought":
                consumer.seek(topic, 0, "latest")
            wait_until(
                lambda: (consumer.poll(1), consumer.committed()[topic, 0] is not None)[1],
                what="the first commit",
            )
        if begin == "reset":
            client.admin().reset_offsets(group="young", topic=topic, to=Offset.latest())
        assert client.admin().describe_group("young").partitions[0].committed == 20
    cut_power(broker, keep=1)
    broker.start()
    fill(broker, topic, 100, 15)  # offsets from 10 on are given a second time
    with broker.connect() as client, client.consumer(topic, group="young") as consumer:
        with pytest.raises(er.LogTruncatedError) as caught:
            consumer.poll(timeout=25)
        assert caught.value.divergence == 10


@pytest.mark.over_tcp
def test_of_two_with_one_instance_id_the_later_stays_and_the_other_is_told(node):
    topic = node.create_topic()
    options = {"group": "twins", "instance_id": "twin"}
    with node.connect() as client, client.consumer(topic, **options) as first:
        assert first.assignment() == [(topic, 0)]
        with client.consumer(topic, **options) as second:
            with pytest.raises(er.GroupError, match="taken over by process"):
                first.poll(timeout=25)
            assert second.assignment() == [(topic, 0)]
            assert second.metrics()["lost"] == 0


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", None])
def test_a_loop_that_ctrl_c_tore_at_a_batch_goes_on_there(node, guarantee, monkeypatch):
    topic = node.create_topic()
    fill(node, topic, 0, 1000)
    options = {} if guarantee is None else {"group": f"strike-{guarantee}", "guarantee": guarantee}
    records, strikes = Chunk.records, iter([True, True])

    def struck(chunk):
        if next(strikes, False):
            raise KeyboardInterrupt
        return records(chunk)

    came: list[int] = []
    with node.connect() as client, client.consumer(topic, follow=False, **options) as consumer:
        came += offsets(itertools.islice(consumer, 10))
        monkeypatch.setattr(Chunk, "records", struck)
        while len(came) < 1000:
            try:
                for record in consumer:
                    came.append(record.offset)
                break
            except KeyboardInterrupt:
                pass
        assert next(strikes, None) is None
    assert came == list(range(1000))


def test_at_most_once_where_latest_was_is_kept_before_anything_came(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    options = {"group": "amo-latest", "guarantee": "at-most-once", "start": "latest"}
    with node.connect() as client:
        with client.consumer(topic, **options) as consumer:
            assert not consumer.poll(timeout=0.05)
            wait_until(
                lambda: (consumer.poll(), consumer.committed() == {(topic, 0): 10})[1],
                what="the first claim",
            )
        fill(node, topic, 10, 5)
        with client.consumer(topic, follow=False, **options) as consumer:
            assert offsets(consumer) == list(range(10, 15))


@pytest.mark.over_tcp
@pytest.mark.parametrize("times", [2, 7])
def test_a_member_that_is_put_out_again_as_soon_as_it_has_joined_goes_on(node, monkeypatch, times):
    """As one that is stopped for too long, again and again: found by the histories."""
    topic, group = node.create_topic(), f"put-out-{times}"
    fill(node, topic, 0, 10)
    left = times
    being_known = GroupMembership.being_known

    def put_out(member: GroupMembership, timeout: float) -> Any:
        nonlocal left
        was_known = member._session is member._reader.session
        session = yield from being_known(member, timeout)
        if left and not was_known:
            left -= 1
            leave = co.LeaveGroup(group, member.member_id)
            yield from session.requesting(leave, Done, timeout)
        return session

    with node.connect() as client, client.consumer(topic, group=group) as consumer:
        monkeypatch.setattr(GroupMembership, "being_known", put_out)
        with client.admin() as admin:
            admin._ask(co.LeaveGroup(group, consumer._member.member_id), Done)
        consumer._changes.retry_at = 0.0  # as if the coordinator had rung
        came: list[int] = []
        while len(came) < 10:
            came += offsets(next(consumer.batches(timeout=10.0)))
        assert left == 0
        assert came == list(range(10))
