"""`penstock dlq`: what it shows, and a replay that is killed, stopped, or not allowed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli_runner import Ran, Running, call_cli, cli_process
from dead_letter_fixture import bury, came, numbers, once
from keyed_fixture import World

import penstock
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.timeout(120)
WITHIN = 45.0


def dlq(node: Broker, *words: str) -> Ran:
    return call_cli("dlq", *words, url=node.url)


@pytest.fixture
def client(node: Broker) -> Iterator[penstock.Client]:
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic()


def test_dead_letters_are_listed_shown_counted_and_removed(
    node: Broker, client: penstock.Client, topic: str
) -> None:
    bury(client, topic, [b"a\x1b[31m\n", b"\xff"], headers=(("own", b"\x07"),))
    bury(client, topic, numbers(3), start=2, reason="KeyError: 'x'\x1b\nmore " + "y" * 200)
    ran = dlq(node, "list", topic, "--format", "wide")
    assert (ran.code, len(ran.lines)) == (0, 6)
    assert ran.lines[0].split()[:5] == ["PLACE", "DIED", "TOPIC", "PARTITION", "OFFSET"]
    assert r"a\x1b[31m\n" in ran.lines[1]
    assert r"KeyError: 'x'\x1b\nmore yy" in ran.lines[3]
    assert b"\x1b" not in ran.out
    first, second = dlq(node, "list", topic, "-n", "2", "--format", "json").objects
    assert (first["place"], first["topic"], first["partition"], first["offset"]) == (
        "0:0", topic, 0, 0,
    )  # fmt: skip
    assert (first["headers"], first["history"][0]["member"]) == ([["own", "\x07"]], "member-1")
    assert (second["value"], second["value_encoding"]) == ("/w==", "base64")
    ran = dlq(node, "show", topic, "0:1")
    assert r"value        \xff" in ran.lines
    assert r"header       own=\x07" in ran.lines
    assert b"\x07" not in ran.out
    assert dlq(node, "show", topic, "0:1", "--format", "json").objects == [second]

    with client.producer() as producer:
        [letter] = client.dead_letters(topic).letters(only=[(0, 4)])
        forged = dict(letter.record.headers) | {"penstock.dlq.history": b'[{"at": 1e308}]'}
        producer.send_and_wait(f"{topic}.dlq", b"9", headers=forged, timestamp=(1 << 62))
    assert "failed       1e+308 : " in dlq(node, "show", topic, "0:5").out.decode()
    assert len(dlq(node, "list", topic, "-n", "9", "--where", "died_at > now()").lines) == 2
    client.dead_letters(topic).replay(only=[(0, 5)])

    ran = dlq(node, "replay", topic, "0:3-4", "0:99", "--format", "json")
    assert (ran.code, ran.objects[0]["sent"], ran.objects[0]["is_whole"]) == (0, 2, True)
    found = dlq(node, "list", topic, "--format", "json").objects
    assert [each["place"] for each in found] == ["0:0", "0:1", "0:2"]
    found = dlq(node, "list", topic, "--replayed", "--format", "json").objects
    assert [each["place"] for each in found] == ["0:3", "0:4", "0:5"]
    [stats] = dlq(node, "stats", topic, "--format", "json").objects
    assert (stats["total"], stats["replayed"], stats["by_exception"]) == (
        6, 3, {"ValueError": 2, "KeyError": 1},
    )  # fmt: skip
    assert f"{topic}.dlq: 3 dead letters" in dlq(node, "stats", topic).lines[0]

    asked = dlq(node, "purge", topic, "--before", "3")
    assert (asked.code, "Remove 3 records" in asked.err) == (2, True)
    assert "would start at 0" in dlq(
        node, "purge", topic, "--before", "replayed", "--dry-run"
    ).out.decode()  # fmt: skip
    assert "starts at 3" in dlq(node, "purge", topic, "--before", "3", "--yes").out.decode()
    assert dlq(node, "purge", topic, "--before", "end", "--yes").code == 0
    ran = dlq(node, "list", topic, "--all")
    assert (ran.code, ran.out) == (0, b"")
    assert f"no dead letters in {topic}.dlq that are meant" in ran.err


def test_what_is_left_is_told_and_mistakes_are_refused(
    node: Broker, client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(2), headers=(("penstock.replays", b"3"),))
    bury(client, topic, numbers(1, 2), start=2)
    tried = dlq(node, "replay", topic, "--dry-run", "--format", "json")
    assert [each.get("place") for each in tried.objects] == ["0:2", None]
    ran = dlq(node, "replay", topic)
    assert ran.code == 4
    assert f"1 dead letter of {topic}.dlq sent again: 1 to {topic}" in ran.err
    assert "2 left: they were sent again too often before" in ran.err
    assert "one is at 0:0" in ran.err
    assert dlq(node, "replay", topic, "--max-replays", "9").code == 0
    for words, code, said in (
        (("list", "nowhere"), 1, "there is no topic 'nowhere.dlq'"),
        (("show", topic, "17"), 2, "write PARTITION:OFFSET"),
        (("show", topic, "0:1-2"), 2, "is more than one"),
        (("show", topic, "0:99"), 1, "no dead letter at offset 99"),
        (("list", topic, "--where", "group = 1"), 2, 'write the column as "group"'),
        (("replay", topic, "--exact"), 2, "name those to which may be sent by"),
        (("purge", topic, "--before", "x", "--yes"), 2, "is no place in a log"),
        (("replay", topic, "-p", "7"), 1, "partitions 0 to 0, not 7"),
    ):
        ran = dlq(node, *words)
        assert (ran.code, said in ran.err) == (code, True), ran.err


@contextmanager
def slow_replay(node: Broker, client: penstock.Client, topic: str) -> Iterator[Running]:
    """One that has sent some of them, and is not through."""
    with cli_process("dlq", "replay", topic, "--rate", "80", url=node.url) as running:
        wait_until(lambda: len(came(client, topic)) > 0, WITHIN)
        yield running
    assert 0 < len(came(client, topic)) < 2000


@pytest.mark.over_tcp
def test_a_replay_that_is_killed_goes_on_without_loss_or_double(
    node: Broker, client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(2000))
    for _ in range(2):
        with slow_replay(node, client, topic) as running:
            running.send_signal(signal.SIGKILL)
            running.wait()
    sent = len(came(client, topic))
    ran = dlq(node, "replay", topic, "--format", "json")
    assert (ran.code, ran.objects[0]["sent"] + sent) == (0, 2000)
    assert came(client, topic) == once(2000)


def test_a_signal_ends_a_replay_between_two_transactions(
    node: Broker, client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(2000))
    with slow_replay(node, client, topic) as running:
        running.send_signal(signal.SIGINT)
        said = running.stderr.read().decode()
        assert (running.wait(), "stopped by a signal: the same command" in said) == (4, True)
    assert dlq(node, "replay", topic).code == 0
    assert came(client, topic) == once(2000)


def test_two_replays_at_once_send_each_once(
    node: Broker, client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(2000))
    with slow_replay(node, client, topic) as running:
        assert dlq(node, "replay", topic, "--limit", "1000").code == 0
        said = running.stderr.read().decode()
        assert (running.wait(), "another replay of" in said) == (1, True)
    assert "run again, it goes on" in said
    assert dlq(node, "replay", topic).code == 0
    assert came(client, topic) == once(2000)


# --- who may --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("letters")) as made:
        yield made


RIGHTS = (
    "read topic jobs.dlq", "read topic jobs.dlq.replayed", "write topic jobs.dlq.replayed",
    "create topic jobs.dlq.replayed", "write topic jobs",
    "write transactional_id jobs.dlq.replayed",
)  # fmt: skip


def test_each_right_that_the_guide_names_is_needed(world: World) -> None:
    eve, env = str(world.key("eve")), {"PENSTOCK_TRANSPORT": "tcp"}

    def called(*words: str) -> Ran:
        return call_cli(
            "dlq", *words, url=world.broker.tcp_url, env={**env, "PENSTOCK_KEY": eve}
        )  # fmt: skip

    with world.broker.connect() as client:
        client.admin().create_topic("jobs")
        bury(client, "jobs", numbers(3))
        world.allow("nobody allow read topic x")
        for right in RIGHTS:
            ran = called("replay", "jobs")
            assert (ran.code, "'eve' may not" in ran.err) == (1, True), (right, ran.err)
            assert not came(client, "jobs")
            world.allow(f"eve allow {right}")
        assert called("replay", "jobs").code == 0
        assert came(client, "jobs") == once(3)
        assert called("list", "jobs").code == 0
        ran = called("purge", "jobs", "--before", "end", "--yes")
        assert (ran.code, "may not delete topic 'jobs.dlq'" in ran.err) == (1, True)
        bury(client, "secret", numbers(3), to="jobs.dlq")
        assert called("replay", "jobs").code == 4


def test_a_namespace_is_enough_for_its_own(world: World) -> None:
    ann = str(world.key("ann", namespace="ann"))
    env = {"PENSTOCK_TRANSPORT": "tcp", "PENSTOCK_KEY": ann}
    with world.broker.connect() as client:
        client.admin().create_topic("ann.jobs")
        bury(client, "ann.jobs", numbers(3))
        bury(client, "bob.jobs", numbers(3))
        done = call_cli("dlq", "replay", "ann.jobs", url=world.broker.tcp_url, env=env)
        assert done.code == 0, done.err
        assert came(client, "ann.jobs") == once(3)
    for verb in ("list", "stats", "replay"):
        ran = call_cli("dlq", verb, "bob.jobs", url=world.broker.tcp_url, env=env)
        assert (ran.code, "'ann' may not" in ran.err) == (1, True), ran.err
