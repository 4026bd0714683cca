"""Control batches between brokers: to whoever leads, answered once committed, sent again for free.

Two brokers with real logs, lanes and doorbells. Who leads, what is committed, and what becomes of a
request on its way is in the test's hand.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from coordinator_fixture import (
    COORDINATOR,
    TOPIC_ID,
    BrokerWorld,
    running,
    turns,
)

from penstock.core.control import ControlType, encode_control
from penstock.core.errors import CorruptBatchError, ErrorCode, PenstockTimeout, ResourceLimitError
from penstock.core.header import BatchIdentity
from penstock.core.plain import encode_records
from penstock.ipc import layout as lo
from penstock.ipc.state import OpenSince
from penstock.server.coordinator import brokers, control_batches, orphan_transactions, port
from penstock.server.coordinator.control_batches import ToLeaders
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.coordinator.port import ControlPort

PLACE = (TOPIC_ID, 0)
PRODUCER = 1 << lo.PRODUCER_COUNTER_BITS | 7
HERE, THERE = 1, 2


def image(kind=ControlType.BEGIN, epoch=0, coordinator_epoch=1):
    return encode_control(
        kind, producer_id=PRODUCER, producer_epoch=epoch, coordinator_epoch=coordinator_epoch,
        timestamp=time.time_ns() // 1000, topic_id=TOPIC_ID, partition=0,
    )  # fmt: skip


class Broker:
    """A world with a port, which is what the coordinator of another broker reaches."""

    def __init__(self, folder):
        folder.mkdir()
        self.world = BrokerWorld(folder)
        self.port = ControlPort(self._mailbox, lambda _: self.world.state)

    def _mailbox(self, woken, lost, is_waited):
        box = Mailbox(
            self.world.grants,
            self.world.seats,  # type: ignore[arg-type]
            1,
            COORDINATOR,
            woken=woken,
            lost=lost,
            is_waited=is_waited,
            replicated=self.world.tables,
        )
        self.world.mailboxes.append(box)
        return box

    def close(self):
        self.port.close(retire=False)
        self.world.close()


class Net:
    """Both brokers as the coordinator of the first sees them."""

    broker = HERE

    def __init__(self, tmp_path):
        self.here, self.there = Broker(tmp_path / "here"), Broker(tmp_path / "there")
        self.leader = THERE
        self.lost_answers = 0
        self.sent = []
        self.carriage = ToLeaders(self.here.world.mailbox, lambda _: self.here.world.state, self)

    def topics(self):
        return []

    async def coordinator_epoch(self):
        return 1

    def leader_of(self, page):
        return self.leader

    async def send_control(self, broker, request, timeout):
        assert broker == THERE
        asked = brokers.decode_request(request)
        assert isinstance(asked, brokers.ControlRequest)
        self.sent.append(asked)
        answer = await self.there.port.take(asked)
        if self.lost_answers:
            self.lost_answers -= 1
            raise PenstockTimeout("the answer is lost")
        return answer

    def send(self, batch, *, sync=False):
        """Its answer, as a future."""
        answer = asyncio.get_running_loop().create_future()
        self.carriage.send(0, PLACE, batch, answer.set_result, sync=sync)
        return answer

    async def arrived(self, count=1, broker=None):
        """So many frames are in the lane of that broker, and drained."""
        world, left = (broker or self.there).world, count
        while left:
            await asyncio.sleep(0)
            left -= world.drain() if world.lanes() else 0

    def close(self):
        self.carriage.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def run(tmp_path):
    return running(partial(Net, tmp_path))


def test_a_batch_goes_to_the_leader_and_is_answered_once_it_is_committed_there(run):
    async def scenario(net):
        answer = net.send(image())
        await net.arrived()
        await turns()
        assert not answer.done()
        net.there.world.commit()
        ack = await answer
        assert (ack.error, ack.base_offset, ack.leader_epoch) == (0, 0, 1)
        assert net.there.world.log.log_end == 1
        assert net.here.world.log.log_end == 0

    run(scenario)


def test_a_batch_for_a_partition_that_is_led_here_takes_the_own_lane(run):
    async def scenario(net):
        net.leader = HERE
        answer = net.send(image())
        await net.arrived(broker=net.here)
        net.here.world.commit()
        assert (await answer).error == 0
        assert not net.sent

    run(scenario)


def test_what_comes_in_one_turn_is_one_request(run):
    async def scenario(net):
        answers = [net.send(image(epoch=0)), net.send(image(ControlType.ABORT, 1))]
        await net.arrived(2)
        net.there.world.commit()
        assert [(await answer).base_offset for answer in answers] == [0, 1]
        assert [len(request.batches) for request in net.sent] == [2]

    run(scenario)


def test_while_nobody_leads_it_is_refused_for_now(run):
    async def scenario(net):
        net.leader = None
        assert (await net.send(image())).error == ErrorCode.NOT_LEADER

    run(scenario)


def test_a_broker_that_follows_or_has_no_such_partition_is_not_the_leader(run):
    async def scenario(net):
        for error in (ErrorCode.NOT_LEADER, ErrorCode.UNKNOWN_PARTITION):
            answer = net.send(image())
            while not net.there.world.lanes() or not net.there.world.drain(error=error):
                await asyncio.sleep(0)
            assert (await answer).error == ErrorCode.NOT_LEADER

    run(scenario)


def test_a_lost_answer_is_a_refusal_and_the_repetition_is_the_same_batch(run):
    async def scenario(net):
        net.lost_answers = 1
        first = net.send(image(ControlType.COMMIT, 1))
        await net.arrived()
        net.there.world.commit()
        assert (await first).error == ErrorCode.NOT_LEADER
        again = net.send(image(ControlType.COMMIT, 1))
        await net.arrived()
        ack = await again
        assert (ack.error, ack.base_offset) == (0, 0)
        assert net.there.world.log.log_end == 1

    run(scenario)


def test_what_is_committed_later_than_a_request_waits_is_not_sent_a_second_time(run, monkeypatch):
    monkeypatch.setattr(control_batches, "WAIT", 0.05)

    async def scenario(net):
        first = net.send(image())
        await net.arrived()
        assert (await first).error == ErrorCode.NOT_LEADER
        again = net.send(image())
        await turns()
        assert net.there.world.drain() == 0, "the first is still waited for"
        net.there.world.commit()
        assert (await again).error == 0
        assert len(net.sent) == 2

    run(scenario)


def test_the_end_of_a_leader_epoch_over_there_is_a_refusal(run):
    async def scenario(net):
        answer = net.send(image())
        await net.arrived()
        net.there.world.follow(2)
        net.there.world.commit()
        assert (await answer).error == ErrorCode.NOT_LEADER

    run(scenario)


def test_a_sync_is_answered_when_it_is_on_the_other_device(run):
    async def scenario(net):
        answer = net.send(image())
        await net.arrived()
        net.there.world.commit()
        await answer
        assert net.carriage.durable(0, PLACE) == 0
        again = net.send(image(), sync=True)
        await net.arrived()
        await turns()
        assert not again.done()
        net.there.world.sync()
        await again
        assert net.carriage.durable(0, PLACE) == 1
        assert net.carriage.durable(0, (TOPIC_ID, 1)) == 0

    run(scenario)


def test_a_marker_of_an_ended_epoch_says_below_what_its_successor_stands(run):
    async def scenario(net):
        for batch in (image(ControlType.ABORT, 1), image(epoch=5), image(ControlType.ABORT, 2)):
            answer = net.send(batch)
            await net.arrived()
            net.there.world.commit()
            ack = await answer
        assert (ack.error, ack.base_offset) == (ErrorCode.STALE_PRODUCER_EPOCH, 1)

    run(scenario)


def test_a_request_that_takes_long_holds_no_later_one_up(run):
    async def scenario(net):
        first = net.send(image(ControlType.ABORT, 1))
        await net.arrived()
        net.there.world.commit(0)
        second = net.send(image(epoch=7))
        await net.arrived()
        assert len(net.sent) == 2
        assert not first.done()
        net.there.world.commit()
        assert ((await first).error, (await second).error) == (0, 0)

    run(scenario)


def test_after_the_end_nobody_is_told_anything(run):
    async def scenario(net):
        answer = net.send(image())
        await net.arrived()
        net.carriage.close()
        net.there.world.commit()
        await turns()
        assert not answer.done()

    run(scenario)


# --- what a broker takes in ----------------------------------------------------------------------
def request(*images):
    batches = [brokers.ControlBatch(0, each) for each in images]
    return brokers.encode(brokers.ControlRequest(batches, 1.0))


SUSPECT = brokers.Suspect(PRODUCER, 3, TOPIC_ID, 0)
PLAIN = encode_records(
    [(b"k", b"v")], BatchIdentity(TOPIC_ID, 0, COORDINATOR, 0, 0), base_timestamp=0
)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x92\x01\x02",
        bytes(brokers.REQUEST_BYTES_MAX + 1),
        request(b"short"),
        request(PLAIN),
        request(image() + bytes(2000)),
        request(*[image()] * (brokers.BATCHES_MAX + 1)),
        brokers.encode(brokers.Suspects([SUSPECT] * (brokers.SUSPECTS_MAX + 1))),
    ],
    ids=["nothing", "no msgpack", "other fields", "long", "no batch", "records", "large", "many",
         "suspects"],
)  # fmt: skip
def test_nothing_but_control_batches_is_written_for_another_broker(payload):
    with pytest.raises(CorruptBatchError):
        brokers.decode_request(payload)


def test_a_page_that_cannot_be_is_refused(run):
    async def scenario(net):
        batches = [brokers.ControlBatch(lo.PAGES_MAX, image()), brokers.ControlBatch(-1, image())]
        payload = await net.there.port.take(brokers.ControlRequest(batches, 1.0))
        acks = brokers.decode_answer(payload, 2)
        assert [ack.error for ack in acks] == [ErrorCode.UNKNOWN_PARTITION] * 2

    run(scenario)


def test_what_is_pending_is_bounded(run, monkeypatch):
    monkeypatch.setattr(port, "PENDING_MAX", 1)

    async def scenario(net):
        batches = [brokers.ControlBatch(0, image()), brokers.ControlBatch(0, image(epoch=3))]
        with pytest.raises(ResourceLimitError, match="PENDING_MAX=1"):
            await net.there.port.take(brokers.ControlRequest(batches, 1.0))

    run(scenario)


@pytest.mark.parametrize("payload", [b"", b"\xc1", brokers.encode(brokers.ControlAnswer([]))])
def test_an_answer_that_does_not_fit_is_refused(payload):
    with pytest.raises(CorruptBatchError):
        brokers.decode_answer(payload, 1)


def test_an_answer_that_does_not_fit_leaves_the_batches_to_be_sent_again(run, monkeypatch):
    async def scenario(net):
        async def nonsense(broker, request, timeout):
            return b"nonsense"

        monkeypatch.setattr(net, "send_control", nonsense, raising=True)
        assert (await net.send(image())).error == ErrorCode.NOT_LEADER

    run(scenario)


def test_what_waits_for_one_broker_is_bounded(run, monkeypatch):
    monkeypatch.setattr(control_batches, "WAITING_MAX", 2)
    monkeypatch.setattr(brokers, "BATCHES_MAX", 1)

    async def scenario(net):
        answers = [net.send(image(ControlType.ABORT, epoch)) for epoch in (1, 2, 3)]
        assert (await answers[2]).error == ErrorCode.NOT_LEADER
        await net.arrived(2)
        net.there.world.commit()
        assert [(await answer).error for answer in answers[:2]] == [0, 0]

    run(scenario)


# --- what stands open for long -------------------------------------------------------------------
def test_a_broker_tells_of_what_has_been_open_for_a_while_where_it_leads(run):
    async def scenario(net):
        state, pages = net.there.world.state, {TOPIC_ID: [0]}

        def found(now_us):
            return list(orphan_transactions.open_in(pages, lambda _: state, 500, now_us))

        assert found(1 << 60) == []
        state.publish_oldest_open(OpenSince(PRODUCER, 3, 500))
        assert found(1000) == [SUSPECT]
        assert found(999) == [], "it is too young to be told of"
        assert found(499) == [SUSPECT], "nobody knows how old it is"
        state.publish_status(lo.STATUS_OFFLINE)
        assert found(1000) == [], "who leads it tells"
        state.publish_status(lo.STATUS_ONLINE)
        pages[b"d" * 16] = pages.pop(TOPIC_ID)
        assert found(1000) == [], "the page is not of that topic, or not yet"

    run(scenario)


def test_suspects_are_told_again_while_nobody_hears(run, monkeypatch):
    monkeypatch.setattr(orphan_transactions, "EVERY", 0.01)
    told = []

    async def tell(suspects):
        told.append(suspects)
        if len(told) < 3:
            raise [PenstockTimeout("nobody"), RuntimeError("worse")][len(told) - 1]
        done.set()

    done = asyncio.Event()

    async def scenario(net):
        state = net.there.world.state
        state.publish_oldest_open(OpenSince(PRODUCER, 3, 1000))
        suspecting = orphan_transactions.Suspecting(lambda: {TOPIC_ID: [0]}, lambda _: state, tell)
        suspecting.begin()
        await done.wait()
        suspecting.close()
        assert told == [[SUSPECT]] * 3

    run(scenario)
