"""How soon the job of a worker that is killed with -9 goes on elsewhere.

Two workers of a share group, one of them a process of its own: it takes a job, holds it and is
killed. The time runs from the kill until the other one, which waits in a poll, has the job.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any, Final

import numpy as np

from penstock.bench.door import Door
from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import ground
from penstock.bench.options import Where
from penstock.bench.progress import BenchProgress
from penstock.client.producer.producer import Producer
from penstock.client.share.consumer import ShareConsumer
from penstock.core.errors import PenstockError

WAIT: Final = 60.0
BYTES_NEEDED: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryOptions(Where):
    """kills: of workers, one after the other. session_timeout: of the workers: by TCP, what is
    silent may come back for so long."""

    kills: int = 200
    session_timeout: float = 10.0

    def check(self) -> None:
        """Raise `BenchError` for what cannot be run."""
        self.check_place()
        if self.kills < 1:
            raise BenchError(f"--kills {self.kills}: more than 0")
        if not 0.1 <= self.session_timeout <= WAIT / 2:
            raise BenchError(f"--session-timeout {self.session_timeout:g}: 0.1 to {WAIT / 2:g} s")


def victim(door: Door, topic: str, session_timeout: float, holds: Event) -> None:
    """A worker that takes a job and does not answer."""
    with (
        door.connect() as client,
        client.share_consumer(topic, group=topic, session_timeout=session_timeout) as jobs,
    ):
        while not jobs.poll(1, timeout=1.0):
            pass
        holds.set()
        time.sleep(WAIT)


def run(options: RedeliveryOptions, progress: BenchProgress) -> dict[str, Any]:
    """Make the run; the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    took: list[float] = []
    with (
        ground(options, BYTES_NEEDED) as place,
        place.topic(1) as topic,
        place.client.producer(linger=0) as producer,
        place.client.share_consumer(
            topic, group=topic, session_timeout=options.session_timeout
        ) as other,
    ):
        for number in range(options.kills):
            progress.say(f"kill {number + 1} of {options.kills}")
            took.append(_kill(place.door, topic, options.session_timeout, producer, other))
        with suppress(PenstockError), place.client.admin() as admin:
            admin.delete_group(topic)
    progress.end()
    milliseconds = np.array(took) * 1000
    return {
        "benchmark": "redelivery",
        **{
            f"redelivery_p{part}_ms": round(float(np.percentile(milliseconds, part)), 1)
            for part in (50, 99)
        },
        "redelivery_max_ms": round(float(milliseconds.max()), 1),
        "options": options.stated(),
    }


def _kill(
    door: Door, topic: str, session_timeout: float, producer: Producer, other: ShareConsumer
) -> float:
    """Seconds from the kill of a worker until the other one has its job."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that no kill waits for an interpreter
    holds = context.Event()
    process = context.Process(
        target=victim, args=(door, topic, session_timeout, holds), daemon=True
    )
    process.start()
    try:
        producer.send_and_wait(topic, b"job")
        deadline = time.monotonic() + WAIT
        if not holds.wait(WAIT):
            raise BenchTimeout(f"a worker got no job of {topic} within {WAIT:.0f} s")
        assert process.pid is not None
        killed = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            for job in other.poll(1, timeout=1.0):
                came = time.monotonic()
                job.ack()
                other.flush()
                return came - killed
        raise BenchTimeout(f"the job of the killed worker did not come within {WAIT:.0f} s")
    finally:
        process.kill()
        process.join()
