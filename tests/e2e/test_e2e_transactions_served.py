"""Transactions as the node serves them: decided once, marked in every partition, whoever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from group_members import RawMember
from node_helpers import NodeProcess, RawClient, Refusal, environment, eventually

from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_TRANSACTIONAL, BatchIdentity
from penstock.core.plain import encode_records
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import paths
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage


@pytest.fixture
def node(tmp_path):
    with NodeProcess(tmp_path / "data", "--writers", "2") as made:
        yield made.start()


class Sender:
    """A transactional producer by messages and frames."""

    def __init__(self, node, name="job", timeout=60.0, ready=None):
        self.name = name
        self.client = RawClient(paths.socket_in(node.folder), lo.KIND_PRODUCER)
        self.lanes = {}
        if ready is None:
            ready = self.ask(co.InitTransactions(name, timeout), co.TransactionReady)
        self.id, self.epoch = ready.producer_id, ready.producer_epoch
        self.stage = ready.stage

    def ask(self, request, expect=ms.Done):
        return self.client.ask(request, expect)

    def add(self, topic, *partitions):
        places = [(topic.topic_id, each) for each in partitions]
        self.ask(co.AddPartitions(self.name, self.id, self.epoch, places))

    def send(self, topic, partition=0, sequence=0):
        """The error of the answer to one record."""
        page = topic.pages[partition]
        writer = page % self.client.welcome.writers
        if writer not in self.lanes:
            self.lanes[writer] = self.client.open_lane(writer)
        image = encode_records(
            [(b"key", b"value")],
            BatchIdentity(topic.topic_id, partition, self.id, self.epoch, sequence),
            base_timestamp=1,
            attributes=ATTR_TRANSACTIONAL,
        )
        assert self.lanes[writer].try_write(page, [image], len(image)) is not None
        [ack] = eventually(self.lanes[writer].acks, "an answer")
        return ErrorCode(ack.error)

    def end(self, *, commit=True, offsets=(), epoch=None):
        epoch = self.epoch if epoch is None else epoch
        request = co.EndTransaction(self.name, self.id, epoch, commit, list(offsets))
        ended = self.ask(request, co.TransactionEnded)
        self.epoch = max(self.epoch, ended.next_epoch)
        return ended

    def close(self, *, bye=False):
        for lane in self.lanes.values():
            lane.mark_closed()
            lane.detach()
        self.client.close(bye=bye)


class Pages:
    """The state pages of a node, mapped once: they outlive it."""

    def __init__(self, node):
        with node.attach() as client:
            self.region = Region.of_fd(os.dup(client.fds[0]), writable=False)

    def stable(self, page):
        state = StatePage(self.region, page)
        return state.last_stable == state.high_watermark and state.oldest_open is None

    def durable(self, page):
        return StatePage(self.region, page).durable

    def ends(self, page):
        state = StatePage(self.region, page)
        return state.last_stable, state.log_end


def create(node, name="orders", **settings):
    with node.attach() as admin:
        return admin.create(name, **settings)


def listed(node):
    with node.attach() as admin:
        found = admin.ask(co.ListTransactions(), co.Transactions).transactions
        return {each.transactional_id: each.state for each in found}


def writer_of(node, topic, partition=0):
    with node.attach() as admin:
        described = admin.ask(ms.DescribeNode(), ms.NodeDescription)
        wanted = topic.pages[partition] % admin.welcome.writers
        return next(each.pid for each in described.writers if each.writer == wanted)


def topics_on_both_writers(node):
    """A topic whose partition 0 is not with the coordinator's writer, and its pages."""
    RawMember(paths.socket_in(node.folder), "g", "orders").close(bye=True)
    with node.attach() as admin:
        everything = admin.ask(ms.ListTopics("", True), ms.Topics).topics
        own = next(topic.pages[0] for topic in everything if topic.name == "__coordinator")
        topic = admin.create("apart", partitions=2)
        if topic.pages[0] % 2 == own % 2:
            topic = admin.create("apart2", partitions=1)
        assert topic.pages[0] % 2 != own % 2
        return topic


def test_what_is_committed_is_stable_once_that_is_answered(node):
    topic, pages = create(node, partitions=2), Pages(node)
    sender = Sender(node)
    sender.add(topic, 0, 1)
    assert pages.ends(topic.pages[0]) == (0, 1)  # its BEGIN
    assert [sender.send(topic, 0), sender.send(topic, 1)] == [ErrorCode.NONE] * 2
    assert listed(node) == {"job": "open"}
    ended = sender.end()
    assert (ended.committed, ended.next_epoch) == (True, 1)
    assert [pages.ends(page) for page in topic.pages] == [(3, 3), (3, 3)]
    assert sender.end(epoch=0) == ended, "asked again it is the same"
    assert listed(node) == {"job": "ready"}
    sender.close(bye=True)


