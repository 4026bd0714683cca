"""A producer's sender over a real lane in private memory and a real log on disk.

The test plays the node and the writer between the two, and makes them misbehave.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lane_bytes import MANY, made
from store_crash import memory

from penstock.client.backoff import Retries
from penstock.client.producer.routes import Batch, LaneLink, PartitionRoute, TopicRoutes
from penstock.client.producer.sender import Sender
from penstock.client.remote.address import Place
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.log import Log, LogConfig
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import state
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack, LaneReceiver
from penstock.ipc.state import StatePage

TOPIC = bytes(range(16))


class World:
    """A producer's sender, its lane, and a writer that the test makes misbehave."""

    def __init__(
        self,
        chance: random.Random,
        folder: Path | None,
        retries: Retries,
        open_lane: Any = None,
        socket: Place = Path("/nowhere"),
        **options: Any,
    ) -> None:
        self.chance = chance
        fd, table = memory(lo.state_table_bytes(1))
        os.close(fd)
        state.format_table(table, bytes(16), 1)
        self.page = StatePage(table, 0)
        self.doorbells: list[Doorbell] = []
        self.finished: list[Batch] = []
        self.sent: list[Batch] = []
        self.receiver: LaneReceiver | None = None
        self.sender = Sender(
            socket, level="appended", idempotent=True, delivery_timeout=1e6,
            open_lane=open_lane or self._open_lane, finished=self.finished.append, retries=retries,
            **options,
        )  # fmt: skip
        self.route = PartitionRoute("t", TOPIC, 0, 0, 0, self.page)
        info: Any = None
        self.sender.topics["t"] = TopicRoutes(info, [self.route], 1 << 20)
        if folder is not None:
            self.storage = Storage()
            self.folder = folder
            self.log = self._recovered(1)

    def _recovered(self, generation: int) -> Log:
        return Log.open(
            self.storage, str(self.folder), LogConfig(preallocate_bytes=4096), topic_id=TOPIC,
            partition=0, generation=generation, now_us=1, boot_id="b", node_clean=False,
        )[0]  # fmt: skip

    def _open_lane(self, _writer: int) -> LaneLink:
        _, sender, self.receiver = made(64 * 64)
        self.doorbells.append(Doorbell())
        link = self.sender.links[0] = LaneLink(sender, self.doorbells[-1])
        return link

    def post(self, batches: int, *, spoilt: bool = False) -> None:
        """Batches with their numbers. Spoilt ones are refused for good, unless they were sealed
        again because one before them was."""
        for _ in range(batches):
            route, count = self.route, self.chance.randint(1, 3)
            encoded = encode_batch(
                [b"%08d" % len(self.sent)] + [b"x" * 30] * (count - 1),
                hd.BatchIdentity(TOPIC, 0, 1, route.epoch, route.next_sequence),
                base_timestamp=0,
            )
            if spoilt:
                body = bytearray(encoded.body)
                body[-1] ^= 1
                encoded = encoded._replace(body=bytes(body))
            box: Any = SimpleNamespace(deadline=time.monotonic() + 1e6)
            self.sent.append(Batch(box, route, encoded, count, route.next_sequence))
            route.next_sequence += count
            self.sender.post([self.sent[-1]])

    def drain(self, *, answers: bool = True) -> None:
        """A pass of the writer. Without answers: it died after its append."""
        taken = [] if self.receiver is None else self.receiver.frames(8, MANY)
        if self.receiver is None or not taken:
            return
        results = self.log.append([frame.batch for frame in taken], 5)
        if answers:
            self.receiver.finish(taken, [
                Ack(frame.sequence, result.base_offset, 5, result.error, self.log.leader_epoch)
                for frame, result in zip(taken, results, strict=True)
            ])  # fmt: skip

    def writer_dies(self) -> None:
        """Its successor recovers the log, and drains from the lane's head."""
        self.drain(answers=False)
        self.log.close(clean=False)
        self.log = self._recovered(2)

    def lane_is_lost(self) -> None:
        """As after a node that came back without it: all goes again, with the same sequences."""
        session: Any = SimpleNamespace(far=None, resumed={}, page=lambda _: self.page, writers=1)
        self.receiver = None
        self.sender.resume(session, same=True)

    def heal(self) -> None:
        for _ in range(20 * len(self.sent) + 20):
            self.sender.pump(self.route)
            self.drain()
            self.sender.reap()

    def numbers(self) -> list[tuple[int, int]]:
        """(base offset, number) of every batch in the log."""
        found = []
        for head, data in self.log.read(0, MANY):
            view = memoryview(data)
            found.append(
                (head.base_offset, int(decode(view, 0, hd.checked(view, 0)).values[0] or b""))
            )
        return found

    def close(self) -> None:
        self.log.close(clean=False)
        for doorbell in self.doorbells:
            doorbell.close()
