"""What an attacker does to a node, and beside each the same load as a tenant brings who means well.

Each load is a generator: it prepares, yields 0, and then yields how many requests (connections,
batches) each step of it was. A step waits for its answers, so both sides of a pair keep the node as
busy as so many connections can.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec
import zmq
from attacks.site import NEIGHBOUR, Site
from keyed_fixture import connects, dealer_of
from wire import Dealer, batch_of

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.security import keys

Load = Generator[int, None, None]
Loader = Callable[[Site, str], Load]

CROWD: Final = 16
"""Connections of a load that asks."""
FAR: Final = 1_000_000_000
"""An offset that no log reaches."""
HELD: Final = 300
"""Connections that stay: more than the share of a namespace."""
IDS: Final = 2400
READERS: Final = 16
UNREAD: Final = 64 << 20
"""Bytes in the topics that are read slowly."""
BATCH_BYTES: Final = 256 << 10
VALUE: Final = bytes(1000)


class Crowd:
    """Connections with an admin's endpoint each, which ask all at once."""

    def __init__(self, site: Site, who: str, count: int = CROWD) -> None:
        self.dealers = [site.dealer(who) for _ in range(count)]
        for dealer in self.dealers:
            dealer.attach(1, lo.KIND_CONSUMER)
        self._numbers = itertools.count()

    def ask(self, make: Callable[[int], msgspec.Struct]) -> list[Any]:
        """The answers to one request of each; `make` is told a number that is new."""
        for dealer in self.dealers:
            number = next(self._numbers)
            raw = msgspec.Raw(msgspec.msgpack.encode(make(number)))
            dealer.say(fr.Ask(1, number, 5.0, raw))
        answers = []
        for dealer in self.dealers:
            answers.append(msgspec.msgpack.decode(dealer.hear(fr.Answer).body))
            dealer.heard.clear()
        return answers

    def close(self) -> None:
        for dealer in self.dealers:
            dealer.close()


def asking(make: Callable[[str, ms.TopicInfo, int], msgspec.Struct], count: int = CROWD) -> Loader:
    """A load that asks that again and again; `make` has the tenant's name, its topic, a number."""

    def load(site: Site, who: str) -> Load:
        crowd = Crowd(site, who, count)
        with contextlib.closing(crowd):
            topic = crowd.dealers[0].find(1, f"{who}.own")
            yield 0
            while True:
                yield len(crowd.ask(lambda number: make(who, topic, number)))

    return load


# --- groups and transactions ---------------------------------------------------------------------
def hostile_pattern(who: str, number: int) -> str:
    """New each time: every other one has a form that is refused, the others cost what they may."""
    if number % 2:
        classes = "".join(f"[{chr(200 + number % 5000 + each)}-\U0010ffff]" for each in range(30))
        return f"{who}\\.(?i:{classes})"
    return rf"{who}\.[a-z0-9-]*[a-z0-9]*[a-y{number % 10}-]*x{number}"


def joins(pattern: Callable[[str, int], str]) -> Loader:
    """Members that come by a pattern, and go. Two: patterns of a principal wait for each other."""

    def load(site: Site, who: str) -> Load:
        crowd = Crowd(site, who, 2)
        with contextlib.closing(crowd):
            for number in range(40):
                name = f"{who}.{'a' * 150}-{number}"
                crowd.dealers[0].ask(1, ms.CreateTopic(name, ms.TopicSettings()))
            yield 0
            while True:
                said = crowd.ask(
                    lambda number: co.JoinGroup(
                        f"{who}.{number % 2}", "", [], pattern(who, number), "at-least-once"
                    )
                )
                ids = [each.get("member_id", "") for each in said]
                crowd.ask(partial(leave, who, iter(ids)))
                yield 4

    return load


