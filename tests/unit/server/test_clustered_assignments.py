"""What a replicator is told of partitions, in which order; what admins are told of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cluster_topics_fixture import Decided, Host

from penstock.cluster.replica import IsrChange, IsrChanged
from penstock.core.errors import ConfigError, PenstockTimeout, UnknownTopicError
from penstock.ipc import clustering as cg
from penstock.ipc import messages as ms
from penstock.ipc.messages import TopicSettings
from penstock.server.broker.admin_requests import Describing
from penstock.server.broker.assignments import Assignments
from penstock.server.quorum import controller_requests as cr
from penstock.server.replicator import messages as rm


class Told(Host):
    """A broker with what its replicator was told."""

    def __init__(self, quorum: Decided, number: int, path: Path) -> None:
        super().__init__(quorum, number, path)
        self.told: list[Any] = []
        self.assignments = Assignments(
            number, str(path), self.partitions, self.seen, self.told.append
        )

    def hear(self) -> None:
        super().hear()
        self.assignments.heard(self.quorum.image, None)

    def since(self) -> list[Any]:
        """What it was told since this was asked before."""
        told, self.told[:] = list(self.told), []
        return told


Test = Callable[[Decided, Told], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            quorum = Decided()
            host = Told(quorum, 1, tmp_path / "1")
            try:
                quorum.tell()
                await test(quorum, host)
            finally:
                host.assignments.close()
                await host.close()

        asyncio.run(main())

    return run


def create(host: Host, name: str, **settings: Any) -> Coroutine[Any, Any, ms.TopicFound]:
    return host.topics.create(ms.CreateTopic(name, TopicSettings(**settings)))


def test_a_partition_is_assigned_when_its_writer_has_opened_it(run):
    async def test(quorum: Decided, host: Told) -> None:
        host.is_stuck = True
        creating = asyncio.create_task(create(host, "t", durability="fsync"))
        await asyncio.sleep(0.05)
        assert host.since() == [], "its writer has not opened it"
        host.catch_up()
        topic = (await creating).topic
        [assign, opened] = host.since()
        word = quorum.image.assignment((topic.topic_id, 0))
        assert word is not None
        assert assign == rm.Assign(
            topic.pages[0], topic.topic_id, 0, "t-0",
            f"{host.path}/{topic.topic_id.hex()}-0", True, word,
        )  # fmt: skip
        assert opened == rm.Opened(topic.pages[0])

    run(test)


def test_each_new_word_is_told_once_and_each_opening_again(run):
    async def test(quorum: Decided, host: Told) -> None:
        page = (await create(host, "t")).topic.pages[0]
        host.since()
        quorum.tell()
        assert host.since() == [], "nothing is new"
        await quorum.ask(cr.ConfigureTopic("t", 1, b"\x82\xa5pages\x90\xa8settings\x80"), timeout=1)
        assert [type(each) for each in host.since()] == [rm.Assign]
        host.partitions.opened(ms.PartitionOpened(page, 0, ""))
        assert host.since() == [rm.Opened(page)]

    run(test)


def test_a_replicator_that_is_new_is_told_everything_once_the_image_is_current(run):
    async def test(quorum: Decided, host: Told) -> None:
        pages = (await create(host, "t", partitions=3)).topic.pages
        host.since()
        host.assignments.begin()
        host.partitions.opened(ms.PartitionOpened(pages[0], 0, ""))
        assert host.since() == [], "the controller's word may be one for an earlier life"
        host.assignments.heard(quorum.image, None)
        kinds = [(type(each), each.page) for each in host.since()]
        assert kinds == [(kind, page) for page in pages for kind in (rm.Assign, rm.Opened)]

    run(test)


def test_a_partition_that_is_gone_is_forgotten_once(run):
    async def test(quorum: Decided, host: Told) -> None:
        page = (await create(host, "t")).topic.pages[0]
        host.since()
        host.assignments.forget(page)
        host.assignments.forget(page)
        assert host.since() == [rm.Forget(page)]
        quorum.tell()
        assert host.since() == []

    run(test)


def test_the_controllers_answer_about_an_isr_goes_back(run):
    async def test(quorum: Decided, host: Told) -> None:
        topic = (await create(host, "t")).topic
        it = quorum.image.partitions[topic.topic_id, 0]
        assert it.leader is not None
        isr = ((it.leader, quorum.image.brokers[it.leader].epoch),)
        change = IsrChange(it.leader, it.leader_epoch, it.partition_epoch, isr)
        asked = rm.ChangeIsr(topic.pages[0], topic.topic_id, 0, change)
        host.since()
        host.assignments.change_isr(asked)
        host.assignments.change_isr(asked)  # asked again before there was an answer
        async with asyncio.timeout(45):
            while rm.IsrAnswer not in map(type, host.told):
                await asyncio.sleep(0.001)
        [answer] = [each for each in host.told if isinstance(each, rm.IsrAnswer)]
        assert answer == rm.IsrAnswer(
            topic.pages[0], change, IsrChanged(it.partition_epoch + 1, (it.leader,))
        )
        assert quorum.asked.count(cr.ChangeIsr) == 1

    run(test)


class Described:
    """The quorum, as it describes itself."""

    def __init__(self, quorum: Decided) -> None:
        self._quorum = quorum
        self.image = quorum.image
        self.applied = 0
        self.leader: int | None = 2
        self.cluster_id = b"c" * 16

    def describe(self) -> dict[str, Any]:
        return {"term": 4, "members": [{"node": 2, "role": "leader", "lag": None, "trouble": ""}]}

    async def ask(self, request: cr.QuorumRequest[Any], timeout: float) -> Any:
        if isinstance(request, cr.Describe):
            raise PenstockTimeout("no controller")
        if isinstance(request, cr.RemoveMember):
            return None
        return await self._quorum.ask(request, timeout)


def ask(describing: Describing, request: cg.Request) -> Coroutine[Any, Any, Any]:
    return describing.answer(request, lambda name: not name.startswith("hidden"))


def test_a_cluster_is_described_by_what_is_not_well_in_it(run):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 1.0)
        for name in ("t", "hidden"):
            await create(host, name, partitions=2)
        found = await ask(describing, cg.DescribeCluster())
        assert (found.controller, found.term, found.cluster_id) == (2, 4, b"c" * 16)
        assert (found.topics, found.partitions, found.ill_partitions) == (2, 4, 0)
        assert found.quorum == [cg.QuorumMember(2, "leader", -1)]
        assert [(b.broker, b.url, b.state, b.replicas) for b in found.brokers] == [
            (n, f"tcp://h:{n}", "up", 4) for n in (1, 2, 3)
        ]
        quorum.decide(quorum.controller.tick(100.0))
        found = await ask(describing, cg.DescribeCluster())
        assert {broker.state for broker in found.brokers} == {"fenced"}
        assert (found.ill_partitions, found.leaderless) == (4, 4)
        assert {place.topic for place in found.ill} == {"t"}, "it may not know of the other"

    run(test)


def test_an_unclean_election_is_in_the_log(run, caplog):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 1.0)
        await create(host, "t")
        await ask(describing, cg.ElectLeaders("t"))
        assert "unclean" not in caplog.text
        await ask(describing, cg.ElectLeaders("t", unclean=True))
        assert "unclean election in topic t, as an admin asked: 0 partitions" in caplog.text

    run(test)


def test_a_broker_that_nobody_knows_is_not_removed(run):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 1.0)
        with pytest.raises(ConfigError, match="there is no broker 9: there are 1, 2, 3"):
            await ask(describing, cg.RemoveBroker(9))

    run(test)


def test_a_broker_that_was_stopped_just_now_is_removed_once_it_counts_as_gone(run):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 5.0)
        removing = asyncio.create_task(ask(describing, cg.RemoveBroker(3)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not quorum.image.brokers[3].is_fenced
        quorum.controller.gone(3)
        quorum.decide(quorum.controller.tick(0.0))
        assert quorum.image.brokers[3].is_fenced
        assert await removing == ms.Done()
        assert 3 not in quorum.image.brokers

    run(test)


def test_places_of_a_topic_come_in_pages(run):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 1.0)
        await create(host, "t", partitions=600)
        found: list[int] = []
        for page in range(8):
            places = await ask(describing, cg.DescribePartitions("t", len(found)))
            found += [place.partition for place in places.partitions]
            assert places.more == (page < 7)
        assert found == list(range(600))
        with pytest.raises(UnknownTopicError):
            await ask(describing, cg.DescribePartitions("nothing"))

    run(test)


def test_leaders_are_elected_and_partitions_move(run):
    async def test(quorum: Decided, host: Told) -> None:
        describing = Describing(1, Described(quorum), 1.0)
        topic = (await create(host, "t", partitions=3, min_insync_replicas=1)).topic
        place = (topic.topic_id, 1)
        before = quorum.image.partitions[place].replicas
        await ask(describing, cg.ReassignPartition("t", 1, [*before[1:], before[0]]))
        assert quorum.image.partitions[place].replicas == (*before[1:], before[0])
        for request in (cg.ElectLeaders("t", 1), cg.ElectLeaders("t"), cg.ElectLeaders()):
            changed = (await ask(describing, request)).changed
            assert changed == (request.partition is not None)
        assert quorum.image.partitions[place].leader == before[1]
        first = [quorum.image.partitions[topic.topic_id, n].replicas[0] for n in range(3)]
        await ask(describing, cg.ReassignPartition("t", replication_factor=1))
        for number, leader in enumerate(first):
            assert quorum.image.partitions[topic.topic_id, number].replicas == (leader,)
        await ask(describing, cg.ReassignPartition("t", 0, [*before]))
        places = (await ask(describing, cg.DescribePartitions("t"))).partitions
        assert [place.target for place in places] == [[*before], [], []]
        for wrong in (
            cg.ElectLeaders("t", 3), cg.ReassignPartition("no", 0, [1]),
            cg.ReassignPartition("t", 3, [1]),
        ):  # fmt: skip
            with pytest.raises(UnknownTopicError):
                await ask(describing, wrong)
        for wrong in (
            cg.ElectLeaders("", 1), cg.ReassignPartition("t", 0, [9]), cg.ReassignPartition("t"),
            cg.ReassignPartition("t", 0, [1], 1), cg.ReassignPartition("t", replication_factor=4),
        ):  # fmt: skip
            with pytest.raises(ConfigError):
                await ask(describing, wrong)

    run(test)
