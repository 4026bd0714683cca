"""Brokers of a cluster by the wire protocol: who leads what, what is answered when, and by whom."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_helpers import children, eventually
from wire import Dealer, batch_of

from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.testing import Cluster

ADMIN, PRODUCER, CONSUMER = 1, 2, 3
NUMBERS = (1, 2, 3)
REPLICATED = ms.TopicSettings(replication_factor=3, min_insync_replicas=2)

pytestmark = pytest.mark.timeout(180)


class Client:
    """A connection to one broker, and what it was told of the cluster last."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.number = number
        self.dealer = Dealer(cluster.broker(number).tcp_url)
        self.leaders = self.dealer.hear(fr.Leaders)
        self.dealer.attach(ADMIN, lo.KIND_ADMIN)

    def hear_leaders(self, within: float = 20.0) -> fr.Leaders:
        self.leaders = self.dealer.hear(fr.Leaders, within)
        return self.leaders

    def leader_of(self, page: int, *besides: int) -> int:
        """Who leads it, other than these."""
        while (leader := dict(self.leaders.leaders).get(page, fr.NOBODY)) in (fr.NOBODY, *besides):
            self.hear_leaders()
        return leader

    def producer(self, resume: int | None = None, token: bytes = b"") -> fr.Attached:
        self.attached = self.dealer.attach(PRODUCER, lo.KIND_PRODUCER, resume=resume, token=token)
        self.sent = 0
        return self.attached

    def produce(self, topic: ms.TopicInfo, batch: bytes, *, committed: bool = True) -> None:
        page = topic.pages[0]
        writer, flags = page % self.attached.writers, lo.FRAME_COMMITTED * committed
        self.dealer.say(fr.Produce(PRODUCER, writer, self.sent, page, flags), batch)
        self.sent += 1

    def ack(self) -> fr.Ack:
        [ack] = self.dealer.acks(1)
        return ack

    def fetch(self, topic: ms.TopicInfo, cursor: int) -> None:
        self.dealer.say(
            fr.Fetch(CONSUMER, cursor, topic.pages[0], topic.topic_id, 0, 0, -1, False, 1 << 20)
        )

    def fetch_to(self, topic: ms.TopicInfo, end: int) -> int:
        """Fetch from 0 until that much has come, however often its leader has yet to lead."""
        cursor = offset = 0
        while offset < end:
            if not offset:
                cursor += 1
                self.fetch(topic, cursor)
            said = self.dealer.hear_either((fr.Fetched, fr.CursorFailed))
            if isinstance(said, fr.Fetched):
                offset = said.next_offset
                continue
            assert isinstance(said, fr.CursorFailed)
            assert said.error == "NotLeaderError", said
            offset = 0
            time.sleep(0.05)
        return offset

    def close(self) -> None:
        self.dealer.close()