def commits(offset: int, own: bool) -> Loader:
    """Members that commit for the partition they own; or offsets that no log reaches, for topics
    that they do not have, in the victim's group."""

    def load(site: Site, who: str) -> Load:
        crowd = Crowd(site, who)
        with contextlib.closing(crowd):
            topic = crowd.dealers[0].find(1, f"{who}.own")
            members = [
                dealer.ask(
                    1,
                    co.JoinGroup(f"{who}.commits-{place}", "", [topic.name], None, "at-least-once"),
                )
                for place, dealer in enumerate(crowd.dealers)
            ]

            def make(number: int) -> msgspec.Struct:
                turn, place = divmod(number, CROWD)
                owned = members[place].partitions[0]
                topic_id = owned.topic_id if own or turn % 2 else b"?" * 16
                group = f"{who}.commits-{place}" if own or turn % 3 else "victim.group"
                commit = co.OffsetCommit(topic_id, owned.partition, owned.grant, offset)
                return co.CommitOffsets(group, members[place].member_id, [commit])

            yield 0
            while True:
                yield len(crowd.ask(make))

    return load


def named(tail: Callable[[int], str], make: Callable[[str], msgspec.Struct]) -> Loader:
    return asking(lambda who, _, number: make(f"{who}.{tail(number)}"))


def few(number: int) -> str:
    return f"few-{number % CROWD}"


def new(number: int) -> str:
    return f"new-{number}"


def seeks(name: str) -> msgspec.Struct:
    return co.SeekGroup(name, [])


def inits(name: str) -> msgspec.Struct:
    return co.InitTransactions(name, 60.0)


def leave(who: str, members: Iterator[str], number: int) -> msgspec.Struct:
    return co.LeaveGroup(f"{who}.{number % 2}", next(members))


def lists(site: Site, who: str) -> Load:
    """Lists of transactional ids, of which the neighbour has many, and nobody else any."""
    crowd = Crowd(site, NEIGHBOUR)
    with contextlib.closing(crowd):
        for _ in range(IDS // CROWD):
            crowd.ask(lambda number: inits(f"{NEIGHBOUR}.{number}"))
    crowd = Crowd(site, who)
    with contextlib.closing(crowd):
        yield 0
        while True:
            yield len(crowd.ask(lambda _: co.ListTransactions()))


# --- topics --------------------------------------------------------------------------------------
TOPIC: Final = ms.TopicSettings(partitions=16)


def many_topics(site: Site, who: str) -> Load:
    """New topics, until the limit of the namespace refuses them."""
    crowd = Crowd(site, who, 4)
    with contextlib.closing(crowd):
        yield 0
        while True:
            yield len(crowd.ask(lambda number: ms.CreateTopic(f"{who}.new-{number}", TOPIC)))


def few_topics(site: Site, who: str) -> Load:
    """Topics that are made and deleted."""
    crowd = Crowd(site, who, 4)
    with contextlib.closing(crowd):
        yield 0
        while True:
            crowd.ask(lambda number: ms.CreateTopic(f"{who}.few-{number % 4}", TOPIC))
            crowd.ask(lambda number: ms.DeleteTopic(f"{who}.few-{number % 4}"))
            yield 8


# --- look-ups ------------------------------------------------------------------------------------
def look_ups(*, bombs: bool) -> Loader:
    """Look-ups by time in a topic of its own: in ordinary batches, or in such that are small on the
    disk and 16 MiB once they are expanded."""

    def load(site: Site, who: str) -> Load:
        with site.connect(who) as client:
            name = f"{who}.timed"
            with client.admin() as admin:
                admin.create_topic(name)
            size, count = (512 << 10, 30) if bombs else (1000, 30)
            with client.producer(compression="lz4" if bombs else "none", linger=0) as producer:
                for _ in range(count):
                    producer.send_batch(name, values=[bytes(size)] * (1 if bombs else 16))
                    producer.flush(60)
        crowd = Crowd(site, who)
        with contextlib.closing(crowd):
            topic = crowd.dealers[0].find(1, name)
            page, late = topic.pages[0], int((time.time() + 3600) * 1e6)
            yield 0
            while True:
                yield len(crowd.ask(lambda _: lk.LookUpTime(page, topic.topic_id, 0, late)))

    return load


# --- connections ---------------------------------------------------------------------------------
def connections(*, held: bool) -> Loader:
    """Connections that come, say hello and go, one after the other; or that stay, beyond the limit
    of the namespace, and are all made again."""

    def load(site: Site, who: str) -> Load:
        with zmq.Context() as context, ExitStack() as stack:
            context.set(zmq.MAX_SOCKETS, 2 * HELD)
            yield 0
            while True:
                for _ in range(HELD if held else 1):
                    dealer = dealer_of(site.urls[0], site.key(who), hello=False, context=context)
                    stack.callback(dealer.close)
                    connects(dealer, 1.0)
                    yield 1
                stack.close()

    return load


def strangers(site: Site, who: str) -> Load:
    """Connections with no key, with one that nobody knows, and without ZeroMQ."""
    host, _, port = site.urls[0].removeprefix("tcp://").rpartition(":")
    own_key = site.dealer(who)
    own_key.close()
    yield 0
    for number in itertools.count():
        if number % 3 == 0:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), 2) as raw,
            ):
                raw.sendall(os.urandom(3000))
        else:
            public, secret = zmq.curve_keypair()
            options: dict[str, Any] = {}
            if number % 3 == 1:
                options = {
                    "curve_serverkey": server_key(site, who), "curve_publickey": public,
                    "curve_secretkey": secret,
                }  # fmt: skip
            with Dealer(site.urls[0], hello=False, **options) as dealer:
                connects(dealer, 0.02)
        yield 1


