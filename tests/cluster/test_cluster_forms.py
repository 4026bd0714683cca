"""Three real `penstock serve` processes become a cluster: it forms, has topics, survives deaths.

Held by the command line alone, as an operator sees it, and by clients that produce and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from served_cluster import SECONDS, Three

import penstock
from penstock.testing import wait_until

pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    cluster = Three(tmp_path_factory.mktemp("three"))
    try:
        assert cluster.start() == {each: cluster.places.listen(each) for each in (1, 2, 3)}
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def three(started: Three) -> Three:
    """All of them up and well, without topics."""
    away = [each for each in started.brokers.values() if not each.is_running]
    for each in away:
        each.start()
    for each in away:
        each.ready()
    for topic in started.run("topic", "list").objects:
        started.say("topic", "delete", topic["name"], "--yes")
    started.until_well()
    return started


def produce(three: Three, topic: str, values: range) -> None:
    """Each of them, committed."""
    with penstock.connect(three.places.url) as client, client.producer(acks="all") as producer:
        for value in values:
            producer.send(topic, value=b"%d" % value, partition=value % 3)
        producer.flush(timeout=SECONDS)


def read(three: Three, topic: str, count: int) -> list[int]:
    """That many values of the topic's partitions."""
    found: list[int] = []
    with penstock.connect(three.places.url) as client, client.consumer(topic) as consumer:

        def more() -> bool:
            found.extend(int(record.value or b"") for record in consumer.poll(timeout=0.5))
            return len(found) >= count

        wait_until(more, SECONDS, lambda: f"{len(found)} of {count} records\n{three.logs()}")
    return sorted(found)


def test_three_brokers_form_a_cluster_that_survives_its_members(three):
    found = three.describe()
    three.until(lambda: three.states() == {1: "up", 2: "up", 3: "up"}, "all up")
    assert len(found["cluster_id"]) == 32
    assert found["controller"] in (1, 2, 3)
    assert {each["role"] for each in found["quorum"]} == {"leader", "follower"}

    assert three.run("topic", "create", "t", "-p", "3").code == 0
    three.until_each_leads_one("t")
    assert all(sorted(each["replicas"]) == [1, 2, 3] for each in three.partitions("t"))
    settings = three.say("topic", "config", "t")
    assert (settings["replication_factor"], settings["min_insync_replicas"]) == (3, 2)

    produce(three, "t", range(300))
    assert [each["high_watermark"] for each in three.partitions("t")] == [100, 100, 100]

    victim = three.brokers[found["controller"]]  # the controller goes with it
    victim.kill()
    others = {1, 2, 3} - {victim.number}
    three.until(lambda: set(three.leaders("t")) == others, "others lead")
    assert three.states()[victim.number] == "fenced"
    assert three.run("cluster", "health").code == 1
    produce(three, "t", range(300, 600))

    victim.start().ready()
    three.until_well()
    three.until(
        lambda: all(sorted(each["isr"]) == [1, 2, 3] for each in three.partitions("t")), "in sync"
    )
    three.until_each_leads_one("t")
    assert read(three, "t", 600) == list(range(600))


def told_of_fetches(broker: Any) -> dict[str, str]:
    """Its metrics, once they know of batches that it fetched: replicators tell twice a second."""
    status, text = broker.page("/metrics")
    assert status == 200
    told = dict(re.findall(r"^(penstock_\w+)(?:{event=\"batches_in\"})? (\d+)", text, re.M))
    return told if int(told["penstock_replicator_events_total"]) else {}


def test_each_broker_tells_how_it_is_in_its_cluster(three):
    three.run("topic", "create", "t", "-p", "3")
    produce(three, "t", range(30))
    three.until_well()
    for broker in three.brokers.values():
        broker.until_ready()
        wait_until(partial(told_of_fetches, broker), SECONDS, "batches from leaders")
    wanted = {"fenced": 0, "replicas": 9, "underreplicated_partitions": 0, "led_partitions": 3,
              "controller_active": 1}  # fmt: skip

    def together() -> dict[str, int]:
        told = [told_of_fetches(broker) for broker in three.brokers.values()]
        return {
            name: sum(int(it.get(f"penstock_broker_{name}", 0)) for it in told) for name in wanted
        }

    wait_until(lambda: together() == wanted, SECONDS, lambda: f"{wanted}: {together()}")


def test_a_broker_that_is_stopped_gives_away_what_it_leads_before(three):
    three.run("topic", "create", "t", "-p", "3")
    produce(three, "t", range(30))
    leaver = three.brokers[three.leaders("t")[0]]
    before = len(leaver.log.read_text())
    assert leaver.stop() == 0
    log = leaver.log.read_text()[before:]
    assert log.index("leads nothing any more") < log.index("writers drain and close their logs")
    assert leaver.number not in three.leaders("t"), "nobody had to wait for its session to end"
    assert None not in three.leaders("t")
    produce(three, "t", range(30, 60))
    leaver.start().ready()
    three.until_well()
    assert read(three, "t", 60) == list(range(60))


