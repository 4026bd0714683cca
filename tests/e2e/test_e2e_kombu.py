"""Kombu on Penstock: what users of any transport of kombu may expect, by real connections.

The cases are those of kombu's own integration tests of its transports.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import kombu
import pytest
from celery_fixture import broker_url
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport.virtual import UndeliverableWarning

import penstock.kombu
from penstock.core.errors import UnknownTopicError
from penstock.testing import Broker, drain, wait_until

pytestmark = pytest.mark.over_tcp

NAMES = (f"queue-{number}" for number in itertools.count())
SOON = 0.1
"""Seconds within which nothing is to come."""
WITHIN = 10.0
HELLO = {"hello": "world"}


@contextmanager
def connected(node: Broker, **options: Any) -> Iterator[Any]:
    """A connection that goes the way of this run."""
    way = {"transport": "tcp" if node.transport == "tcp" else "auto", **options}
    with kombu.Connection(broker_url(node), transport_options=way) as made:
        yield made


@pytest.fixture
def connection(node: Broker) -> Iterator[Any]:
    with connected(node) as made:
        made.connect()
        assert made.transport.link.is_far == (node.transport == "tcp")
        yield made


@pytest.fixture
def name() -> str:
    return next(NAMES)


def drained(connection: Any, queue: Any, timeout: float = WITHIN, **options: Any) -> list[Any]:
    """The bodies that one call brings."""
    got: list[Any] = []

    def receive(body: Any, message: Any) -> None:
        message.ack()
        got.append(body)

    consumer = kombu.Consumer(connection, [queue], callbacks=[receive], **options)
    with consumer:
        connection.drain_events(timeout=timeout)
    return got


def is_empty(connection: Any, queue: Any) -> bool:
    try:
        drained(connection, queue, SOON)
    except TimeoutError:
        return True
    return False


# --- connections ---------------------------------------------------------------------------------
def test_a_connection_is_made_closed_and_made_again(connection):
    for _ in range(2):
        assert connection.connect()
        assert connection.connected
        assert connection.default_channel
        assert connection.channel().connection is connection.connection
        connection.close()
        assert connection.connection is None
    assert connection.default_channel  # connects by itself


def test_without_a_node_connecting_fails_and_names_it():
    nowhere = kombu.Connection("penstock://127.0.0.1:1", connect_timeout=0.2)
    with nowhere, pytest.raises(OperationalError, match=r"127\.0\.0\.1:1"):
        nowhere.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_of_several_urls_the_first_node_that_is_there_is_taken(node, name):
    urls = f"penstock://127.0.0.1:1;{broker_url(node)}"
    with kombu.Connection(urls, connect_timeout=0.2) as connection:
        connection.ensure_connection(max_retries=2, interval_start=0, interval_step=0)
        with closing(connection.SimpleQueue(name)) as queue:
            queue.put(1)
            assert queue.get(timeout=WITHIN).payload == 1


def test_a_url_may_name_the_way_and_a_connection_the_transport(node, name):
    for options in (
        {"hostname": f"penstock+{node.url}"},
        {"hostname": broker_url(node), "transport": "penstock.kombu:Transport"},
    ):
        with kombu.Connection(**options) as connection:
            assert connection.transport.driver_type == "penstock"
            assert connection.connect()
            assert node.url.partition("://")[2] in connection.as_uri()


# --- queues --------------------------------------------------------------------------------------
def test_what_is_published_is_consumed(connection, name):
    queue = kombu.Queue(name, routing_key=name)
    with connection.channel() as channel:
        kombu.Producer(channel).publish(
            HELLO, retry=True, exchange=queue.exchange, routing_key=queue.routing_key,
            declare=[queue], serializer="pickle",
        )  # fmt: skip
    got = []

    def receive(body: Any, message: Any) -> None:
        assert message.content_type == "application/x-python-serialize"
        assert message.delivery_info["routing_key"] == name
        assert message.delivery_info["exchange"] == ""
        message.ack()
        got.append((body, message.payload))

    with kombu.Consumer(connection, [queue], accept=["pickle"], callbacks=[receive]):
        connection.drain_events(timeout=WITHIN)
    assert got == [(HELLO, HELLO)]


def test_an_empty_queue_brings_nothing(connection, name):
    assert is_empty(connection, kombu.Queue(name))


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_a_simple_queue_keeps_content_and_headers(connection, name, kind):
    with closing(getattr(connection, kind)(name)) as queue:
        queue.put(HELLO, headers={"k1": "v1"}, compression="zlib")
        message = queue.get(timeout=WITHIN)
        assert message.payload == HELLO
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        assert message.headers["k1"] == "v1"
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=SOON)


def test_a_queue_tells_its_size_and_is_purged_and_deleted(connection, name):
    channel = connection.default_channel
    with pytest.raises(ChannelError, match="404"):
        channel.queue_declare(name, passive=True)
    with closing(connection.SimpleQueue(name)) as queue:
        for number in range(5):
            queue.put(number)
        queue.put("later", headers={"x-delay": 3_600_000})
        assert queue.qsize() >= 5
        assert channel.queue_declare(name, passive=True).message_count >= 5
        assert queue.get_nowait().payload == 0
        assert queue.clear() == 5
        assert queue.qsize() == 0
        queue.put("new")
        assert queue.get(timeout=WITHIN).payload == "new"
    channel.queue_delete(name)
    with pytest.raises(ChannelError, match="404"):
        channel.queue_declare(name, passive=True)
    with pytest.warns(UndeliverableWarning, match=name):
        kombu.Producer(channel).publish(1, routing_key=name)


def test_a_name_may_have_any_character(connection, name):
    names = [f"{name} ä@..ö/x", f"{name}..20..c3", name + "." * 3, name + "x" * 300]
    for each in names:
        with closing(connection.SimpleQueue(each)) as queue:
            queue.put(each)
    for each in names:
        with closing(connection.SimpleQueue(each)) as queue:
            assert queue.get(timeout=WITHIN).payload == each
            assert queue.qsize() == 0


# --- exchanges -----------------------------------------------------------------------------------
def _into(got: list[Any]) -> Any:
    return lambda body, message: got.append(body)


def publish(channel: Any, exchange: Any, queues: Any = (), **options: Any) -> None:
    kombu.Producer(channel, exchange=exchange).publish(HELLO, declare=[*queues], **options)


def test_a_direct_exchange_goes_by_the_whole_routing_key(connection, name):
    exchange = kombu.Exchange(name, type="direct")
    first, second = (kombu.Queue(f"{name}-{key}", exchange, key) for key in ("d1", "d2"))
    with connection.channel() as channel:
        publish(channel, exchange, [first, second], routing_key="d1")
        assert drained(connection, first) == [HELLO]
        assert is_empty(connection, second)
        publish(channel, exchange, [first, second], routing_key="d3")
        assert is_empty(connection, first)
        assert is_empty(connection, second)


def test_a_topic_exchange_goes_by_patterns(connection, name):
    exchange = kombu.Exchange(name, type="topic")
    keys = ("t.*", "t.#", "t")
    queues = [kombu.Queue(f"{name}-{at}", exchange, key) for at, key in enumerate(keys)]
    with connection.channel() as channel:
        publish(channel, exchange, queues, routing_key="t.1")
        assert drained(connection, queues[0]) == drained(connection, queues[1]) == [HELLO]
        assert is_empty(connection, queues[2])


@pytest.mark.parametrize("options", [{}, {"auto_delete": True}, {"exclusive": True}])
def test_each_queue_of_a_fanout_exchange_gets_a_copy(connection, name, options):
    exchange = kombu.Exchange(name, type="fanout")
    queues = [kombu.Queue(f"{name}-{at}", exchange, **options) for at in range(2)]
    with connection.channel() as channel:
        publish(channel, exchange, queues)
        for queue in queues:
            assert drained(connection, queue) == [HELLO]
            assert is_empty(connection, queue)


def test_who_sends_to_an_exchange_need_not_know_queues_of_one_consumer(node, name):
    """As replies of remote control and events of workers do."""
    with connected(node) as here, connected(node) as there:
        for kind, key in (("direct", "me.a"), ("topic", "me.*"), ("fanout", "")):
            exchange = kombu.Exchange(f"{name}-{kind}", type=kind)
            queue = kombu.Queue(f"{name}-{kind}", exchange, key, exclusive=True)
            queue(here.default_channel).declare()
            other = exchange(there.default_channel)
            for routing_key in ("me.a", "you.a"):
                publish(there.default_channel, other, routing_key=routing_key)
            expected = 2 if kind == "fanout" else 1
            got: list[Any] = []
            with kombu.Consumer(here, [queue], no_ack=True, callbacks=[_into(got)]):
                while len(got) < expected:
                    here.drain_events(timeout=WITHIN)
                with pytest.raises(TimeoutError):
                    here.drain_events(timeout=SOON)
            assert len(got) == expected


def test_an_exchange_without_queues_takes_what_is_sent(connection, name):
    with connection.channel() as channel:
        publish(channel, kombu.Exchange(name, type="topic"), routing_key="t.1")


# --- time to live, delay, priority ---------------------------------------------------------------
def test_what_has_expired_is_not_delivered(connection, name):
    queue = kombu.Queue(name, routing_key=name)
    ends = kombu.Queue(f"{name}-ttl", routing_key=f"{name}-ttl", message_ttl=0.05)
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        producer.publish(1, routing_key=name, declare=[queue], expiration=0.05)
        producer.publish(2, routing_key=ends.name, declare=[ends])
        producer.publish(3, routing_key=name, expiration=3600)
        until = time.monotonic() + SOON
        wait_until(lambda: time.monotonic() > until)
    assert drained(connection, queue) == [3]
    assert is_empty(connection, queue)
    assert is_empty(connection, ends)


def test_what_is_not_due_takes_no_room_from_what_is(connection, name):
    queue = kombu.Queue(name, routing_key=name)
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for number in range(10):
            producer.publish(
                number, routing_key=name, declare=[queue],
                headers={"eta": "2090-01-01T00:00:00+00:00", "id": number},
            )  # fmt: skip
        producer.publish("soon", routing_key=name, headers={"x-delay": 200})
        producer.publish("now", routing_key=name, headers={"eta": "not a time"})
        got: list[Any] = []
        consumer = kombu.Consumer(
            channel, [queue], prefetch_count=1,
            no_ack=True, callbacks=[_into(got)],
        )  # fmt: skip
        with consumer:
            while len(got) < 2:
                connection.drain_events(timeout=WITHIN)
    assert got == ["now", "soon"]


def prioritized(producer: Any, queue: Any, *priorities: int) -> None:
    for priority in priorities:
        producer.publish(priority, routing_key=queue.name, declare=[queue], priority=priority)


@pytest.mark.over_tcp(False)  # there the first may be here before the others are
def test_the_most_urgent_comes_first_also_when_it_is_put_back(connection, name):
    """A higher number is more urgent, as with RabbitMQ."""
    queue = kombu.Queue(name, routing_key=name, max_priority=10)
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        prioritized(producer, queue, 3, 6, 3)
        messages: list[Any] = []
        consumer = kombu.Consumer(
            connection, [queue], callbacks=[lambda _, message: messages.append(message)]
        )
        with consumer:
            connection.drain_events(timeout=WITHIN)
            assert [message.payload for message in messages] == [6, 3, 3]
        for message in messages:
            message.requeue()
        prioritized(producer, queue, 9)
        messages.clear()
        with consumer:
            while len(messages) < 4:
                connection.drain_events(timeout=WITHIN)
        assert [message.payload for message in messages] == [9, 6, 3, 3]


@pytest.mark.over_tcp(False)
@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_a_simple_queue_gives_the_most_urgent_first(connection, name, kind):
    with closing(getattr(connection, kind)(name)) as queue:
        for at, priority in enumerate((1, 7, 1)):
            queue.put(at, priority=priority)
        got = [queue.get(timeout=WITHIN) for _ in range(3)]
        assert [message.payload for message in got] == [1, 0, 2]


# --- answers -------------------------------------------------------------------------------------
def test_an_answer_decides_whether_it_comes_again(connection, node, name):
    with closing(connection.SimpleQueue(name)) as queue:
        for answer, again in (
            (lambda message: message.ack(), False),
            (lambda message: message.reject(requeue=False), False),
            (lambda message: message.reject(requeue=True), True),
            (lambda message: message.requeue(), True),
        ):
            queue.put(HELLO)
            message = queue.get_nowait()
            answer(message)
            if again:
                second = queue.get_nowait()
                assert second.body == message.body
                second.ack()
            with pytest.raises(queue.Empty):
                queue.get_nowait()
        letters: list[Any] = []

        def has_letter() -> bool:
            assert connection.default_channel.basic_get(name) is None
            with suppress(UnknownTopicError):
                letters[:] = drain(node, f"kombu.queue.{name}.dlq")
            return bool(letters)

        wait_until(has_letter)
    assert b"world" in letters[0].value


def test_a_consumer_gets_no_more_than_its_prefetch_count(connection, name):
    queue = kombu.Queue(name, routing_key=name)
    with connection.channel() as channel:
        for number in range(5):
            kombu.Producer(channel).publish(number, routing_key=name, declare=[queue])
        held: list[Any] = []
        consumer = kombu.Consumer(
            channel, [queue], prefetch_count=2, callbacks=[lambda _, message: held.append(message)]
        )
        with consumer:
            connection.drain_events(timeout=WITHIN)
            assert [message.payload for message in held] == [0, 1]
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=SOON)
            held[1].ack(multiple=True)
            connection.drain_events(timeout=WITHIN)
            assert [message.payload for message in held] == [0, 1, 2, 3]
            consumer.qos(prefetch_count=3)
            connection.drain_events(timeout=WITHIN)
            assert [message.payload for message in held] == [0, 1, 2, 3, 4]


def test_who_answers_before_the_work_has_answered_once_it_begins(connection, node, name):
    queue = kombu.Queue(name, routing_key=name)
    lags: list[int] = []
    topic = f"kombu.queue.{name}"
    with node.connect() as client, client.admin() as admin:

        def receive(body: Any, message: Any) -> None:
            message.ack()
            wait_until(lambda: admin.describe_share_group(topic).lag == 0)
            lags.append(admin.describe_share_group(topic).lag)

        with connection.channel() as channel:
            kombu.Producer(channel).publish(1, routing_key=name, declare=[queue])
            with kombu.Consumer(channel, [queue], callbacks=[receive]):
                connection.drain_events(timeout=WITHIN)
    assert lags == [0]


def test_what_a_closed_channel_held_others_get(node, name):
    with connected(node) as first, closing(first.SimpleQueue(name)) as queue:
        queue.put(HELLO)
        assert queue.get(timeout=WITHIN).payload == HELLO
    with connected(node) as second, closing(second.SimpleQueue(name)) as queue:
        message = queue.get(timeout=WITHIN)
        assert not message.delivery_info["redelivered"]  # it was given back, by nobody's death
        message.ack()


def test_whatever_somebody_else_wrote_is_a_message(connection, node, name):
    """Nothing of it ends the consumer, or is believed."""
    with closing(connection.SimpleQueue(name)) as queue:
        queue.put(1)
        garbage = (
            None,
            [("kombu", b"\xff{")],
            [("kombu", b"[1]"), ("other", b"")],
            [("kombu", b'{"content-type": [], "headers": 1}')],
        )
        with node.connect() as client, client.producer() as producer:
            for headers in garbage:
                producer.send(f"kombu.queue.{name}", b"\x80abc", headers=headers)
            producer.send(
                f"kombu.queue.{name}", pickle.dumps(HELLO),
                headers=[("kombu", b'{"properties": {"delivery_tag": 1, "delivery_info": 3}}')],
            )  # fmt: skip
        got = [queue.get(timeout=WITHIN) for _ in range(6)]
        assert [message.body for message in got[1:5]] == [b"\x80abc"] * 4
        assert len({message.delivery_tag for message in got}) == 6
        for message in got:
            message.reject()


# --- faults --------------------------------------------------------------------------------------
def test_a_forked_child_makes_its_own_connection_and_leaves_its_parents_alone(connection, name):
    with closing(connection.SimpleQueue(name)) as queue:
        queue.put("parent")
        assert queue.get(timeout=WITHIN).payload == "parent"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert not connection.connected
                with connection.clone() as own, closing(own.SimpleQueue(name)) as mine:
                    mine.put("child")
                connection.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        message = queue.get(timeout=WITHIN)
        assert message.payload == "child"
        queue.put("again")
        assert queue.get(timeout=WITHIN).payload == "again"


def test_options_that_are_wrong_are_refused_by_name(node):
    for options, match in (
        ({"topic": 3}, "topic=3"),
        ({"topic": {"partition": 3}}, "no setting partition"),
        ({"publish_timeout": 0}, "publish_timeout"),
        ({"prefix": 3}, "prefix"),
    ):
        connection = kombu.Connection(broker_url(node), transport_options=options)
        with connection, pytest.raises((ValueError, TypeError), match=match):
            connection.connect()
    with kombu.Connection("penstock://me:secret@host:9640") as connection:
        with pytest.raises(ValueError, match="key file") as refused:
            connection.connect()
        assert "secret" not in str(refused.value)


def test_topics_are_made_as_the_options_say(node, name):
    options = {"prefix": f"{name}.", "topic": {"partitions": 3}, "visibility_timeout": 3600}
    with connected(node, **options) as connection:
        connection.SimpleQueue("jobs").put(1)
    with node.connect() as client:
        settings = client.admin().describe_topic(f"{name}.queue.jobs").settings
    assert (settings["partitions"], settings["hold_for"]) == (3, "groups")


def test_the_scheme_is_known_by_the_import():
    assert kombu.transport.TRANSPORT_ALIASES["penstock"] == "penstock.kombu:Transport"
    assert kombu.transport.get_transport_cls("penstock") is penstock.kombu.Transport
