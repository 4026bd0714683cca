"""What a newcomer writes first: topics made of a number, words of Kafka, places without a node."""

from __future__ import annotations

import asyncio
import fcntl
import time
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client import session

pytestmark = pytest.mark.local("most of it is about nodes that are not there")


@pytest.fixture
def admin(node):
    with node.connect() as client, client.admin() as admin:
        yield admin


def partitions(admin: penstock.Admin, topic: str) -> int:
    return len(admin.describe_topic(topic).partitions)


def test_a_topic_is_made_of_a_number_of_partitions(admin):
    assert admin.create_topic("of-a-number", 3)
    assert partitions(admin, "of-a-number") == 3


def test_a_topic_is_made_of_settings_by_name(admin):
    assert admin.create_topic("by-name", partitions=2, retention=60.0)
    found = admin.describe_topic("by-name")
    assert (len(found.partitions), found.settings["retention"]) == (2, 60.0)


def test_a_topic_that_is_there_stays_as_it_is(admin):
    assert admin.create_topic("once", partitions=2, if_not_exists=True)
    assert not admin.create_topic("once", partitions=5, if_not_exists=True)
    assert partitions(admin, "once") == 2
    with pytest.raises(penstock.TopicExistsError):
        admin.create_topic("once", partitions=5)


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "says"),
    [
        ((3,), {"partitions": 4}, TypeError, "not of both"),
        ((penstock.TopicConfig(),), {"partitions": 4}, TypeError, "not of both"),
        (("3",), {}, TypeError, "a TopicConfig, or a number of partitions, not str"),
        ((True,), {}, TypeError, "not bool"),
        ((), {"num_partitions": 3}, penstock.ConfigError, "num_partitions; what Kafka calls"),
    ],
)
def test_a_topic_of_what_it_cannot_be_made_of(admin, arguments, settings, error, says):
    with pytest.raises(error, match=says):
        admin.create_topic("never", *arguments, **settings)
    assert "never" not in admin.list_topics()


def test_an_event_loop_makes_topics_alike(node):
    async def make() -> list[bool]:
        async with aio.connect(node.url) as client, client.admin() as admin:
            return [
                await admin.create_topic("from-a-loop", 2),
                await admin.create_topic("from-a-loop", partitions=3, if_not_exists=True),
            ]

    assert asyncio.run(make()) == [True, False]


def test_deleting_a_topic_that_there_is_not_does_not_say_create(admin):
    with pytest.raises(penstock.UnknownTopicError, match="nothing is deleted") as raised:
        admin.delete_topic("nope")
    assert "create" not in str(raised.value)


@pytest.mark.parametrize(
    ("verb", "word", "ours"),
    [
        ("consumer", "auto_offset_reset", "start="),
        ("consumer", "auto.offset.reset", "start="),
        ("consumer", "group_id", "group="),
        ("consumer", "max_poll_records", r"poll\(max_records=...\)"),
        ("producer", "linger_ms", r"linger= \(seconds\)"),
        ("producer", "bootstrap_servers", r"the URL of connect\(\)"),
        ("producer", "value_serializer", "bytes"),
    ],
)
def test_words_of_kafka_are_answered_with_ours(node, verb, word, ours):
    with node.connect() as client, pytest.raises(TypeError, match=f"Kafka calls so is {ours}"):
        getattr(client, verb)(**{word: 1})


# --- places where nothing is ---
def seconds_until_refused(url: str) -> float:
    begun = time.monotonic()
    with pytest.raises(penstock.NotConnectedError):
        penstock.connect(url)
    return time.monotonic() - begun


@pytest.fixture
def bounds(monkeypatch):
    """A node that is starting is waited for much longer than none."""
    monkeypatch.setattr(session, "CONNECT_WITHIN", 60.0)


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize(
    "where", ["shm://nobody-is-called-so", "shm://{folder}", "tcp://127.0.0.1:1"]
)
def test_where_nothing_listens_nobody_is_waited_for(tmp_path, where):
    assert seconds_until_refused(where.format(folder=tmp_path)) < 30


def test_a_node_that_is_starting_is_waited_for(tmp_path, monkeypatch):
    """It holds the lock of its folder, and does not listen yet."""
    monkeypatch.setattr(session, "CONNECT_WITHIN", 3.0)
    monkeypatch.setattr(session, "LISTEN_WITHIN", 0.05)
    with Path(tmp_path, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waited = seconds_until_refused(f"shm://{tmp_path}")
    assert waited > 1.0
    assert seconds_until_refused(f"shm://{tmp_path}") < waited


def test_a_timeout_that_is_given_is_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LISTEN_WITHIN", 0.05)
    begun = time.monotonic()
    with pytest.raises(penstock.NotConnectedError):
        penstock.connect(f"shm://{tmp_path}", timeout=3.0)
    assert time.monotonic() - begun > 1.0


@pytest.mark.usefixtures("bounds")
def test_a_host_name_that_there_is_not_is_said():
    with pytest.raises(penstock.NotConnectedError, match=r"the host name is not known \(.*DNS"):
        penstock.connect("tcp://no-such-host.invalid:9600")
