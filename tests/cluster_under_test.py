"""A cluster under test as the trials of histories take it: its brokers, and what befalls them.

Owns who is meant to be away. A broker that is gone and is not meant to be has left on its own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client.client import Client
from penstock.core.errors import PenstockError
from penstock.testing import Cluster, wait_until
from penstock.testing.cluster import ClusterBroker

READY_TIMEOUT = 45.0
QUICK = {
    "election_timeout": 0.5,
    "broker_session_timeout": 1.0,
    "replica_lag_time": 2.0,
    "client_heartbeat": 0.2,
    "client_silence_max": 1.5,
}
"""Options of brokers whose faults are to be over soon."""


class ClusterUnderTest:
    """See the module."""

    transport = "tcp"

    def __init__(self, brokers: int = 3, **made: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-brokers-"))
        """Of what its clients write down; brokers have folders of their own."""
        options = {**QUICK, **made.pop("options", {})}
        self.cluster = Cluster(brokers, writers=2, options=options, **made)
        self._is_kept = False
        self.away: dict[int, str] = {}
        """Brokers that are meant to be gone or to stand still, and why."""

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def is_running(self) -> bool:
        return all(each.is_running or each.number in self.away for each in self.cluster.brokers)

    @property
    def owners(self) -> list[str]:
        return [
            json.loads((each.data / "node.json").read_bytes())["shm"]
            for each in self.cluster.brokers
        ]

    def connect(self, timeout: float = 10.0) -> Client:
        return self.cluster.connect(timeout=timeout)

    def insist(self, work: Callable[[], object], timeout: float = READY_TIMEOUT) -> None:
        """What has to be asked again while brokers are away."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                work()
            except PenstockError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def tail(self) -> str:
        return self.cluster.log_tail()

    # --- who ---
    def present(self) -> list[ClusterBroker]:
        return [each for each in self.cluster.brokers if each.number not in self.away]

    def leader(self, topic: str, partition: int = 0) -> ClusterBroker:
        return self.cluster.broker(self.cluster.leader_of(topic, partition))

    def controller(self) -> ClusterBroker:
        return self.cluster.broker(self.cluster.controller())

    # --- what befalls them ---
    def leaves(self, broker: ClusterBroker, *, clean: bool) -> None:
        self.away[broker.number] = "stopped" if clean else "killed"
        if clean:
            status = broker.stop()
            assert status == 0, f"broker {broker.number} ended with {status}\n{broker.log_tail()}"
        else:
            broker.kill()

    def returns(self, *brokers: ClusterBroker) -> None:
        """Launched side by side, and each is back once it admits clients."""
        for each in brokers:
            each.node.launch()
        for each in brokers:
            each.node.await_ready(READY_TIMEOUT)
            self.away.pop(each.number, None)

    def heal(self) -> None:
        """All brokers are there, and every partition has all its replicas in sync."""
        for each in self.cluster.brokers:
            each.resume()
            if self.away.get(each.number) == "paused":
                del self.away[each.number]
        gone = [each for each in self.cluster.brokers if not each.is_running]
        self.returns(*gone)
        self.cluster.wait_ready(READY_TIMEOUT)
        self.await_in_sync()

    def await_in_sync(self, timeout: float = READY_TIMEOUT) -> None:
        wait_until(
            lambda: not self.cluster.ailing(),
            timeout,
            lambda: f"all is well again: {self.cluster.ailing()}\n{self.tail()}",
        )

    # --- the end ---
    def keep(self) -> Path:
        """A copy of what the brokers wrote, for whoever looks into a failure."""
        self._is_kept = True
        for each in self.cluster.brokers:
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(each.folder, self.folder / f"broker-{each.number}")
        return self.folder

    def close(self, *, keep: bool = False) -> None:
        if keep:
            self.keep()
        self.cluster.close()
        if not self._is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ClusterUnderTest:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(keep=kind is not None)


def bounce(ground: ClusterUnderTest, broker: ClusterBroker, *, clean: bool) -> float:
    """It leaves and comes back; the seconds that took."""
    begun = time.monotonic()
    ground.leaves(broker, clean=clean)
    ground.returns(broker)
    return time.monotonic() - begun