@pytest.mark.rule(15)
def test_rule_15_markers_are_brought_to_the_device_though_nothing_follows_them(node):
    """Before that the coordinator must not forget them."""
    topic, pages = create(node, partitions=3), Pages(node)
    sender = Sender(node)
    for number in range(30):  # more than an id may have unmarked
        sender.add(topic, number % 3)
        assert sender.send(topic, number % 3) is ErrorCode.NONE
        assert sender.end().committed
    assert listed(node) == {"job": "ready"}
    eventually(lambda: [pages.durable(page) for page in topic.pages] == [30] * 3, "synced")
    sender.close(bye=True)


@pytest.mark.rule(19)
def test_rule_19_nothing_gets_in_unregistered_or_late(node):
    topic = create(node, partitions=2)
    sender = Sender(node)
    assert sender.send(topic) is ErrorCode.TRANSACTION_NOT_OPEN
    sender.end(commit=False)
    sender.add(topic, 0)
    assert sender.send(topic) is ErrorCode.NONE
    assert sender.send(topic, 1) is ErrorCode.TRANSACTION_NOT_OPEN
    sender.end(commit=False)
    sender.epoch -= 1
    assert sender.send(topic, 0, 1) is ErrorCode.STALE_PRODUCER_EPOCH
    with pytest.raises(Refusal, match="TransactionError"):
        sender.add(topic, 0)
    sender.close()


def test_taking_an_id_over_aborts_what_was_open_and_fences_its_producer(node):
    topic, pages = create(node), Pages(node)
    first = Sender(node)
    first.add(topic, 0)
    first.send(topic)
    second = Sender(node)
    assert (second.id, second.epoch) == (first.id, first.epoch + 2)
    assert pages.stable(topic.pages[0]), "its abort is marked before that is answered"
    assert first.send(topic, 0, 1) is ErrorCode.STALE_PRODUCER_EPOCH
    with pytest.raises(Refusal, match="ProducerFencedError"):
        first.end()
    second.add(topic, 0)
    assert second.send(topic) is ErrorCode.NONE
    assert second.end().committed
    first.close()
    second.close()


def test_consumed_offsets_count_with_the_transaction_or_not_at_all(node):
    topic = create(node, partitions=2)
    member = RawMember(paths.socket_in(node.folder), "g", "orders", guarantee="exactly-once")
    sender = Sender(node)

    def consumed(grant, offset):
        commit = co.OffsetCommit(topic.topic_id, 0, grant, offset)
        return [co.GroupOffsets("g", member.member_id, [commit])]

    def offset():
        with node.attach() as admin:
            found = admin.ask(co.DescribeGroup("g"), co.GroupDescription)
        return found.partitions[0].offset

    grant = member.owned[0].grant
    sender.add(topic, 1)
    sender.end(commit=False, offsets=consumed(grant, 4))
    assert offset() == -1
    sender.add(topic, 1)
    assert sender.end(offsets=consumed(grant, 5)).committed
    assert offset() == 5
    sender.add(topic, 1)
    with pytest.raises(Refusal, match="StaleGenerationError"):
        sender.end(offsets=consumed(grant + 1, 6))
    assert offset() == 5
    assert not sender.end(commit=False).committed
    node.kill()
    node.start()
    assert offset() == 5
    sender.close()
    member.close()


def test_a_transaction_that_takes_too_long_is_aborted(node):
    topic, pages = create(node), Pages(node)
    sender = Sender(node, timeout=2.0)
    sender.add(topic, 0)
    sender.send(topic)
    eventually(lambda: pages.stable(topic.pages[0]), "aborted")
    with pytest.raises(Refusal, match=r"TransactionError.*too long"):
        sender.end()
    sender.close()