class World:
    """A cluster, and a client of each broker."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clients = {number: Client(cluster, number) for number in NUMBERS}

    def topic(self, name: str, settings: ms.TopicSettings = REPLICATED) -> ms.TopicInfo:
        found = self.clients[1].dealer.ask(ADMIN, ms.CreateTopic(name, settings), 10.0)
        assert isinstance(found, ms.TopicFound), found
        return found.topic

    def leader_of(self, topic: ms.TopicInfo) -> Client:
        """Once it takes batches."""
        client = self.clients[self.clients[1].leader_of(topic.pages[0])]
        client.producer()

        def takes() -> bool:
            client.produce(topic, batch_of([b"0"], topic, client.attached.producer_id, 0))
            code = client.ack().error
            assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER), code
            if code:
                client.dealer.say(fr.Detach(PRODUCER))
                client.producer(client.attached.producer_id, client.attached.token)
            return not code

        eventually(takes, "that its leader leads")
        return client

    def others(self, client: Client) -> list[Client]:
        return [each for each in self.clients.values() if each is not client]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def replicator_of(cluster: Cluster, number: int) -> int:
    for pid in children(cluster.broker(number).pid):
        if "replicator.main" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError("it has no replicator")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Raw connections say nothing of themselves, however long a test takes on a busy machine.
    with Cluster(brokers=3, options={"client_silence_max": 120.0}) as cluster:
        yield cluster


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    cluster.start()
    cluster.wait_ready()
    world = World(cluster)
    yield world
    world.close()


def test_every_broker_says_who_it_is_and_who_leads_what(world: World) -> None:
    welcomes = {number: client.dealer.welcome for number, client in world.clients.items()}
    assert {number: welcome.broker for number, welcome in welcomes.items()} == dict(
        zip(NUMBERS, NUMBERS, strict=True)
    )
    [cluster_id] = {welcome.cluster for welcome in welcomes.values()}
    assert len(cluster_id) == 16
    topic = world.topic("told", ms.TopicSettings(partitions=3, replication_factor=3))
    led = set()
    for client in world.clients.values():
        led.add(tuple(client.leader_of(page) for page in topic.pages))
        assert dict(client.leaders.brokers) == {
            number: world.cluster.broker(number).tcp_url for number in NUMBERS
        }
    assert len(led) == 1, "they agree"


def test_a_client_that_knows_of_no_clusters_is_sent_away(cluster: Cluster) -> None:
    apis = {api: versions for api, versions in fr.APIS.items() if api != "cluster"}
    with Dealer(cluster.broker(1).tcp_url, hello=False) as dealer:
        dealer.say(fr.Hello(fr.PROTOCOL_VERSION, apis, "old", bytes(16)))
        refused = dealer.hear(fr.Refused)
    assert refused.error == "UnsupportedVersionError"
    assert "broker 1 of a cluster" in refused.message


def test_what_is_led_elsewhere_is_not_served(world: World) -> None:
    topic = world.topic("elsewhere")
    leader = world.leader_of(topic)
    page = topic.pages[0]
    for client in world.others(leader):
        client.producer(leader.attached.producer_id, leader.attached.token)
        client.produce(topic, batch_of([b"1"], topic, leader.attached.producer_id, 1))
        assert client.ack().error == ErrorCode.NOT_LEADER
        client.dealer.attach(CONSUMER, lo.KIND_CONSUMER)
        client.fetch(topic, 1)
        assert client.dealer.hear(fr.CursorFailed).error == "NotLeaderError"
        told = client.dealer.ask(ADMIN, lk.LookUpTime(page, topic.topic_id, 0, 1))
        assert isinstance(told, ms.Refused)
        assert told.error == "NotLeaderError"
    leader.dealer.attach(CONSUMER, lo.KIND_CONSUMER)
    leader.fetch(topic, 1)
    assert leader.dealer.hear(fr.Fetched).next_offset == 1
    assert isinstance(
        leader.dealer.ask(ADMIN, lk.LookUpTime(page, topic.topic_id, 0, 1)), lk.TimeLookedUp
    )


def test_a_committed_answer_waits_for_the_replicas_that_count(world: World) -> None:
    topic = world.topic("waits")
    leader = world.leader_of(topic)
    producer_id = leader.attached.producer_id
    followers = [replicator_of(world.cluster, client.number) for client in world.others(leader)]
    for pid in followers:
        os.kill(pid, signal.SIGSTOP)
    try:
        leader.produce(topic, batch_of([b"1"], topic, producer_id, 1), committed=False)
        assert leader.ack().error == ErrorCode.NONE
        leader.produce(topic, batch_of([b"2"], topic, producer_id, 2))
        leader.produce(topic, batch_of([b"3"], topic, producer_id, 3), committed=False)
        with pytest.raises(AssertionError, match="no Acks came"):
            leader.dealer.hear(fr.Acks, 0.5)
    finally:
        for pid in followers:
            os.kill(pid, signal.SIGCONT)
    answers = leader.dealer.acks(2)
    assert [(ack.base_offset, ack.error) for ack in answers] == [(2, 0), (3, 0)]


def test_batches_without_an_answer_go_to_the_next_leader_once(world: World) -> None:
    """Its id, epoch and sequences are in the replicated log, and its token holds in the cluster."""
    topic = world.topic("dies")
    page = topic.pages[0]
    leader = world.leader_of(topic)
    was = leader.attached
    batches = [batch_of([b"%d" % n], topic, was.producer_id, n) for n in range(1, 40)]
    for batch in batches[:5]:
        leader.produce(topic, batch)
    assert {ack.error for ack in leader.dealer.acks(5)} == {ErrorCode.NONE}
    for batch in batches[5:]:
        leader.produce(topic, batch)  # nobody hears what is answered to these
    world.cluster.broker(leader.number).kill()
    survivor = world.others(leader)[0]
    after = world.clients[survivor.leader_of(page, leader.number)]
    position = 5
    attached = False

    def all_are_in() -> bool:
        nonlocal position, attached
        if attached:
            after.dealer.say(fr.Detach(PRODUCER, returns=True))
        after.producer(was.producer_id, was.token)
        attached = True
        for batch in batches[position:]:
            after.produce(topic, batch)
        for ack in after.dealer.acks(len(batches) - position):
            if ack.error:
                assert ack.error == ErrorCode.NOT_LEADER
                return False
            position += 1
        return True

    eventually(all_are_in, "that all are committed")
    after.dealer.attach(CONSUMER, lo.KIND_CONSUMER)
    offset = after.fetch_to(topic, len(batches) + 1)
    with pytest.raises(AssertionError, match="no Fetched came"):
        after.dealer.hear(fr.Fetched, 0.2)
    assert offset == len(batches) + 1, "each of them once"


def test_cursors_end_when_their_partition_is_led_elsewhere(world: World) -> None:
    topic = world.topic("moves")
    leader = world.leader_of(topic)
    leader.dealer.attach(CONSUMER, lo.KIND_CONSUMER)
    leader.fetch(topic, 1)
    leader.dealer.hear(fr.Fetched)
    node = world.cluster.broker(leader.number).pid
    os.kill(node, signal.SIGSTOP)  # the cluster misses it, and it hears of that later
    try:
        survivor = world.others(leader)[0]
        survivor.leader_of(topic.pages[0], leader.number)
    finally:
        os.kill(node, signal.SIGCONT)
    failed = leader.dealer.hear(fr.CursorFailed, 30.0)
    assert failed.error == "NotLeaderError"
    assert leader.leader_of(topic.pages[0], leader.number) == survivor.leader_of(topic.pages[0])