def test_a_partition_moves_to_other_brokers_with_all_it_has(three):
    three.run("topic", "create", "t", "-p", "3", "--replication-factor", "1")
    topic_id = three.say("topic", "describe", "t")["topic_id"]
    produce(three, "t", range(90))
    [old] = three.partitions("t")[0]["replicas"]
    new = old % 3 + 1
    folder = three.brokers[old].folder / f"{topic_id}-0"
    with penstock.connect(three.places.url) as client, client.producer(acks="all") as producer:
        sent: list[penstock.Delivery] = []

        def goes_on(is_over: Callable[[], bool]) -> bool:
            """Somebody writes into it all the while."""
            sent.append(producer.send("t", value=b"%d" % (90 + len(sent)), partition=0))
            sent[-1].result(timeout=SECONDS)
            return is_over()

        three.say("cluster", "reassign", "t", "0", str(new))
        is_moved = [False]

        def has_moved() -> bool:
            is_moved[0] = is_moved[0] or three.partitions("t")[0]["replicas"] == [new]
            return is_moved[0] and not folder.exists()

        three.until(lambda: goes_on(has_moved), "it has moved, and nothing of it is left behind")
        three.until(lambda: goes_on(lambda: len(sent) > 20), "more records behind the move")
        three.say("cluster", "reassign", "t", "0", str(old))
        three.until(
            lambda: goes_on(lambda: three.partitions("t")[0]["replicas"] == [old]),
            "it has moved back, to where its log was before",
        )
    assert read(three, "t", 90 + len(sent)) == list(range(90 + len(sent)))
    assert three.run("topic", "delete", "t", "--yes").code == 0
    folders = [each.folder for each in three.brokers.values()]
    three.until(
        lambda: not any(list(each.glob(f"{topic_id}-*")) for each in folders),
        "no folder of a topic that is deleted",
    )


def test_a_log_that_is_trimmed_starts_there_on_every_replica(three):
    three.run("topic", "create", "t", "-p", "3", "-c", "segment_bytes=4096")
    for first in range(0, 900, 30):
        produce(three, "t", range(first, first + 30))
    topic_id = three.say("topic", "describe", "t")["topic_id"]
    done = three.run("topic", "trim", "t", "--before", "end", "--yes")
    assert done.code == 0, done.err + three.logs()
    assert [each["log_start"] for each in three.partitions("t")] == [300, 300, 300]

    def segments() -> dict[str, list[str]]:
        return {
            str(path): sorted(each.name for each in path.glob("*.log"))
            for broker in three.brokers.values()
            for path in broker.folder.glob(f"{topic_id}-*")
        }

    assert len(segments()) == 9
    three.until(lambda: all(len(found) == 1 for found in segments().values()), "all are trimmed")
    victim = three.brokers[three.leaders("t")[0]]
    victim.kill()
    others = {1, 2, 3} - {victim.number}
    three.until(lambda: {*three.leaders("t")} <= others, "others lead")
    assert [each["log_start"] for each in three.partitions("t")] == [300, 300, 300]


def test_a_broker_without_the_others_says_what_it_waits_for(three):
    for number in (2, 3):
        three.brokers[number].kill()
    one = three.brokers[1]
    one.kill()
    before = len(one.log.read_text())
    one.start()
    wait_until(
        lambda: "broker 1 waits for a controller: most brokers" in one.log.read_text()[before:],
        SECONDS, lambda: one.log.read_text()[-2000:],
    )  # fmt: skip
    assert one.stop() == 0, "also one that never was ready stops when it is told to"


def test_who_may_do_what_is_the_same_at_all_brokers(three):
    """The last one: from here on the command line needs a key."""
    one, two, _ = three.brokers.values()

    def by_its_user(*words: str) -> list[str]:
        """On the second broker's host, by who runs it."""
        done = three.run(*words, at=f"shm://{two.folder}")
        assert done.code == 0, done.err
        lines: list[str] = done.lines
        return lines

    by_its_user("acl", "add", "etl", "read", "topic", "orders.*")
    files = [each.folder / "access.json" for each in three.brokers.values()]

    def are_alike() -> bool:
        return all(each.exists() for each in files) and len({f.read_bytes() for f in files}) == 1

    wait_until(are_alike, SECONDS, three.logs)
    refused = three.run("topic", "create", "t")
    assert refused.code == 1
    assert "AccessDenied" in refused.err or "may not create" in refused.err
    one.kill()
    by_its_user("acl", "add", "etl", "read", "topic", "a", "--deny")
    assert not are_alike()
    one.start().ready()
    wait_until(are_alike, SECONDS, three.logs)
    assert len(by_its_user("acl", "list")) == 2
