"""Brokers as far as topics go: a real controller whose decisions are there at once, and for each
broker its folder, its catalogue, and writers that answer what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from penstock.cluster.controller import Controller, Image
from penstock.ipc import messages as ms
from penstock.server.broker.topics import ClusterTopics
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.partitions import Partitions
from penstock.server.node.tables import Tables
from penstock.server.node.topic_catalog import Catalog
from penstock.server.quorum import controller_requests as cr

WRITERS = 2
BOOT = "0" * 8 + "-0000-0000-0000-" + "0" * 12


class Decided:
    """The quorum: what is asked is decided by the machine, and committed by that."""

    def __init__(self, brokers: int = 3) -> None:
        self.controller = Controller()
        self.hosts: list[Host] = []
        self.asked: list[type] = []
        self.applied = 0
        self.is_silent = False
        for number in range(1, brokers + 1):
            self._register(number, b"%d" % number, was_clean=True)
            self.beat(number)

    def _register(self, number: int, life: bytes, *, was_clean: bool) -> None:
        places = (f"tcp://h:{number}", f"tcp://r:{number}", f"tcp://c:{number}")
        self.decide(
            self.controller.register(
                0.0, number, life, b"f%d" % number, places, was_clean=was_clean
            )
        )

    def beat(self, number: int) -> None:
        epoch = self.image.brokers[number].epoch
        self.decide(
            self.controller.heartbeat(0.0, number, epoch, is_current=True, is_leaving=False)
        )

    def lose_power(self, number: int, *, beat: bool) -> None:
        """It registers after that; `beat`: and is heard."""
        self._register(number, b"%d again" % number, was_clean=False)
        if beat:
            self.beat(number)

    @property
    def image(self) -> Image:
        return self.controller.image

    def decide(self, decision: Any) -> Any:
        for record in decision.records:
            self.controller.replay(record)
        self.applied += 1
        return decision.answer

    async def ask(self, request: cr.QuorumRequest[Any], timeout: float) -> Any:
        self.asked.append(type(request))
        await asyncio.sleep(0)
        if isinstance(request, cr.Describe):
            return {"committed": self.applied}
        assert isinstance(request, cr.ControllerRequest)
        answer = self.decide(request.decide(self.controller, 0.0))
        if not self.is_silent:
            self.tell()
        return answer

    def tell(self) -> None:
        for host in self.hosts:
            host.hear()


class Seen:
    """The quorum as one broker has heard of it: what was decided since is not applied there."""

    def __init__(self, quorum: Decided) -> None:
        self._quorum = quorum
        self.applied = 0

    @property
    def image(self) -> Image:
        return self._quorum.image

    async def ask(self, request: cr.QuorumRequest[Any], timeout: float) -> Any:
        return await self._quorum.ask(request, timeout)


class Host:
    """One broker. `orders`: what its writers were told, which they answer as long as they are not
    `is_stuck`."""

    def __init__(
        self, quorum: Decided, number: int, path: Path, tables: Tables | None = None
    ) -> None:
        """`tables`: of its life before, in this boot."""
        self.path = path
        self.quorum = quorum
        self.seen = Seen(quorum)
        path.mkdir(exist_ok=True)
        self.config = NodeConfig(
            str(path), node_id=number, listen="tcp://127.0.0.1:0", topic_timeout=5.0,
            controller_quorum="1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
        )  # fmt: skip
        self.folder = DataFolder.open(str(path), BOOT)
        self.folder.begin(BOOT, WRITERS, number)
        self.tables = tables or Tables(self.folder.record.uuid)
        self.orders: list[ms.WriterOrder] = []
        self.forgotten: list[int] = []
        self.is_stuck = False
        self.partitions = Partitions(self.folder, WRITERS, self._post, replicated=True)
        self.topics = ClusterTopics(
            self.config, self.folder, self.tables, Catalog.open(str(path), self.folder.storage),
            self.partitions, tuple, lambda: None, quorum=self.seen, let_go=self.forgotten.append,
        )  # fmt: skip
        quorum.hosts.append(self)

    def _post(self, _writer: int, order: ms.WriterOrder) -> None:
        self.orders.append(order)
        if not self.is_stuck:
            asyncio.get_running_loop().call_soon(self._answer, order)

    def _answer(self, order: ms.WriterOrder) -> None:
        if isinstance(order, ms.OpenPartition):
            self.partitions.opened(ms.PartitionOpened(order.page, 0, ""))
        elif isinstance(order, ms.ClosePartition):
            self.partitions.closed(ms.PartitionClosed(order.page))

    def hear(self) -> None:
        """What the controller decided up to now is applied here."""
        self.seen.applied = self.quorum.applied
        self.topics.heard(self.quorum.image)

    def catch_up(self) -> None:
        """Its writers answer what they left unanswered."""
        self.is_stuck = False
        for order in list(self.orders):
            self._answer(order)

    @property
    def open(self) -> set[str]:
        """What is open here."""
        return {str(it) for it in self.partitions.live.values() if it.is_open}

    @property
    def folders(self) -> set[str]:
        """Folders of partitions that are there."""
        return {each.name for each in self.path.iterdir() if len(each.name) > 32}

    async def settled(self) -> None:
        """Until what the controller said last is carried out."""
        async with asyncio.timeout(45):
            while not self.topics.is_settled or self.partitions.opening():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.topics.close()
        self.tables.unlink()
        self.tables.close()
