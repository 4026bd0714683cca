"""Topics of brokers: what the controller decided is in their catalogues and folders, no more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cluster_topics_fixture import Decided, Host

from penstock.cluster.controller import Image, Place
from penstock.cluster.replica import IsrChange
from penstock.core.errors import (
    ConfigError,
    PenstockTimeout,
    ResourceLimitError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.messages import TopicSettings
from penstock.server.broker import topics
from penstock.server.broker.replica_list import KeptReplicas
from penstock.server.broker.topic_config import cluster_topic
from penstock.server.node.topic_catalog import TopicRecord
from penstock.server.quorum import controller_requests as cr

World = tuple[Decided, list[Host]]


@pytest.fixture
def world(
    tmp_path: Path,
) -> Callable[[Callable[[Decided, list[Host]], Coroutine[Any, Any, None]]], None]:
    def run(test: Callable[[Decided, list[Host]], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            quorum = Decided()
            hosts = [Host(quorum, number, tmp_path / str(number)) for number in (1, 2, 3)]
            try:
                quorum.tell()
                await test(quorum, hosts)
            finally:
                for host in hosts:
                    await host.close()

        asyncio.run(main())

    return run


def create(host: Host, name: str, **settings: Any) -> Coroutine[Any, Any, ms.TopicFound]:
    return host.topics.create(ms.CreateTopic(name, TopicSettings(**settings)))


def alter(host: Host, name: str, **settings: Any) -> Coroutine[Any, Any, ms.TopicFound]:
    return host.topics.alter(ms.AlterTopic(name, TopicSettings(**settings)))


def test_a_topic_has_the_same_pages_everywhere_and_is_open_where_its_replicas_are(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        made = (await create(hosts[0], "t", partitions=6, replication_factor=2)).topic
        assert made.settings.replication_factor == 2
        assert made.settings.min_insync_replicas == 1
        for host in hosts:
            await host.settled()
            found = await host.topics.find("t")
            assert found.topic == made
            here = {n for n in range(6) if host.config.node_id in
                    quorum.image.partitions[made.topic_id, n].replicas}  # fmt: skip
            assert host.open == {f"t-{n}" for n in here}
            assert host.folders == {f"{made.topic_id.hex()}-{n}" for n in here}
            assert all(order.replicated for order in host.orders
                       if isinstance(order, ms.OpenPartition))  # fmt: skip

    world(test)


def test_what_is_left_open_is_decided_by_how_many_brokers_there_are(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        found = (await create(hosts[0], "t")).topic.settings
        assert (found.replication_factor, found.min_insync_replicas) == (3, 2)
        internal = await hosts[1].topics.ensure_internal("__inside", TopicSettings())
        assert internal.settings.replication_factor == 3
        assert (await hosts[2].topics.ensure_internal("__inside", TopicSettings())) == internal

    world(test)


def test_pages_go_round_and_are_not_used_again_soon(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        first = (await create(hosts[0], "a", partitions=4)).topic.pages
        await hosts[1].settled()
        await hosts[1].topics.delete("a")
        second = (await create(hosts[2], "b", partitions=4)).topic.pages
        assert not set(first) & set(second)
        for _ in range(lo.PAGES_MAX // 512 + 1):
            quorum.decide(quorum.controller.pages(511))
        third = (await create(hosts[0], "c", partitions=lo.PAGES_MAX // 8)).topic.pages
        assert len(set(third)) == lo.PAGES_MAX // 8
        assert not set(second) & set(third)

    world(test)


def test_two_brokers_make_topics_at_once_with_different_pages(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        found = await asyncio.gather(*(create(host, f"t{n}", partitions=5)
                                       for n, host in enumerate(hosts)))  # fmt: skip
        pages = [page for each in found for page in each.topic.pages]
        assert len(set(pages)) == 15
        answers = await asyncio.gather(*(create(host, "same") for host in hosts),
                                       return_exceptions=True)  # fmt: skip
        assert sum(isinstance(answer, TopicExistsError) for answer in answers) == 2

    world(test)


def test_a_topic_grows_and_changes_for_all_brokers(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        before = (await create(hosts[0], "t", partitions=2)).topic
        after = (await alter(hosts[1], "t", partitions=4, retention=60.0)).topic
        assert after.pages[:2] == before.pages
        assert len(set(after.pages)) == 4
        for host in hosts:
            await host.settled()
            assert (await host.topics.find("t")).topic == after
            assert host.open == {f"t-{n}" for n in range(4)}
            last = {o.page: o for o in host.orders if isinstance(o, ms.OpenPartition)}
            assert all(order.settings.retention == 60.0 for order in last.values())

    world(test)


def test_growth_that_was_cut_off_keeps_its_pages_for_the_next_one(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        await create(hosts[0], "t", partitions=2)
        ask = quorum.ask

        async def cut(request: cr.QuorumRequest[Any], timeout: float) -> Any:
            if isinstance(request, cr.AddPartitions):
                raise PenstockTimeout("no answer")
            return await ask(request, timeout)

        quorum.ask = cut  # type: ignore[method-assign]
        with pytest.raises(PenstockTimeout):
            await alter(hosts[0], "t", partitions=4)
        quorum.ask = ask  # type: ignore[method-assign]
        kept = cluster_topic(quorum.image.topic("t")[1].config).pages
        assert len((await hosts[2].topics.find("t")).topic.pages) == 2
        assert (await alter(hosts[1], "t", partitions=4)).topic.pages == kept

    world(test)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"partitions": 1}, "cannot shrink to 1"),
        (
            {"partitions": 2, "replication_factor": 2},
            "replication_factor=3: .* `penstock cluster reassign t ",
        ),
        ({"partitions": 2, "durability": "fsync"}, "neither given nor taken later"),
        ({"partitions": 2, "min_insync_replicas": 4}, "must be from 1 to its replication_factor=3"),
        ({"partitions": 2, "segment_bytes": 1}, "segment_bytes is 1"),
    ],
)
def test_a_change_that_cannot_be_is_refused(world, changes, complaint):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        before = (await create(hosts[0], "t", partitions=2)).topic
        with pytest.raises(ConfigError, match=complaint):
            await alter(hosts[1], "t", **changes)
        assert (await hosts[2].topics.find("t")).topic == before

    world(test)


def test_a_change_is_answered_with_what_holds_by_then(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        await create(hosts[0], "t", partitions=2)
        for retention in (60.0, 120.0, None):
            found = await alter(hosts[0], "t", partitions=2, retention=retention)
            assert found.topic.settings.retention == retention
        assert found == await alter(hosts[0], "t", partitions=2), "nothing to change"

    world(test)


def test_a_cluster_has_no_more_partitions_than_its_brokers_allow(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        await create(hosts[0], "t", partitions=1000)
        with pytest.raises(ResourceLimitError, match="would make 1025 in the cluster"):
            await create(hosts[0], "u", partitions=25)
        await create(hosts[1], "v", partitions=20)
        with pytest.raises(ResourceLimitError, match="partitions_max=1024"):
            await alter(hosts[1], "t", partitions=1010)

    world(test)


def test_more_replicas_than_brokers_are_refused(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        with pytest.raises(ConfigError, match="replication_factor=4: 3 brokers are there"):
            await create(hosts[0], "t", replication_factor=4)
        with pytest.raises(ConfigError, match="min_insync_replicas=3"):
            await create(hosts[0], "t", replication_factor=2, min_insync_replicas=3)
        with pytest.raises(UnknownTopicError):
            await hosts[0].topics.find("t")

    world(test)


def test_a_topic_shows_how_many_replicas_its_partitions_have(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        topic = (await create(hosts[0], "t", partitions=2, replication_factor=1)).topic
        places = tuple((topic.topic_id, number) for number in range(2))
        await quorum.ask(cr.Reassign(places[:1], replication_factor=3), timeout=1.0)
        for host in hosts:
            await host.settled()
            assert (await host.topics.find("t")).topic.settings.replication_factor == 1
        await quorum.ask(cr.Reassign(places[1:], replication_factor=2), timeout=1.0)
        for host in hosts:
            await host.settled()
            assert (await host.topics.find("t")).topic.settings.replication_factor == 2
        changed = {"partitions": 3, "replication_factor": 2, "min_insync_replicas": 2}
        settings = (await alter(hosts[1], "t", **changed)).topic.settings
        assert (settings.replication_factor, settings.min_insync_replicas) == (2, 2)
        assert len(quorum.image.partitions[topic.topic_id, 2].replicas) == 2
        with pytest.raises(ConfigError, match="cluster reassign t --replication-factor 1"):
            await alter(hosts[1], "t", partitions=3, replication_factor=1)

    world(test)


def test_a_deleted_topic_is_gone_from_all_brokers(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        pages = (await create(hosts[0], "t", partitions=3)).topic.pages
        for host in hosts:  # or one would hear of it when it is gone already
            await host.settled()
        await hosts[1].topics.delete("t")
        closed = 0
        for host in hosts:
            await host.settled()
            async with asyncio.timeout(45):
                while host.folders:
                    await asyncio.sleep(0.001)
            assert not host.open
            assert set(pages) <= set(host.forgotten)
            closes = [order for order in host.orders if isinstance(order, ms.ClosePartition)]
            closed += len(closes)
            assert all(order.delete for order in closes)
            with pytest.raises(UnknownTopicError):
                await host.topics.find("t")
        assert closed > 0

    world(test)


def test_a_deletion_that_the_last_run_began_may_end_before_the_controller_is_heard(
    world, tmp_path, caplog
):
    """What comes later is carried out all the same: else the broker would never admit clients."""

    async def test(quorum: Decided, hosts: list[Host]) -> None:
        pages = (await create(hosts[0], "t", partitions=3)).topic.pages
        for host in hosts:
            await host.settled()
        hosts[2].is_stuck = True
        await hosts[0].topics.delete("t")
        await hosts[2].settled()
        assert hosts[2].folders
        await hosts[2].close()
        hosts[2] = again = Host(quorum, 3, tmp_path / "3")
        quorum.hosts.pop(2)
        for page in pages:
            again.partitions.closed(ms.PartitionClosed(page))
        async with asyncio.timeout(45):
            while again.folders or again.topics._deletions:
                await asyncio.sleep(0.001)
        for _ in range(10):  # turns of the loop, for whoever was woken by that
            await asyncio.sleep(0)
        assert not again.topics.is_settled, "nothing was heard"
        await create(hosts[0], "u", partitions=3)
        await again.settled()
        assert again.open == {"u-0", "u-1", "u-2"}
        assert not [it for it in caplog.records if it.levelname == "ERROR"]

    world(test)


def test_a_pass_that_fails_is_tried_again_whatever_it_failed_by(world, monkeypatch, caplog):
    monkeypatch.setattr(topics, "PASS_RETRY", 0.001)

    async def test(quorum: Decided, hosts: list[Host]) -> None:
        records, errors = hosts[1].topics._view.records, [OSError("no room"), KeyError("t")]

        def failing(image: Image) -> list[TopicRecord]:
            if errors:
                raise errors.pop(0)
            return records(image)

        monkeypatch.setattr(hosts[1].topics._view, "records", failing)
        await create(hosts[0], "t", partitions=3)
        await hosts[1].settled()
        assert hosts[1].open == {"t-0", "t-1", "t-2"}
        told = [it for it in caplog.records if "is not carried out" in it.message]
        assert [(it.message.rpartition(": ")[2], bool(it.exc_info)) for it in told] == [
            ("no room", False), ("KeyError('t')", True),
        ]  # fmt: skip

    world(test)


async def move(quorum: Decided, place: Place, old: int, new: int) -> None:
    """Its only replica goes from one broker to another, which is in sync at once."""
    await quorum.ask(cr.Reassign((place,), (new,)), timeout=1.0)
    it = quorum.image.partitions[place]
    isr = tuple((b, quorum.image.brokers[b].epoch) for b in (old, new))
    change = IsrChange(old, it.leader_epoch, it.partition_epoch, isr)
    await quorum.ask(cr.ChangeIsr(place, change), timeout=1.0)


def test_a_partition_that_moves_away_is_closed_and_removed_and_may_come_back(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        topic = (await create(hosts[0], "t", replication_factor=1)).topic
        place = (topic.topic_id, 0)
        [old] = quorum.image.partitions[place].replicas
        new = old % 3 + 1
        for host in hosts:
            await host.settled()
        hosts[old - 1].is_stuck = True
        await move(quorum, place, old, new)
        assert quorum.image.partitions[place].replicas == (new,)
        await hosts[new - 1].settled()
        assert hosts[new - 1].open == {"t-0"}
        await hosts[old - 1].settled()
        # While it is being removed:
        await quorum.ask(cr.Reassign((place,), (old, new)), timeout=1.0)
        await asyncio.sleep(0.05)
        left = hosts[old - 1]
        assert left.forgotten == topic.pages
        assert not left.open
        closes = [o for o in left.orders if isinstance(o, ms.ClosePartition)]
        assert closes == [ms.ClosePartition(topic.pages[0], delete=False)]
        left.catch_up()
        async with asyncio.timeout(45):
            while left.open != {"t-0"}:
                await asyncio.sleep(0.001)
        assert isinstance(left.orders[-1], ms.OpenPartition)
        assert len(left.folders) == 1

    world(test)


def test_a_partition_that_comes_back_in_the_middle_of_a_pass_has_its_folder_first(
    world, monkeypatch
):
    """Its removal ends when the pass has looked already what is missing."""

    async def test(quorum: Decided, hosts: list[Host]) -> None:
        topic = (await create(hosts[0], "t", replication_factor=1)).topic
        place = (topic.topic_id, 0)
        [old] = quorum.image.partitions[place].replicas
        new = old % 3 + 1
        for host in hosts:
            await host.settled()
        left = hosts[old - 1]
        left.is_stuck = True
        await move(quorum, place, old, new)
        await left.settled()
        note, stands, goes_on = left.topics._kept.note, threading.Event(), threading.Event()

        def slow(here: set[Place]) -> None:
            stands.set()
            assert goes_on.wait(45)
            note(here)

        monkeypatch.setattr(left.topics._kept, "note", slow)
        await quorum.ask(cr.Reassign((place,), (old, new)), timeout=1.0)
        async with asyncio.timeout(45):
            while not stands.is_set():
                await asyncio.sleep(0.001)
            left.catch_up()
            while left.topics._dropping:
                await asyncio.sleep(0.001)
            assert not left.folders
            goes_on.set()
            while left.open != {"t-0"}:
                await asyncio.sleep(0.001)
        assert len(left.folders) == 1

    world(test)


def test_a_folder_is_noted_before_a_writer_puts_anything_into_it(world, monkeypatch):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        host = hosts[0]
        await create(host, "first")  # from now on there is a file that says what is kept
        noted: list[set[Place]] = []
        post = host.partitions._post

        def looks(writer: int, order: ms.WriterOrder) -> None:
            noted.append(KeptReplicas(host.folder).places)
            post(writer, order)

        monkeypatch.setattr(host.partitions, "_post", looks)
        made = (await create(host, "t", partitions=2)).topic
        assert len(noted) == 2
        assert all({(made.topic_id, 0), (made.topic_id, 1)} < places for places in noted)

    world(test)


def test_a_folder_that_cannot_be_made_at_once_is_noted_when_it_is_there(world, monkeypatch):
    """Its writer makes it as soon as the disk lets it."""
    monkeypatch.setattr(topics, "PASS_RETRY", 0.01)

    async def test(quorum: Decided, hosts: list[Host]) -> None:
        host = hosts[0]
        await create(host, "first")
        monkeypatch.setattr(host.topics, "_make_these", lambda paths: None)
        made = (await create(host, "t")).topic
        place = (made.topic_id, 0)
        assert place not in KeptReplicas(host.folder).places
        host.folder.make_folders([str(host.path / f"{made.topic_id.hex()}-0")])
        async with asyncio.timeout(45):
            while place not in KeptReplicas(host.folder).places:
                await asyncio.sleep(0.01)

    world(test)


def test_logs_open_before_the_controller_is_heard_and_strangers_stay_until_then(world, tmp_path):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        topic = (await create(hosts[0], "t", partitions=6, replication_factor=2)).topic
        for host in hosts:
            await host.settled()
        before = hosts[2].folders
        await hosts[2].close()
        hosts[2] = again = Host(quorum, 3, tmp_path / "3")
        quorum.hosts.pop(2)
        assert {str(it) for it in again.partitions.live.values()} == {
            f"t-{folder.rpartition('-')[2]}" for folder in before
        }
        assert again.folders == before
        quorum.is_silent = True
        await quorum.ask(cr.DeleteTopic("t"), timeout=1.0)
        assert again.folders == before, "what an image says that is not current is not heeded"
        again.hear()
        async with asyncio.timeout(45):
            while again.folders:
                await asyncio.sleep(0.001)
        assert topic.topic_id not in again.topics._catalog.names

    world(test)


def test_who_asks_for_a_topic_that_this_broker_has_not_heard_of_gets_it(world):
    async def test(quorum: Decided, hosts: list[Host]) -> None:
        quorum.hosts.remove(hosts[2])
        await create(hosts[0], "t")
        quorum.hosts.append(hosts[2])
        finding = asyncio.create_task(hosts[2].topics.find("t"))
        await asyncio.sleep(0.01)
        assert cr.Describe in quorum.asked
        assert not finding.done()
        hosts[2].hear()
        assert (await finding).topic.name == "t"
        with pytest.raises(UnknownTopicError):
            await hosts[1].topics.find("nothing")

    world(test)
