"""Three real quorums: who leads, what outlives whom, and what they agree on."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

import pytest
from event_loops import eventually, run
from quorum_fixture import STEADY, World, create

from penstock.core.errors import (
    ClosedError,
    ConfigError,
    PenstockTimeout,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.security.keys import create_cluster_key
from penstock.server.quorum import broker_lifecycle
from penstock.server.quorum import controller_requests as cr


def test_a_quorum_of_one_decides_alone_and_remembers_it(tmp_path):
    async def main() -> None:
        topic_id = os.urandom(16)
        async with World(tmp_path, 1) as world:
            quorum = await world.agreed()
            await world.unfenced()
            assert await quorum.ask(create("orders", topic_id, 3)) == topic_id
            assert [await quorum.coordinator_epoch() for _ in range(3)] == [1, 2, 3]
            identity = quorum.cluster_id, quorum.cluster_secret
            assert [len(part) for part in identity] == [16, 32]
            await world.stop(1)
            again = await world.start(1)
            await world.unfenced()
            assert again.broker_epoch == 2
            assert again.image.ids == {"orders": topic_id}
            assert await again.coordinator_epoch() == 4
            assert (again.cluster_id, again.cluster_secret) == identity

    run(main())


def test_three_agree_and_each_may_ask(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.agreed()
            await world.unfenced()
            for node, quorum in world.quorums.items():
                await quorum.ask(create(f"t{node}", os.urandom(16), 4, 3))
            await world.same()
            for quorum in world.quorums.values():
                assert set(quorum.image.ids) == {"t1", "t2", "t3"}
                with pytest.raises(TopicExistsError):
                    await quorum.ask(create("t1", os.urandom(16)))
                with pytest.raises(UnknownTopicError):
                    await quorum.ask(cr.DeleteTopic("none"))
                with pytest.raises(ConfigError, match="cannot be asked like that"):
                    await quorum.ask(cr.DeleteTopic(7))  # type: ignore[arg-type]

    run(main())


def test_the_death_of_the_active_one_loses_nothing(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            topic_id = os.urandom(16)
            await first.ask(create("kept", topic_id, 3, 3))
            await world.stop(first.node)
            second = await world.agreed()
            assert second.node != first.node
            assert second.image.ids == {"kept": topic_id}
            await eventually(
                lambda: all(p.leader != first.node for p in second.image.partitions.values()),
                "others lead what it led",
            )
            assert await second.ask(create("kept", topic_id, 3, 3)) == topic_id  # the same one
            await world.start(first.node)
            await world.unfenced()
            await world.same()

    run(main())


def test_a_broker_that_leaves_leads_nothing_and_is_not_waited_for(tmp_path):
    async def main() -> None:
        async with World(tmp_path, **STEADY) as world:
            first = await world.agreed()
            await world.unfenced()
            await first.ask(create("orders", os.urandom(16), 6, 3))
            term = first.describe()["term"]
            assert await first.leave(10)
            await eventually(lambda: first.leader != first.node, "another one leads")
            await world.stop(first.node)
            second = await world.agreed()
            assert second.describe()["term"] == term + 1
            partitions = second.image.partitions.values()
            assert len(partitions) == 6
            assert all(p.leader not in (None, first.node) for p in partitions)
            assert all(first.node not in p.isr for p in partitions)

    run(main())


@pytest.mark.parametrize(("count", "says"), [(2, "has 2 brokers, of which 2 must be up"), (3, "")])
def test_a_quorum_of_an_even_number_is_warned_of(tmp_path, caplog, count, says):
    async def main() -> None:
        async with World(tmp_path, count) as world:
            await world.agreed()

    run(main())
    assert says in caplog.text
    assert ("controller_quorum has" in caplog.text) == bool(says)


def test_the_last_broker_that_leaves_waits_for_nobody(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.agreed()
            await world.unfenced()
            for node in (1, 2):
                assert await world.quorums[node].leave(10)
                await world.stop(node)
            async with asyncio.timeout(45):
                assert not await world.quorums[3].leave(60)
                assert world.quorums[3].is_hopeless

    run(main())


def test_a_broker_whose_process_is_gone_is_fenced_without_waiting_for_its_session(tmp_path):
    async def main() -> None:
        async with World(tmp_path, broker_session_timeout=60.0) as world:
            active = await world.agreed()
            await world.unfenced()
            gone = next(node for node in world.quorums if node != active.node)
            await world.stop(gone)
            await eventually(lambda: active.image.brokers[gone].is_fenced, "it is fenced")
            await world.start(gone)
            await world.unfenced()

    run(main())


@pytest.mark.setting("node.election_timeout")
def test_nobody_is_elected_before_the_election_timeout(tmp_path):
    async def main() -> None:
        begun = time.monotonic()
        async with World(tmp_path, election_timeout=2.5, broker_session_timeout=5.0) as world:
            await world.agreed()
            assert time.monotonic() - begun > 2.5

    run(main())


def test_a_leader_whose_process_is_gone_is_not_waited_for(tmp_path):
    """Nor is the broker that it was, once another one leads."""

    async def main() -> None:
        world = World(tmp_path, election_timeout=2.0, broker_session_timeout=60.0)
        async with world:
            first = await world.agreed()
            await world.unfenced()
            await world.stop(first.node)
            second = await world.agreed()
            assert any(q.counts().get("raft leaders_gone") for q in world.quorums.values())
            await eventually(lambda: second.image.brokers[first.node].is_fenced, "it is fenced")

    run(main())


def test_a_new_life_has_another_epoch_and_hears_everything_again(tmp_path):
    async def main() -> None:
        async with World(tmp_path, 1) as world:
            quorum = await world.agreed()
            await world.unfenced()
            await quorum.ask(create("orders", os.urandom(16), 3))
            await world.same()
            news = world.news[1]
            assert {place for places in news if places for place in places} == set(
                quorum.image.partitions
            )
            del news[:]
            first = quorum.broker_epoch
            quorum.renew()
            assert not quorum.is_current
            assert quorum.is_fenced
            await world.unfenced()
            assert first is not None
            assert quorum.broker_epoch == first + 1
            assert news[0] is None
            await quorum.register(("tcp://127.0.0.1:7777",), was_clean=True)
            await world.unfenced()
            assert quorum.broker_epoch == first + 2
            assert quorum.image.brokers[1].endpoints[0] == "tcp://127.0.0.1:7777"

    run(main())


def test_a_broker_without_a_vote_comes_back_with_an_empty_disk(tmp_path):
    """It hears the whole log again, of the leader that is there."""

    async def main() -> None:
        async with World(tmp_path, **STEADY) as world:
            active = await world.agreed()
            await world.start(4)
            await world.unfenced()
            await active.ask(create("orders", os.urandom(16), 3))
            await world.same()
            await world.stop(4)
            shutil.rmtree(tmp_path / "4")
            await eventually(lambda: active.image.brokers[4].is_fenced, "it is fenced")
            await world.start(4)
            await world.unfenced()
            await world.same()
            assert world.active is active

    run(main())


def test_with_a_cluster_key_all_is_the_same(tmp_path):
    create_cluster_key(tmp_path / "key")

    async def main() -> None:
        async with World(tmp_path, cluster_key=str(tmp_path / "key")) as world:
            await world.agreed()
            await world.unfenced()
            stranger = World(tmp_path / "other", 3)
            stranger.ports, stranger.text = dict(world.ports), world.text
            (tmp_path / "other").mkdir()
            without = await stranger.start(4, registers=False)
            await eventually(
                lambda: all(without._links.trouble(node) for node in (1, 2, 3)), "it is kept out"
            )
            await stranger.stop(4)
            await world.quorums[1].ask(create("orders", os.urandom(16)))
            assert 4 not in {m["node"] for m in world.quorums[1].describe()["members"]}

    run(main())


def test_registering_waits_for_a_controller_and_ends_with_the_quorum(tmp_path):
    async def main() -> None:
        world = World(tmp_path)
        quorum = await world.start(1, registers=False)
        registered = asyncio.create_task(quorum.register((), was_clean=True))
        with pytest.raises(PenstockTimeout, match="Not connected: 2"):
            await quorum.ask(cr.Pages(5), timeout=0.2)
        assert not registered.done()
        await world.stop(1)
        with pytest.raises(ClosedError):
            await registered
        with pytest.raises(ClosedError):
            await quorum.ask(cr.Pages(5))

    run(main())


def test_what_a_power_cut_took_is_told_whoever_registers_first(tmp_path, monkeypatch):
    """The replicator dies while no controller is there, and its successor listens elsewhere."""
    monkeypatch.setattr(broker_lifecycle, "TRY", 0.1)

    async def main() -> None:
        world = World(tmp_path, **STEADY)  # what a controller decided is counted while it leads
        quorum = await world.start(1, registers=False)
        first = asyncio.create_task(quorum.register(("tcp://127.0.0.1:7777",), was_clean=False))
        await asyncio.sleep(0.2)
        quorum.renew()
        again = asyncio.create_task(quorum.register(("tcp://127.0.0.1:7778",), was_clean=True))
        await asyncio.sleep(0.2)
        others = [asyncio.create_task(world.start(node)) for node in (2, 3)]
        await asyncio.gather(first, again, *others)
        active = await world.agreed()
        assert active.image.brokers[1].endpoints[0] == "tcp://127.0.0.1:7778"
        assert active.decided["unclean_registrations"] == 1
        for node in (1, 2, 3):
            await world.stop(node)

    run(main())
