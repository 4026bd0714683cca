"""What a replicator does with bytes, brokers and networks that are not as they should be: nothing
gets into a log that its leader does not have, and all goes on when the trouble is over."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from node_helpers import eventually
from replicator_fixture import (
    CLUSTER,
    TOPIC,
    Broker,
    Frames,
    Producer,
    Proxy,
    World,
)
from unit.core.log_helpers import make_batch

from penstock.cluster.replica import Fetched, FetchRequest, ReplicaRefusal
from penstock.core.header import stamp
from penstock.security.keys import ServerKey, new_pair
from penstock.server.replicator import protocol


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    with World(tmp_path) as made:
        made.topic()
        made.leader()
        yield made


def follower_of(world: World) -> Broker:
    leader = world.leader()
    return next(each for each in world.brokers.values() if each is not leader)


def goes_on(world: World, count: int = 20) -> None:
    """Records are committed on all three replicas."""
    leader = world.leader()
    first = leader.page().log_end
    producer = Producer(leader)
    for sequence in range(first, first + count):
        producer.send(sequence)
    assert not any(ack.error for ack in producer.settle())
    world.wait_isr(*world.brokers)
    world.wait_committed(first + count)
    world.check_equal()


@contextlib.contextmanager
def dealer(url: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVTIMEO, 25_000)
        made.connect(url)
        yield made


def hello(world: World, me: int, leader: Broker, **changes: object) -> protocol.Hello:
    said = protocol.Hello(protocol.VERSION, CLUSTER, me, world.brokers[me].epoch, leader.number)
    return msgspec.structs.replace(said, **changes)


def answered(
    other: zmq.Socket[bytes], said: protocol.Hello, fetch: protocol.Fetch
) -> protocol.Answers | protocol.Refused:
    """What a fetch is answered, by a connection that says who it is, and again as often as the real
    one takes its place back."""
    while True:
        other.send(protocol.encode(said))
        other.send(protocol.encode(fetch))
        while True:
            answer = protocol.from_leader(other.recv_multipart())
            if answer == protocol.Refused("say hello"):
                break
            if isinstance(answer, protocol.Refused):
                return answer
            if isinstance(answer, protocol.Answers) and (
                answer.fetched or answer.diverged or answer.refused
            ):
                return answer


# --- at the port ---------------------------------------------------------------------------------
def test_garbage_at_the_port_ends_who_sent_it(world):
    leader = world.leader()
    dice = random.Random(7)
    for _ in range(20):
        with dealer(leader.url) as stranger:
            stranger.send_multipart([dice.randbytes(dice.randrange(200)) for _ in range(3)])
            refused = protocol.from_leader(stranger.recv_multipart())
            assert isinstance(refused, protocol.Refused)
    for raw in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000)):
        host, port = leader.url.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(raw)
    goes_on(world)
    eventually(lambda: leader.counts.get("garbage", 0) >= 20, "it is counted")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 99}, "version 99"),
        ({"cluster_id": b"another"}, "cluster"),
        ({"to": 77}, "broker 77 is asked"),
        ({"broker_epoch": 0}, "a later life"),
    ],
)
def test_who_is_wrong_here_is_not_served(world, changes, why):
    leader, me = world.leader(), follower_of(world)
    with dealer(leader.url) as other:
        other.send(protocol.encode(hello(world, me.number, leader, **changes)))
        refused = protocol.from_leader(other.recv_multipart())
        assert isinstance(refused, protocol.Refused)
        assert why in refused.why
    goes_on(world)


def test_requests_before_a_hello_and_in_anothers_name(world):
    leader, me = world.leader(), follower_of(world)
    with dealer(leader.url) as other:
        request = FetchRequest(1, me.number, me.epoch, 0, 0, None, 0)
        other.send(protocol.encode(protocol.Fetch(1, [(0, TOPIC, request)])))
        assert protocol.from_leader(other.recv_multipart()) == protocol.Refused("say hello")
        third = next(n for n in world.brokers if n not in (me.number, leader.number))
        stolen = msgspec.structs.replace(request, broker=third)
        fetch = protocol.Fetch(1, [(0, TOPIC, stolen)])
        answers = answered(other, hello(world, me.number, leader), fetch)
        assert isinstance(answers, protocol.Refused)
        assert "asks for broker" in answers.why
    goes_on(world)


def asked(
    world: World, leader: Broker, me: Broker, page: int, topic: bytes, request: FetchRequest
) -> protocol.Answers:
    """What that request is answered, by a connection of its own."""
    with dealer(leader.url) as other:
        fetch = protocol.Fetch(1, [(page, topic, request)])
        answers = answered(other, hello(world, me.number, leader), fetch)
        assert isinstance(answers, protocol.Answers), answers
        return answers


def test_old_epochs_unknown_partitions_and_other_topics_are_refused(world):
    goes_on(world)
    leader, me = world.leader(), follower_of(world)
    right = FetchRequest(1, me.number, me.epoch, world.partition().leader_epoch, 0, None, 0)
    replace = msgspec.structs.replace
    for page, topic, request, why in [
        (0, TOPIC, replace(right, broker_epoch=me.epoch - 1), ReplicaRefusal.OLD_BROKER),
        (0, TOPIC, replace(right, leader_epoch=99), ReplicaRefusal.NEW_EPOCH),
        (5, TOPIC, right, ReplicaRefusal.NOT_LEADER),
        (0, bytes(16), right, ReplicaRefusal.NOT_LEADER),
    ]:
        answers = asked(world, leader, me, page, topic, request)
        assert [refused.why for _, refused in answers.refused] == [why]
    answers = asked(world, me, leader, 0, TOPIC, replace(right, broker=leader.number,
                    broker_epoch=leader.epoch))  # fmt: skip
    assert [refused.why for _, refused in answers.refused] == [ReplicaRefusal.NOT_LEADER]
    goes_on(world)


def test_only_who_has_the_clusters_key_is_heard(tmp_path):
    public, secret = new_pair()
    with World(tmp_path, key=ServerKey(public=public, secret=secret)) as world:
        world.topic()
        goes_on(world)
        leader, me = world.leader(), follower_of(world)
        other_public, other_secret = (key.encode() for key in new_pair())
        with (
            dealer(leader.url) as plain,
            zmq.Context() as context,
            context.socket(zmq.DEALER) as stranger,
        ):
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.setsockopt(zmq.CURVE_SERVERKEY, public.encode())
            stranger.setsockopt(zmq.CURVE_PUBLICKEY, other_public)
            stranger.setsockopt(zmq.CURVE_SECRETKEY, other_secret)
            stranger.connect(leader.url)
            for each in (plain, stranger):
                for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                    each.setsockopt(option, 500)
                # Nowhere to send to, once it has been turned away.
                with pytest.raises(zmq.Again):  # noqa: PT012 - at one of them
                    each.send(protocol.encode(hello(world, me.number, leader)))
                    each.recv_multipart()
        goes_on(world)


# --- leaders that lie, networks that lose --------------------------------------------------------
def is_data(frames: Frames) -> bool:
    return len(frames) > 1


def flipped(frames: Frames, dice: random.Random) -> Frames:
    data = bytearray(frames[1])
    at = dice.randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    return [frames[0], bytes(data), *frames[2:]]


def answer_of(frames: Frames) -> tuple[int, int, int, Fetched]:
    """What was heard, and of its first answer: page, frames, answer."""
    message = protocol.from_leader(frames)
    assert isinstance(message, protocol.Answers)
    return message.heard, *message.fetched[0]


def foreign(frames: Frames, **changes: object) -> Frames:
    """A good batch, but not one that is due."""
    heard, page, _, fetched = answer_of(frames)
    about: dict[str, object] = {"topic_id": TOPIC, "partition": 0, **changes}
    batch = make_batch(0, producer=7, body=512, **about)  # type: ignore[arg-type]
    head = bytearray(batch[:128])
    stamp(head, base_offset=fetched.offset, leader_epoch=0, generation=1, append_timestamp=1)
    answers = protocol.Answers(heard, [(page, 1, fetched)])
    return [protocol.encode(answers), bytes(head) + bytes(batch[128:])]


def changed(frames: Frames, **changes: object) -> Frames:
    heard, page, runs, fetched = answer_of(frames)
    answers = protocol.Answers(heard, [(page, runs, msgspec.structs.replace(fetched, **changes))])
    return [protocol.encode(answers), *frames[1 : 1 + runs]]


def elsewhere(frames: Frames) -> Frames:
    return changed(frames, offset=answer_of(frames)[3].offset + 3)


def another_epoch(frames: Frames) -> Frames:
    return changed(frames, leader_epoch=answer_of(frames)[3].leader_epoch + 5)


def through(world: World, proxy: Proxy) -> Broker:
    """A follower that hears the leader by the proxy."""
    me = follower_of(world)
    world.through(proxy, me.number)
    eventually(lambda: proxy.passed, "it goes by the proxy")
    return me


@pytest.mark.parametrize(
    "lie",
    [
        lambda frames, dice: flipped(frames, dice),
        lambda frames, dice: [frames[0], dice.randbytes(640)],
        lambda frames, dice: [frames[0], frames[1][:-64]],
        lambda frames, dice: [frames[0], frames[1] + frames[1]],
        lambda frames, dice: foreign(frames, partition=3),
        lambda frames, dice: foreign(frames, topic_id=bytes(16)),
        lambda frames, dice: elsewhere(frames),
        lambda frames, dice: another_epoch(frames),
        lambda frames, dice: [dice.randbytes(50)],
        lambda frames, dice: frames[:1],
    ],
    ids=["a flipped bit", "noise", "cut short", "twice in one", "of another partition",
         "of another topic", "from elsewhere", "of another epoch", "no message", "no batches"],
)  # fmt: skip
def test_what_a_leader_says_wrong_gets_into_no_log(world, lie):
    goes_on(world)
    dice = random.Random(3)
    with Proxy(world.leader()) as proxy:
        me = through(world, proxy)
        lies = 0

        def back(frames: Frames) -> list[Frames]:
            nonlocal lies
            if is_data(frames) and lies < 4:
                lies += 1
                return [lie(frames, dice)]
            return [frames]

        proxy.back = back
        goes_on(world, 60)
        assert lies
        eventually(
            lambda: me.counts.get("garbage", 0) + me.counts.get("unwritten", 0)
            + me.counts.get("connections_lost", 0),
            "it was noticed",
        )  # fmt: skip


def test_answers_that_come_late_or_twice_change_nothing(world):
    goes_on(world)
    with Proxy(world.leader()) as proxy:
        through(world, proxy)
        kept: list[Frames] = []

        def back(frames: Frames) -> list[Frames]:
            if is_data(frames):
                kept.append(frames)
            older = kept[len(kept) // 2] if kept else frames
            return [frames, frames, older]

        proxy.back = back
        goes_on(world, 100)
        assert kept


@pytest.mark.parametrize("way", ["out", "back"])
def test_a_cut_one_way_is_found_and_mended(world, way):
    goes_on(world)
    leader = world.leader()
    with Proxy(leader) as proxy:
        me = through(world, proxy)
        goes_on(world)
        setattr(proxy, way, lambda frames: [])
        before = me.counts.get("connections_lost", 0)
        producer = Producer(leader)
        first = leader.page().log_end
        for sequence in range(first, first + 20):
            producer.send(sequence)
        producer.settle()
        eventually(lambda: me.counts.get("connections_lost", 0) > before, "it gives it up")
        world.wait_isr(*(n for n in world.brokers if n != me.number))
        setattr(proxy, way, lambda frames: [frames])
        goes_on(world)


def test_messages_that_get_lost_now_and_then_only_cost_time(world):
    goes_on(world)
    dice = random.Random(11)
    with Proxy(world.leader()) as proxy:
        through(world, proxy)
        proxy.back = lambda frames: [frames] if dice.random() < 0.8 else []
        goes_on(world, 50)
        proxy.back = lambda frames: [frames]
        goes_on(world)
