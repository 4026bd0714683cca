"""Power cuts under groups: what was claimed stays claimed, and nothing committed was not done."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crash import block_device
from crash.block_device import Device
from crash.node_under_test import NodeUnderTest
from seeds import seed_of

from penstock.client.admin.admin import TopicConfig
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.core.errors import PenstockError

CUTS = max(2, int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0")) // 100)
SEED = seed_of("power cuts under groups")
GUARANTEES = ("at-most-once", "at-least-once")
HELD = "at-least-once"
LEAST = 40
"""Records before each cut."""
WITHIN = 45.0

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(60 + 60 * CUTS),
    pytest.mark.skipif(block_device.why_not() is not None, reason=str(block_device.why_not())),
]


class Reader(threading.Thread):
    """Reads until the disk is gone. `seen`: how often each offset came, over all cuts. When it is
    asked to hold, it keeps the next records in its hands: to its group they are not done."""

    def __init__(self, consumer: GroupConsumer, seen: Counter[int], size: int) -> None:
        super().__init__()
        self._consumer = consumer
        self._seen = seen
        self._size = size
        self.stop = threading.Event()
        self.hold = threading.Event()
        self.holds = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                batch = self._consumer.poll(self._size, timeout=0.05)
                self._seen.update(batch.offsets.tolist())
                if batch and self.hold.is_set():
                    self.holds.set()
                    self.stop.wait(WITHIN)
        except PenstockError:
            pass  # the host is gone


def test_guarantees_hold_across_power_cuts(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    # Errors that were logged would hold what was read, which is mapped.
    caplog.set_level(logging.CRITICAL, "penstock")
    rng = random.Random(SEED)
    print(f"power cuts under groups: seed {SEED}")
    seen: dict[str, Counter[int]] = {guarantee: Counter() for guarantee in GUARANTEES}
    settings: dict[str, Any] = {"writers_max": 2, "lane_capacity": 64 << 10}
    node = NodeUnderTest(tmp_path, **settings)
    with Device(tmp_path) as disk:
        node.data = disk.mounted_at / "data"
        try:
            for cut in range(CUTS):
                node.config = {**settings, "boot_id": f"{cut:08x}-0000-4000-8000-000000000000"}
                node.start()
                read_and_cut(node, disk, seen, cut, rng)
                gc.collect()
                disk.unmount()
                disk.mount()
            node.config["boot_id"] = "ffffffff-0000-4000-8000-000000000000"
            node.start()
            with node.connect() as client:
                consumer = client.consumer("t", follow=False)
                total = [record.offset for record in consumer]
                consumer.close()
                for guarantee in GUARANTEES:
                    options: Any = {"group": guarantee, "guarantee": guarantee, "follow": False}
                    with client.consumer("t", **options) as group:
                        seen[guarantee].update(record.offset for record in group)
            assert node.stop() == 0, node.tail()
        finally:
            node.clear()
    assert max(seen["at-most-once"].values()) == 1
    assert len(seen["at-most-once"]) > 10
    assert set(seen["at-least-once"]) == set(total)
    assert sum(seen["at-least-once"].values()) > len(total), "each cut met something"
    assert len(total) >= CUTS * LEAST


def read_and_cut(
    node: NodeUnderTest,
    disk: Device,
    seen: dict[str, Counter[int]],
    cut: int,
    rng: random.Random,
) -> None:
    client = node.connect()
    if not cut:
        client.admin().create_topic("t", TopicConfig(durability="fsync"))
    consumers = [
        client.consumer("t", group=name, guarantee=name, commit_interval=0.02, node_timeout=1.5)  # type: ignore[call-overload]
        for name in GUARANTEES
    ]
    readers = [
        Reader(consumer, seen[name], rng.choice([1, 7, 50]))
        for consumer, name in zip(consumers, GUARANTEES, strict=True)
    ]
    for reader in readers:
        reader.start()
    producer = client.producer(linger=0.001, delivery_timeout=1.0)
    [holder] = [one for one, name in zip(readers, GUARANTEES, strict=True) if name == HELD]
    until, sent = time.monotonic() + rng.uniform(0.8, 2.0), 0
    while not holder.holds.is_set():
        if time.monotonic() >= until and sent >= LEAST:
            holder.hold.set()
        assert time.monotonic() < until + WITHIN, f"{sent} records\n{node.tail()}"
        with contextlib.suppress(PenstockError):  # a busy machine
            producer.send("t", b"x").result(1.0)
            sent += 1
    disk.cut()
    node.clear()
    for reader in readers:
        reader.stop.set()
        reader.join(WITHIN)
        assert not reader.is_alive()
    for consumer in consumers:
        consumer.close()
    producer._leave()  # its host is gone: nothing to flush, nobody to say goodbye to
    client.close()