PRODUCER = """
import sys, penstock
client = penstock.connect(sys.argv[1])
producer = client.producer(transactional_id="job", linger=0)
producer.begin_transaction()
producer.send_and_wait("orders", b"x")
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.rule(19)
def test_rule_19_what_a_dead_producer_had_open_is_aborted_once_its_lane_is_drained(node):
    topic, pages = create(node), Pages(node)
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, f"shm://{node.folder}"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env=environment(),
    ) as producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == b"sent\n"
        assert not pages.stable(topic.pages[0])
        producer.kill()
    eventually(lambda: pages.stable(topic.pages[0]), "aborted")
    assert listed(node) == {"job": "ready"}


def test_markers_go_on_over_the_deaths_of_writer_and_node(node):
    topic, pages = topics_on_both_writers(node), Pages(node)
    sender = Sender(node)
    sender.add(topic, 0)
    sender.send(topic)
    os.kill(writer_of(node, topic), signal.SIGSTOP)  # its marker has to wait
    assert sender.end().committed, "answered all the same"
    assert listed(node) == {"job": "committing"}
    assert not pages.stable(topic.pages[0])
    stopped = writer_of(node, topic)
    node.kill()
    os.kill(stopped, signal.SIGKILL)
    node.start()
    eventually(lambda: pages.stable(topic.pages[0]), "marked")
    eventually(lambda: listed(node) == {"job": "ready"}, "known to be marked")
    sender.close()


def test_the_next_transaction_opens_only_where_the_last_one_is_marked(node):
    topic, pages = topics_on_both_writers(node), Pages(node)
    sender = Sender(node)
    sender.add(topic, 0)
    sender.send(topic)
    writer = writer_of(node, topic)
    os.kill(writer, signal.SIGSTOP)
    sender.end()
    request = co.AddPartitions("job", sender.id, sender.epoch, [(topic.topic_id, 0)])
    sender.client.channel.send(request)
    os.kill(writer, signal.SIGKILL)
    assert sender.client.next() == ms.Done()
    assert sender.send(topic) is ErrorCode.NONE
    sender.end()
    assert pages.ends(topic.pages[0]) == (6, 6)
    sender.close()


def test_partitions_of_deleted_topics_count_as_marked(node):
    topic = topics_on_both_writers(node)
    sender = Sender(node)
    sender.add(topic, 0)
    writer = writer_of(node, topic)
    os.kill(writer, signal.SIGSTOP)
    sender.end()
    with node.attach() as admin:
        admin.channel.send(ms.DeleteTopic(topic.name))
        eventually(lambda: topic.name not in node_topics(node), "deleted")
        os.kill(writer, signal.SIGCONT)
        assert admin.next() == ms.Done()
    eventually(lambda: listed(node) == {"job": "ready"}, "nothing left to mark")
    with pytest.raises(Refusal, match="UnknownTopicError"):
        sender.add(topic, 0)
    sender.close()


def node_topics(node):
    with node.attach() as admin:
        return [topic.name for topic in admin.ask(ms.ListTopics(), ms.Topics).topics]


@pytest.mark.rule(20)
def test_rule_20_stages_count_together_once_and_those_not_listed_never(node):
    topic, pages = create(node, partitions=3), Pages(node)

    def stage(partition, epoch=7):
        with node.attach(lo.KIND_PRODUCER) as client:
            ready = client.ask(co.BeginStage("batch", epoch), co.TransactionReady)
        sender = Sender(node, "batch", ready=ready)
        sender.add(topic, partition)
        assert sender.send(topic, partition) is ErrorCode.NONE
        return sender

    stages = [stage(0), stage(1), stage(2)]
    names = [each.stage for each in stages[:2]]
    with node.attach() as admin:
        request = co.CommitTransaction("batch", 7, names)
        decided = admin.ask(request, co.TransactionEnded)
        assert (decided.committed, decided.decided) == (True, 7)
        assert all(pages.stable(page) for page in topic.pages)
        assert admin.ask(request, co.TransactionEnded) == decided
        late = co.CommitTransaction("batch", 7, [stages[2].stage])
        assert admin.ask(late, co.TransactionEnded) == decided
        with pytest.raises(Refusal, match="StageDecidedError"):
            admin.ask(co.BeginStage("batch", 6), co.TransactionReady)
    for each in stages:
        each.close()


def test_a_transaction_that_nobody_knows_is_found_and_aborted(node):
    topic, pages = create(node), Pages(node)
    sender = Sender(node)
    sender.add(topic, 0)
    sender.send(topic)
    assert node.stop() == 0
    document = json.loads((node.folder / "topics.json").read_text())
    [own] = [each for each in document["topics"] if each["name"] == "__coordinator"]
    document["topics"].remove(own)
    (node.folder / "topics.json").write_text(json.dumps(document))
    shutil.rmtree(node.folder / f"{own['topic_id']}-0")
    node.start()
    pages = Pages(node)
    assert not pages.stable(topic.pages[0])
    RawMember(paths.socket_in(node.folder), "g", "orders").close(bye=True)
    eventually(lambda: pages.stable(topic.pages[0]), "swept")
    sender.close()
