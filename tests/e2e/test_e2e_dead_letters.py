"""Dead letters: what they tell, that each is sent again once, whatever comes between."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dead_letter_fixture import bury, came, each_of, numbers, once
from event_loops import run

import penstock
from penstock import aio
from penstock.client.deadletters.choice import LetterChoice
from penstock.testing import Broker, wait_until

WITHIN = 25.0


@pytest.fixture
def client(node: Broker) -> Iterator[penstock.Client]:
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic(partitions=2)


def fail(client: penstock.Client, topic: str, group: str, count: int) -> None:
    """A worker of the group fails with so many jobs, each at its only try."""
    with client.share_consumer(topic, group=group, max_deliveries=1) as jobs:

        def buried() -> bool:
            for job in jobs.poll(timeout=0.1):
                with pytest.raises(ValueError, match="unlucky"), job:
                    raise ValueError(f"{job.value!r} is unlucky")
            return jobs.metrics()["buried"] == count

        wait_until(buried, WITHIN, lambda: str(jobs.metrics()))


def stepping(queue: penstock.DeadLetterQueue, **options: Any) -> Any:
    """A replay to be carried out step by step."""
    plain = {"limit": None, "rate": None, "max_replays": 3, "again": False, "dry_run": False}
    plain |= {"to": None, "topics": None}
    return queue.replaying(LetterChoice(), **{**plain, **options})


def go(_seconds: float) -> bool:
    return False


# --- the whole story ------------------------------------------------------------------------------
@pytest.mark.over_tcp
def test_a_record_dies_is_sent_again_and_dies_until_the_guard_stops_it(
    client: penstock.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_and_wait(
            topic, b"13", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=77,
            partition=1, priority=7,
        )  # fmt: skip
    queue = client.dead_letters(topic)
    fail(client, topic, f"{topic}-g", 1)
    [letter] = queue
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp) == (topic, 1, 0, 77)
    assert (letter.value, letter.key, letter.headers) == (b"13", b"k", (("h", b"1"), ("h", None)))
    assert (letter.group, letter.deliveries, letter.replays) == (f"{topic}-g", 1, 0)
    assert (letter.reason, letter.exception) == ("ValueError: b'13' is unlucky", "ValueError")
    assert letter.worker == letter.history[-1].member
    assert abs(letter.history[-1].at - time.time()) < 60
    assert queue.letter(*letter.place) == letter

    result = queue.replay()
    assert (result.sent, result.by_topic, result.is_whole) == (1, {topic: 1}, True)
    with client.consumer(topic, follow=False, isolation="read-committed") as consumer:
        first, again = consumer
    told = (("h", b"1"), ("h", None), ("penstock.replays", b"1"))
    assert (again.value, again.key, again.headers) == (b"13", b"k", told)
    assert (again.partition, again.timestamp, again.priority) == (1, 77, 7)
    assert first.headers == told[:2]

    fail(client, topic, f"{topic}-g", 1)
    [letter] = queue
    assert (letter.replays, letter.offset) == (1, again.offset)
    result = queue.replay(max_replays=1)
    assert (result.sent, result.left, result.examples) == (
        0, {"max_replays": 1}, {"max_replays": letter.place},
    )  # fmt: skip
    assert [one.place for one in queue] == [letter.place], "it is left, for who allows more"
    assert queue.replay().sent == 1
    assert [one.headers[-1] for one in queue.letters(replayed=True)] == [
        ("h", None), ("penstock.replays", b"1"),
    ]  # fmt: skip
    assert came(client, topic) == {b"13": 3}


def test_a_job_that_dies_as_a_dead_letter_gets_its_first_story_back(
    client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(1), headers=(("own", b"1"),))
    dead, twice = f"{topic}.dlq", f"{topic}.dlq.dlq"
    fail(client, dead, f"{dead}-g", 1)
    queue = client.dead_letters(dead + ".dlq")
    [letter] = queue
    assert (queue.topic, letter.topic, letter.headers) == (twice, dead, (("own", b"1"),))
    assert queue.replay().by_topic == {dead: 1}
    first, back = client.dead_letters(topic).letters(replayed=None)
    assert (back.topic, back.group, back.reason) == (topic, "workers", "ValueError: no")
    assert (first.offset, back.offset, back.replays) == (0, 0, 1)
    result = client.dead_letters(topic).replay()
    assert (result.sent, result.doubled) == (1, 1), "both are of one record"
    assert came(client, topic) == once(1)


# --- each once ------------------------------------------------------------------------------------
def test_what_did_not_match_can_be_sent_later_and_nothing_is_sent_twice(
    client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(40), headers=(("tenant", b"acme"),))
    bury(client, topic, numbers(40, 40), start=40, reason="TimeoutError")
    queue = client.dead_letters(topic)
    chosen = "exception = 'TimeoutError' and TRY_CAST(text AS INT) % 2 = 0"
    result = queue.replay(where=chosen)
    assert (result.sent, result.unmatched, result.is_whole) == (20, 60, True)
    assert queue.replay(where=chosen).sent == 0
    assert queue.replay(where="header['tenant'] = 'acme' and \"offset\" < 10").sent == 10
    assert came(client, topic) == each_of(range(10), range(40, 80, 2))
    result = queue.replay()
    assert (result.sent, result.already) == (50, 30)
    assert came(client, topic) == once(80)
    assert queue.replay().sent == 0
    assert queue.replay(again=True, where="decode(value) = '7'").sent == 1
    assert came(client, topic)[b"7"] == 2
    assert len(list(queue)) == 0
    assert len(list(queue.letters(replayed=True))) == len(list(queue.letters(replayed=None))) == 80


def test_single_ones_ranges_partitions_and_a_limit(client: penstock.Client, topic: str) -> None:
    client.admin().create_topic(f"{topic}.dlq", 2)
    for into in (0, 1):
        bury(client, topic, numbers(30, 100 * into), start=100 * into, into=into)
    queue = client.dead_letters(topic)
    assert [one.value for one in queue.letters(partition=1, limit=3)] == numbers(3, 100)
    found = queue.letters(only=[(0, 3), (1, range(28, 99))])
    assert sorted(one.place for one in found) == [(0, 3), (1, 28), (1, 29)]
    [tenth] = queue.letters(only=[(0, 10)])
    assert queue.replay(only=[tenth, (1, 20), (1, range(3, 5)), (1, range(4, 6))]).sent == 5
    assert came(client, topic) == each_of(range(10, 11), range(103, 106), range(120, 121))
    result = queue.replay(partition=0, limit=7)
    assert (result.sent, result.is_whole) == (7, False)
    assert queue.replay(partition=[0, 1]).sent == 48
    assert came(client, topic) == each_of(range(30), range(100, 130))


def test_a_dry_run_tells_and_changes_nothing(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(5))
    queue = client.dead_letters(topic)
    result = queue.replay(dry_run=True, limit=3)
    assert (result.dry_run, result.sent, result.by_topic) == (True, 3, {topic: 3})
    assert not came(client, topic)
    assert f"{topic}.dlq.replayed" not in client.admin().list_topics()
    assert queue.replay().sent == 5


def test_a_rate_sends_few_at_a_time_and_waits_between(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(20))
    replay = stepping(client.dead_letters(topic), rate=16.0)
    due: list[float] = []
    begun = time.monotonic()

    def pause(seconds: float) -> bool:
        due.append(time.monotonic() - begun + seconds)
        return False

    assert [result.sent for result in replay.run(pause)] == [4, 8, 12, 16, 20, 20]
    assert all(at >= 0.25 * number for number, at in enumerate(due))


def test_a_replay_that_was_given_up_goes_on(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(50))
    queue = client.dead_letters(topic)
    steps = stepping(queue, rate=40.0).run(go)
    assert next(steps).sent == 10
    steps.close()

    def interrupted(result: penstock.ReplayResult) -> None:
        if result.sent >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.replay(rate=80.0, on_progress=interrupted)
    assert came(client, topic) == once(30)
    assert queue.replay().sent == 20
    assert came(client, topic) == once(50)


def test_a_replay_that_finds_nothing_to_send_can_be_stopped(
    client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(3), headers=(("penstock.replays", b"3"),))
    replay = stepping(client.dead_letters(topic))
    assert [*replay.run(lambda _: True)] == []
    assert (replay.result.left, replay.result.is_whole) == ({"max_replays": 3}, False)


def test_a_replay_that_begins_ends_the_one_before(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(50))
    queue = client.dead_letters(topic)
    first = stepping(queue, rate=40.0).run(go)
    next(first)
    second = stepping(queue, rate=40.0).run(go)
    next(second)
    with pytest.raises(penstock.ProducerFencedError, match=r"another replay of .* has begun"):
        next(first)
    assert [result.sent for result in second][-1] == 40
    assert came(client, topic) == once(50)


def test_a_record_with_two_dead_letters_is_sent_once(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(5))
    bury(client, topic, numbers(5), group="others")
    queue = client.dead_letters(topic)
    result = queue.replay()
    assert (result.sent, result.doubled) == (5, 5)
    assert came(client, topic) == once(5)
    assert queue.replay().sent == 0


# --- what cannot be sent --------------------------------------------------------------------------
def test_what_cannot_be_sent_is_left_and_told(client: penstock.Client, topic: str) -> None:
    dead = f"{topic}.dlq"
    bury(client, topic, numbers(1))
    bury(client, topic, [None], start=1, headers=(("penstock.dlq.damaged", b"crc"),))
    bury(client, "elsewhere", numbers(1), to=dead)
    with client.producer() as producer:
        producer.send(dead, b"no letter")
        producer.send(dead, b"half", headers={"penstock.dlq.topic": b"x"})
    with client.producer() as producer:
        story = {f"penstock.dlq.{name}": b"1" for name in ("partition", "offset", "deliveries")}
        story |= {"penstock.dlq.topic": topic.encode(), "penstock.dlq.group": b"g"}
        producer.send(dead, None, headers={**story, "penstock.dlq.damaged": b"crc"})
        producer.send(dead, b"x", headers={**story, "penstock.dlq.offset": b"-3"})
        producer.send(dead, b"x", headers={**story, "penstock.dlq.history": b"[", "own": b"1"})
    queue = client.dead_letters(topic)
    result = queue.replay()
    assert result.left == {"damaged": 1, "other_topic": 1}
    assert (result.sent, result.foreign) == (3, 3)
    assert came(client, topic) == {b"0": 1, None: 1, b"x": 1}
    result = queue.replay(topics=["elsewhere"])
    assert result.left == {"damaged": 1, "no_topic": 1}
    assert queue.replay(to=topic, where="topic = 'elsewhere'").by_topic == {topic: 1}
    stats = queue.stats()
    assert (stats.total, stats.replayed, stats.open) == (5, 4, 1)
    assert (stats.damaged, stats.foreign) == (1, 3)


def test_a_topic_that_was_deleted_gets_nothing_and_loses_nothing(
    node: Broker, client: penstock.Client
) -> None:
    topic = node.create_topic()
    bury(client, topic, numbers(3), partition=7)
    client.admin().delete_topic(topic)
    queue = client.dead_letters(topic)
    assert queue.replay().left == {"no_topic": 3}
    with pytest.raises(penstock.UnknownTopicError, match="to='nowhere'"):
        queue.replay(to="nowhere")
    client.admin().create_topic(topic)
    assert queue.replay().sent == 3
    assert came(client, topic) == once(3)


def test_what_is_too_large_by_now_is_left(client: penstock.Client, topic: str) -> None:
    bury(client, topic, [b"1", b"x" * 5000, b"2"])
    client.admin().alter_topic(topic, record_bytes_max=2000)
    result = client.dead_letters(topic).replay()
    assert (result.sent, result.left) == (2, {"refused": 1})
    client.admin().alter_topic(topic, record_bytes_max=None)
    assert client.dead_letters(topic).replay().sent == 1


def test_one_topic_for_all_names_those_to_send_to(client: penstock.Client, topic: str) -> None:
    yard = f"{topic}-graveyard"
    bury(client, topic, numbers(2), to=yard)
    bury(client, "elsewhere", numbers(2), to=yard)
    with pytest.raises(penstock.UnknownTopicError, match=rf"no topic '{yard}\.dlq'.*exact=True"):
        client.dead_letters(yard).stats()
    queue = client.dead_letters(yard, exact=True)
    with pytest.raises(penstock.ConfigError, match="name those to which may be sent"):
        queue.replay()
    assert queue.replay(dry_run=True).left == {"no_topic": 2}
    result = queue.replay(topics=[topic])
    assert (result.by_topic, result.left) == ({topic: 2}, {"other_topic": 2})


WRONG: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda it: it.replay(rate=0), penstock.ConfigError, "rate=0 must lie between"),
    (lambda it: it.replay(limit=0), penstock.ConfigError, "limit=0 must lie between"),
    (lambda it: it.replay(max_replays=0), penstock.ConfigError, "max_replays=0"),
    (lambda it: it.replay(topics="x"), TypeError, "is a list of names"),
    (lambda it: it.replay(to=it.topic), penstock.ConfigError, "they would be none any more"),
    (
        lambda it: it.replay(topics=[it.topic + ".replayed"]),
        penstock.ConfigError, "they would be none any more",
    ),
    (lambda it: it.replay(only=["0:1"]), TypeError, "name dead letters"),
    (lambda it: it.replay(partition=9), penstock.UnknownTopicError, "partitions 0 to 0, not 9"),
    (lambda it: it.replay(where="nope = 1"), penstock.ConfigError, "There are value, key, text"),
    (lambda it: it.replay(where='group = "a"'), penstock.ConfigError, "write the column as"),
    (lambda it: it.replay(where="1; select 2"), penstock.ConfigError, "cannot be asked"),
    (
        lambda it: it.stats(where="(select count(*) from read_csv('/etc/passwd')) > 0"),
        penstock.ConfigError, "disabled by configuration",
    ),
    (lambda it: it.stats(where="CAST(text AS INT) > 0"), penstock.ConfigError, "TRY_CAST gives"),
    (lambda it: it.letter(0, 99), penstock.OffsetOutOfRangeError, "no dead letter at offset 99"),
    (lambda it: it.purge(before=99), penstock.OffsetOutOfRangeError, "99"),
]  # fmt: skip


def test_wrong_arguments_are_told(client: penstock.Client, topic: str) -> None:
    bury(client, topic, [b"no number"])
    queue = client.dead_letters(topic)
    for call, kind, said in WRONG:
        with pytest.raises(kind, match=said):
            call(queue)
    assert not came(client, topic)
    with pytest.raises(penstock.UnknownTopicError, match="no dead letter was written to it yet"):
        list(client.dead_letters("nowhere"))


def test_a_condition_without_duckdb_says_what_to_install(
    client: penstock.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "penstock.client.deadletters.where", raising=False)
    monkeypatch.delitem(sys.modules, "penstock.client.sql_condition", raising=False)
    with pytest.raises(ImportError, match=r"where= needs DuckDB.*penstock\[sql\]"):
        client.dead_letters(topic).replay(where="true")


def test_a_topic_beside_it_that_others_use_is_not_taken(node: Broker) -> None:
    topic = node.create_topic()
    node.create_topic(f"{topic}.dlq.replayed", partitions=2)
    with node.connect() as client:
        bury(client, topic, numbers(1))
        with pytest.raises(penstock.ConfigError, match=r"cleanup=compact; delete it"):
            client.dead_letters(topic).replay()


# --- how many, and away with them -----------------------------------------------------------------
def test_stats_count_those_that_are_open(client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(3), group="a", reason="KeyError: 'x'\nmore")
    bury(client, topic, numbers(2), start=3, group="b", reason="out of luck")
    queue = client.dead_letters(topic)
    queue.replay(limit=1)
    seen: list[tuple[int, int]] = []
    stats = queue.stats(on_progress=lambda done, whole: seen.append((done, whole)))
    assert (stats.total, stats.replayed, stats.open, stats.value_bytes) == (5, 1, 4, 4)
    assert stats.by_group == {"a": 2, "b": 2}
    assert stats.by_exception == {"KeyError": 2, "(none)": 2}
    assert stats.by_reason == {"KeyError: 'x'": 2, "out of luck": 2}
    assert (stats.by_topic, stats.by_age) == ({topic: 4}, {"1h": 4})
    assert stats.oldest is not None
    assert stats.newest is not None
    assert time.time() - 60 < stats.oldest <= stats.newest
    assert seen[-1][1] == 5
    assert queue.stats(where="\"group\" = 'b'").total == 2


def test_a_purge_removes_the_oldest_and_what_was_known_of_them(
    client: penstock.Client, topic: str
) -> None:
    bury(client, topic, numbers(2100))
    queue = client.dead_letters(topic)
    assert queue.replay(limit=2060).sent == 2060
    [foretold] = queue.purge(before="replayed", dry_run=True)
    assert (foretold.log_start, foretold.records) == (2060, 2060)
    assert queue.stats().total == 2100
    assert queue.purge(before="replayed") == [foretold]
    assert (queue.stats().total, queue.stats().replayed) == (40, 0)
    assert queue.purge(before=2070)[0].records == 10
    assert queue.replay().sent == 30
    with client.consumer(f"{topic}.dlq.replayed", follow=False) as bits:
        latest = {record.key: record.value for record in bits if record.key != b"fence"}
    assert [value is None for _, value in sorted(latest.items())] == [True, True, False]
    assert queue.purge(before="latest")[0].records == 30
    assert list(queue.letters(replayed=None)) == []
    assert queue.replay().sent == 0


# --- in an event loop -----------------------------------------------------------------------------
@pytest.mark.over_tcp
def test_the_same_from_an_event_loop(node: Broker, client: penstock.Client, topic: str) -> None:
    bury(client, topic, numbers(150))

    async def main() -> None:
        async with aio.connect(node.url) as there:
            queue = there.dead_letters(topic)
            assert [letter.value async for letter in queue] == numbers(150)
            async for letter in queue.letters(limit=120):
                assert letter.value == b"0"
                break
            assert (await queue.letter(0, 3)).value == b"3"
            assert (await queue.replay(limit=100)).sent == 100
            assert (await queue.stats()).open == 50
            [gone] = await queue.purge(before="replayed")
            assert gone.records == 100

    run(main())
    assert came(client, topic) == once(100)
