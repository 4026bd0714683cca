"""Jobs of a share group as an operator looks at them: where each is, and that nobody loses one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call_cli
from event_loops import run
from keyed_fixture import World

import penstock
from penstock import aio
from penstock.core import errors as er
from penstock.testing import Broker, produce

pytestmark = pytest.mark.over_tcp
WITHIN = 25.0


def told(jobs: list[Any]) -> list[tuple[int, str, int, bytes | None]]:
    return [
        (job.offset, job.state, job.deliveries, job.record and job.record.value) for job in jobs
    ]


def test_each_state_is_shown_with_who_has_it_and_nothing_is_leased(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client, client.admin() as admin:
        assert admin.peek_share_group("none", topic) == []
        produce(node, topic, [b"%d" % number for number in range(9)])
        begun = time.time()
        with client.share_consumer(topic, group=topic, dead_letters=None) as jobs:
            held: list[Any] = []
            while len(held) < 5:
                held += jobs.poll(5 - len(held), timeout=1.0)
            held[0].ack()
            held[1].nack(delay=3600.0, reason="away")
            held[2].nack(delay=0.0, reason="try again")
            jobs.flush()
            found = admin.peek_share_group(topic, topic)
            assert told(found) == [
                (1, "waiting", 1, b"1"), (2, "ready", 1, b"2"), (3, "leased", 1, b"3"),
                (4, "leased", 1, b"4"), (5, "new", 0, b"5"), (6, "new", 0, b"6"),
                (7, "new", 0, b"7"), (8, "new", 0, b"8"),
            ]  # fmt: skip
            waiting, ready, leased = found[:3]
            assert waiting.reason == "away"
            assert begun + 3590 < (waiting.due or 0.0) < time.time() + 3601
            assert (ready.reason, ready.due, ready.worker) == ("try again", None, None)
            assert leased.worker == jobs.member_id
            assert begun - 1 < (leased.since or 0.0) < time.time() + 1
            few = admin.peek_share_group(topic, topic, state="leased", limit=1, values=False)
            assert told(few) == [(3, "leased", 1, None)]
            few = admin.peek_share_group(topic, topic, state="new", limit=2)
            assert [job.offset for job in few] == [5, 6]
            assert admin.peek_share_group(topic, topic, state="condemned") == []
            assert admin.describe_share_group(topic).leased == {jobs.member_id: 2}

            rows = call_cli("group", "peek", topic, topic, "--state", "waiting", url=node.url)
            assert rows.code == 0
            assert rows.lines[1].split()[:4] == ["0", "1", "waiting", "1"]
            assert rows.lines[1].split()[-1] == "away"
            [shown] = call_cli(
                "group", "peek", topic, topic, "--state", "ready", "--format", "json", url=node.url
            ).objects
            assert (shown["offset"], shown["record"]["value"]) == (2, "2")
            for job in held[3:]:
                job.ack()
        for options, error in (
            ({"state": "dead"}, er.ConfigError),
            ({"limit": 0}, er.ConfigError),
            ({"partitions": 7}, er.UnknownTopicError),
        ):
            with pytest.raises(error):
                admin.peek_share_group(topic, topic, **options)


def test_more_than_an_answer_holds_and_what_retention_took_are_shown(node: Broker) -> None:
    topic = node.create_topic()

    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer() as producer:
            await producer.send_batch(topic, [b"%d" % number for number in range(400)])
            async with (
                client.share_consumer(topic, group=topic) as jobs,
                client.admin() as admin,
            ):
                held: list[penstock.Job] = []
                while len(held) < 250:
                    held += await jobs.poll(250 - len(held), timeout=1.0)
                await admin.trim(topic, before=10)
                found = await admin.peek_share_group(topic, topic, state="leased", limit=230)
                assert [job.offset for job in found] == list(range(230))
                assert [job.offset for job in found if job.record is None] == list(range(10))

    run(main())


@pytest.mark.over_tcp(False)
def test_it_takes_the_right_to_describe_the_group_and_to_read_the_topic(tmp_path: Path) -> None:
    with World(tmp_path) as world, world.broker.connect() as client:
        client.admin().create_topic("jobs")
        produce(world.broker, "jobs", [b"secret"])
        with client.share_consumer("jobs", group="workers") as jobs:
            assert jobs.poll(timeout=WITHIN)
        env = {"PENSTOCK_TRANSPORT": "tcp", "PENSTOCK_KEY": str(world.key("eve"))}
        world.allow("nobody allow read topic x")
        for right in ("describe topic jobs", "describe group workers", "read topic jobs"):
            words = ("group", "peek", "workers", "jobs", "--no-values")
            ran = call_cli(*words, url=world.broker.tcp_url, env=env)
            assert (ran.code, "'eve' may not" in ran.err) == (1, True), (right, ran.err)
            world.allow(f"eve allow {right}")
        ran = call_cli("group", "peek", "workers", "jobs", url=world.broker.tcp_url, env=env)
        assert (ran.code, "secret" in ran.lines[1]) == (0, True), ran.err
