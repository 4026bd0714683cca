"""What a power cut leaves of a node's data folder, for tests that start the node again."""

from __future__ import annotations

import fcntl
import json

from penstock.core.header import checked
from penstock.ipc.shm import unlink_all
from penstock.testing.broker import Broker
from penstock.testing.waiting import wait_until


def cut_power(broker: Broker, keep: int) -> None:
    """What a power cut leaves: no shared memory, no recovery point, and of the first partition of
    each topic but the coordinator's so many batches."""
    broker.kill()
    uuid = json.loads((broker.data / "node.json").read_bytes())["uuid"]
    with (broker.data / "lock").open() as lock:

        def is_free() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait_until(is_free, what="the writers left")
    unlink_all(uuid)
    topics = json.loads((broker.data / "topics.json").read_bytes())["topics"]
    [topic_id] = [topic["topic_id"] for topic in topics if not topic["name"].startswith("__")]
    folder = broker.data / f"{topic_id}-0"
    (folder / "recovery-point").unlink(missing_ok=True)
    segment = folder / f"{0:020d}.log"
    image = segment.read_bytes()
    end = 0
    for _ in range(keep):
        end += checked(memoryview(image), end).length
    segment.write_bytes(image[:end] + bytes(len(image) - end))
