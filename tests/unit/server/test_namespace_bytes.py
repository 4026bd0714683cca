"""What a namespace has on the disk, between two looks at files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_crash import memory

from penstock.cluster.access import NamespaceLimits
from penstock.ipc import layout as lo
from penstock.ipc.hostslots import FullPages
from penstock.ipc.state import StatePage, format_table
from penstock.server.node.namespace_bytes import NamespaceBytes

LIMIT = 1000


class World:
    """A partition of a namespace with a limit, whose files are measured when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._log.mkdir()
        fd, self.region = memory(lo.state_table_bytes(1))
        os.close(fd)
        format_table(self.region, bytes(16), 1)
        self.page = StatePage(self.region, 0)
        topic = SimpleNamespace(name="acme.a", topic_id="1", folder=lambda *_: os.fspath(self._log))
        limits = [NamespaceLimits("acme", disk_bytes_max=LIMIT)]
        self.counted = NamespaceBytes(
            os.fspath(folder),
            cast(Any, {0: SimpleNamespace(topic=topic, index=0)}),
            lambda _: self.page,
            cast(Any, SimpleNamespace(look=lambda _: None, limits=limits)),
            FullPages(self.region),
        )

    def holds(self, segment: int, nbytes: int) -> None:
        """So many bytes in that segment, which is the open one; others stay as they are."""
        (self._log / f"{segment}").write_bytes(os.urandom(nbytes))
        self.page.publish_segment(segment, nbytes)

    def look(self) -> bool:
        """Whether it is full now."""

        async def looks() -> None:
            self.counted.look()
            await self.counted.close()  # a look at files has ended
            self.counted._is_closed = False
            self.counted.look()

        asyncio.run(looks())
        return self.counted._slot.has(0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.region.close()


@pytest.mark.parametrize("status", [lo.STATUS_FOLLOWING, lo.STATUS_ONLINE])
def test_what_is_in_the_open_segment_counts_at_once(world: World, status: int) -> None:
    """Nobody counts what a follower copies, and it may lead at any moment."""
    world.page.publish_status(status)
    world.holds(0, 400)
    assert not world.look()
    assert world.counted.used("acme") == 400
    world.holds(0, 990)
    assert not world.look()
    world.holds(0, LIMIT)
    assert world.look()


def test_a_follower_is_measured_once_it_has_another_segment(world: World) -> None:
    world.page.publish_status(lo.STATUS_FOLLOWING)
    world.holds(0, 100)
    assert not world.look()
    world.holds(0, 900)
    world.holds(9, 200)
    assert world.look()
    assert world.counted.used("acme") == 1100
