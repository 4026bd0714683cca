"""Brokers whose power can be cut: a file system of its own for each, and what befalls it.

A file system (ext4 in a file, over a loop device) stops at once when the power is cut: what was not
synced is gone. Needs root and loop devices.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster_under_test import ClusterUnderTest
from crash.block_device import Device

from penstock.client.producer.delivery import Receipt
from penstock.core.errors import PenstockError
from penstock.ipc.shm import unlink_all
from penstock.testing.cluster import ClusterBroker

OTHER_BOOT = "{:08x}-0000-4000-8000-000000000000"


@contextlib.contextmanager
def file_systems(folder: Path, count: int) -> Iterator[list[Device]]:
    """So many, mounted; the first one is broker 1's."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            (folder / str(number)).mkdir()
            found.append(stack.enter_context(Device(folder / str(number))))
        yield found


def cut_power(
    ground: ClusterUnderTest, disks: Sequence[Device], turn: int, numbers: Sequence[int]
) -> list[ClusterBroker]:
    """Of these brokers, at once; then their disks are there again, as they were left."""
    brokers = [ground.cluster.broker(number) for number in numbers]
    uuids = [json.loads((each.data / "node.json").read_bytes())["uuid"] for each in brokers]
    for each in brokers:
        ground.away[each.number] = "without power"
        disks[each.number - 1].cut()
    for each in brokers:
        each.kill()
    for each, uuid in zip(brokers, uuids, strict=True):
        unlink_all(uuid)
        disk = disks[each.number - 1]
        disk.unmount()
        disk.mount()
        record = json.loads((each.data / "node.json").read_bytes())
        record["boot_id"] = OTHER_BOOT.format(turn)  # its host was started again
        (each.data / "node.json").write_text(json.dumps(record))
    return brokers


class Sender(threading.Thread):
    """Sends one record after the other with acks="all" until it is told to stop, and notes what is
    acknowledged: the rest is of leaders that moved, on a busy machine, or had no power."""

    def __init__(self, ground: ClusterUnderTest, topic: str, start: int) -> None:
        super().__init__()
        self._ground, self._topic, self._next = ground, topic, start
        self.acknowledged: dict[bytes, Receipt] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        with self._ground.connect() as client:
            producer = client.producer(acks="all", linger=0.0, delivery_timeout=2.0)
            while not self.stop.is_set():
                value = b"%d" % self._next
                self._next += 1
                try:
                    receipt = producer.send(self._topic, value).result(3.0)
                except PenstockError:
                    continue
                self.acknowledged[value] = receipt
            producer._leave()  # its cluster is gone: there is nobody to say goodbye to

    def end(self) -> dict[bytes, Receipt]:
        """What was acknowledged in all."""
        self.stop.set()
        self.join(60)
        assert not self.is_alive()
        return self.acknowledged
