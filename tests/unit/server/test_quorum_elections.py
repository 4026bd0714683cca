"""Three real quorums: who leads, what outlives whom, and what they agree on."""

from __future__ import annotations

import os

import pytest
from loops import eventually, run
from quorum_world import World, create

from penstock.core.errors import ConfigError, TopicExistsError, UnknownTopicError


def test_a_quorum_of_one_decides_alone_and_remembers_it(tmp_path):
    async def main() -> None:
        topic_id = os.urandom(16)
        async with World(tmp_path, 1) as world:
            quorum = await world.agreed()
            await world.unfenced()
            assert await quorum.ask(*create("orders", topic_id, 3)) == topic_id
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
                await quorum.ask(*create(f"t{node}", os.urandom(16), 4, 3))
            await world.same()
            for quorum in world.quorums.values():
                assert set(quorum.image.ids) == {"t1", "t2", "t3"}
                with pytest.raises(TopicExistsError):
                    await quorum.ask(*create("t1", os.urandom(16)))
                with pytest.raises(UnknownTopicError):
                    await quorum.ask("delete_topic", "none")
                with pytest.raises(ConfigError, match="cannot be asked"):
                    await quorum.ask("replay", b"")
                with pytest.raises(ConfigError, match="cannot be asked like that"):
                    await quorum.ask("delete_topic", 7)

    run(main())


def test_the_death_of_the_active_one_loses_nothing(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            first = await world.agreed()
            await world.unfenced()
            topic_id = os.urandom(16)
            await first.ask(*create("kept", topic_id, 3, 3))
            await world.stop(first.node)
            second = await world.agreed()
            assert second.node != first.node
            assert second.image.ids == {"kept": topic_id}
            await eventually(
                lambda: all(p.leader != first.node for p in second.image.partitions.values()),
                "others lead what it led",
            )
            assert await second.ask(*create("kept", topic_id, 3, 3)) == topic_id  # the same one
            await world.start(first.node)
            await world.unfenced()
            await world.same()

    run(main())