def server_key(site: Site, who: str) -> bytes:
    return keys.load_client_key(site.key(who)).server.encode()


# --- what is sent and read -----------------------------------------------------------------------
class Sender:
    """A producer of one connection, with a few batches under way."""

    def __init__(self, dealer: Dealer, topic: str) -> None:
        self._dealer = dealer
        self.attached = dealer.producer()
        self.topic = dealer.find(1, topic)
        self._lane_sequence = self._sequence = 0

    def send(self, values: list[bytes], count: int, spoilt: int = 0) -> list[int]:
        """The errors of so many batches; `spoilt`: the place of a byte that is made wrong."""
        page, first = self.topic.pages[0], self._sequence
        for number in range(count):
            image = bytearray(
                batch_of(values, self.topic, self.attached.producer_id, first + number)
            )
            if spoilt:
                image[spoilt] ^= 255
            self._dealer.say(
                fr.Produce(1, page % self.attached.writers, self._lane_sequence, page), bytes(image)
            )
            self._lane_sequence += 1
        errors = [ack.error for ack in self._dealer.acks(count)]
        self._dealer.heard.clear()
        self._sequence = first + errors.count(0)  # what was refused comes again
        return errors


def produces(size: int, count: int = 4, spoilt: int = 0) -> Loader:
    """Batches of records of 1000 bytes to its own topic."""

    def load(site: Site, who: str) -> Load:
        with site.dealer(who) as dealer:
            sender = Sender(dealer, f"{who}.own")
            yield 0
            while True:
                yield len(sender.send([VALUE] * (size // len(VALUE)), count, spoilt))

    return load


def producers(*, held: bool) -> Loader:
    """Producers that come and go; or that stay, until the namespace has no shared memory left."""

    def load(site: Site, who: str) -> Load:
        with site.dealer(who) as dealer:
            yield 0
            endpoint = 1
            while True:
                dealer.say(fr.Attach(endpoint, lo.KIND_PRODUCER, "wire"))
                told = dealer.hear_either((fr.Attached, fr.Refused))
                if isinstance(told, fr.Attached):
                    if held:
                        endpoint += 1
                    else:
                        dealer.say(fr.Detach(endpoint))
                dealer.heard.clear()
                yield 1

    return load


def reads(*, slowly: bool) -> Loader:
    """Consumers that read a topic from its beginning, again and again; or that ask for all of it
    and do not read."""

    def load(site: Site, who: str) -> Load:
        with site.connect(who) as client:
            name = f"{who}.long"
            with client.admin() as admin:
                admin.create_topic(name)
            size = min(UNREAD, 12 << 20)
            with client.producer() as producer:
                producer.send_batch(name, values=[VALUE] * (size // len(VALUE)))
                producer.flush(60)
        options = {"rcvhwm": 1, "rcvbuf": 4096} if slowly else {}
        with ExitStack() as stack:
            dealers = [stack.enter_context(site.dealer(who, **options)) for _ in range(READERS)]
            for dealer in dealers:
                dealer.attach(1, lo.KIND_CONSUMER)
            topic = dealers[0].find(1, name)
            yield 0
            for cursor in itertools.count():
                for dealer in dealers:
                    ask = fr.Fetch(
                        1, cursor % 1000, topic.pages[0], topic.topic_id, 0, 0, -1, False, 1 << 20
                    )
                    dealer.say(ask)
                if slowly:
                    time.sleep(0.01)
                else:
                    for dealer in dealers:
                        read = 0
                        while read < 1 << 20:
                            dealer.hear(fr.Fetched)
                            read += len(dealer.payload or b"")
                            dealer.heard.clear()
                        dealer.say(fr.Drop(1, cursor % 1000))
                yield len(dealers)

    return load


# --- big requests --------------------------------------------------------------------------------
def big(who: str, topic: ms.TopicInfo, number: int) -> msgspec.Struct:
    """What has as many parts as a request may have, of things that are not there."""
    places = [(os.urandom(16), each) for each in range(1000)]
    if number % 3 == 0:
        return co.DeleteGroup(f"{who}.big", places)
    if number % 3 == 1:
        return co.SeekGroup(f"{who}.big", [co.OffsetSeek(*place, FAR) for place in places])
    return lk.LookUpAppends([lk.LogPlace(topic.pages[0], *place, 0) for place in places])


def ordinary(who: str, topic: ms.TopicInfo, number: int) -> msgspec.Struct:
    """As many parts, of what is its own."""
    page, topic_id = topic.pages[0], topic.topic_id
    if number % 3 == 0:
        return co.DescribeGroup(f"{who}.big")
    if number % 3 == 1:
        return co.SeekGroup(f"{who}.big", [co.OffsetSeek(topic_id, 0, 0)] * 1000)
    return lk.LookUpAppends([lk.LogPlace(page, topic_id, 0, 0)] * 1000)


def floods(make: Callable[[int], bytes]) -> Loader:
    """Messages without an answer, as fast as the connection takes them."""

    def load(site: Site, who: str) -> Load:
        with site.dealer(who) as dealer:
            yield 0
            for number in itertools.count():
                for _ in range(200):
                    dealer.socket.send(make(number))
                dealer.say(fr.Ping(number))
                dealer.hear_either((fr.Pong, fr.Ended))
                dealer.heard.clear()
                yield 200

    return load


PAIRS: Final[dict[str, tuple[Loader, Loader]]] = {
    "hostile patterns": (joins(hostile_pattern), joins(lambda who, _: rf"{who}\.[a-z-]+1")),
    "commits for others, far beyond": (commits(FAR, False), commits(0, True)),
    "a flood of groups": (named(new, seeks), named(few, seeks)),
    "a flood of transactional ids": (named(new, inits), named(few, inits)),
    "lists among many of others": (lists, lists),
    "a flood of topics": (many_topics, few_topics),
    "costly look-ups": (look_ups(bombs=True), look_ups(bombs=False)),
    "big requests": (asking(big, 4), asking(ordinary, 4)),
    "connections that stay": (connections(held=True), connections(held=False)),
    "strangers at the port": (strangers, connections(held=False)),
    "the disk's share, filled": (
        produces(BATCH_BYTES),
        produces(BATCH_BYTES),
    ),
    "batches that are wrong": (produces(100_000, spoilt=5000), produces(100_000)),
    "the shared memory's share": (producers(held=True), producers(held=False)),
    "readers that do not read": (reads(slowly=True), reads(slowly=False)),
    "a flood of messages": (
        floods(lambda number: codec.encode(fr.Drop(77, number % 1000))),
        floods(lambda number: codec.encode(fr.Ping(number))),
    ),
}
"""By name: the attack, and the same load as a tenant brings who means well."""
