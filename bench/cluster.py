"""A cluster: the cost and duration of a broker's death, and the cost of a follower that comes back.

It runs rounds of failovers. The broker that leads a partition is killed with -9 while records are
sent to that partition one after the other, and started again. It is the controller in every other
round: then another one has to be elected before another broker can lead. Then a follower is away
while a backlog grows, and catches up beside live traffic at a steady rate. The latency of that is
compared with the one before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.options import Transport, Where
from penstock.bench.progress import BenchProgress
from penstock.client.client import Client
from penstock.client.producer.delivery import Delivery
from penstock.testing.cluster_monitor import Lookout, View
from penstock.testing.embedded_cluster import EmbeddedCluster
from penstock.testing.failover import Failover, failover
from penstock.testing.probe import Pulse

Result = dict[str, Any]
WAIT: Final = 120.0
LOOK: Final = 0.01
SETTLE: Final = 1.0
ASK_EVERY: Final = 0.25
SLICE: Final = 0.002
TIMELINE: Final = ("fenced", "decided", "led_again", "acknowledged", "in_sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(Where):
    """rounds: failovers of either kind; the medians count. mb: the backlog of the follower, 10^6
    bytes. rate: of the live traffic, records a second. size: bytes of a value. seconds: for which
    the live traffic is watched before the follower comes back."""

    brokers: int = 3
    transport: Transport = "tcp"
    rounds: int = 5
    mb: int = 1000
    rate: int = 10_000
    size: int = 1024
    seconds: float = 5.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        self.check_place()
        if self.brokers < 3:
            raise BenchError(f"--brokers {self.brokers}: two of three have to go on")
        if self.rounds < 1 or self.mb < 1 or self.rate < 1 or self.size < 8 or self.seconds <= 0:
            raise BenchError("--rounds, --mb, --rate, --size and --seconds: more than 0")

    @property
    def bytes_needed(self) -> int:
        live = int(self.rate * self.size * (self.seconds + WAIT / 2))
        return self.mb * 1_000_000 + live + (256 << 20)


def run(options: ClusterOptions, progress: BenchProgress) -> Result:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    options.check()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # connections are lost on purpose
    with ground(options, options.bytes_needed) as place:
        assert place.cluster is not None
        with place.topic(1) as pulse:
            rounds = []
            for number in range(2 * options.rounds):
                progress.say(f"failover {number + 1} of {2 * options.rounds}")
                rounds.append(_failover(place.cluster, pulse, of_controller=number % 2 == 1))
        progress.say("catching up")
        caught = _catch_up(options, place, progress)
    progress.end()
    return {
        "benchmark": "cluster",
        **_told([each for each in rounds if not each.was_controller], ""),
        **_told([each for each in rounds if each.was_controller], "controller_"),
        **caught,
        "rounds": [
            {"was_controller": each.was_controller, "outage": round(each.outage, 3)}
            | {name: _rounded(getattr(each, name)) for name in TIMELINE}
            for each in rounds
        ],
        "started_in": place.started_in and round(place.started_in, 3),
        "filesystem": place.filesystem,
        "options": options.stated(),
    }


def _told(rounds: list[Failover], kind: str) -> Result:
    """Returns the fields of the rounds of one kind."""
    outages = [each.outage for each in rounds]
    return {
        f"{kind}outage_p50_seconds": _median(rounds, "outage"),
        f"{kind}outage_max_seconds": _rounded(max(outages, default=None)),
        **{f"{kind}{name}_p50_seconds": _median(rounds, name) for name in TIMELINE},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _median(rounds: list[Failover], name: str) -> float | None:
    """Returns the median of the rounds in which it happened."""
    found = [seconds for each in rounds if (seconds := getattr(each, name)) is not None]
    return round(float(np.median(found)), 3) if found else None


# --- a leader dies ------------------------------------------------------------------------------
def watch(cluster: EmbeddedCluster, topics: list[str]) -> Lookout:
    """Looks at the cluster by each of its brokers."""
    return Lookout([node.connect_tcp for node in cluster.nodes.values()], topics)


def _failover(cluster: EmbeddedCluster, topic: str, *, of_controller: bool) -> Failover:
    """Kills the leader, starts it again, and waits until it is in sync again."""
    with watch(cluster, [topic]) as lookout, Pulse(cluster.connect, topic) as pulse:
        _until(lookout, lambda view: _is_well(view, topic), "the topic to be whole")
        _have_led(cluster, lookout, topic, of_controller)
        time.sleep(SETTLE)
        victim = lookout.views[-1].partitions[topic, 0].leader
        killed_at = time.monotonic()
        cluster.nodes[victim].kill_all()

        def told() -> Failover | None:
            return failover(lookout, pulse, (topic, 0), victim, killed_at)

        deadline = killed_at + WAIT
        while (found := told()) is None or found.led_again is None or found.acknowledged is None:
            _still(deadline, f"{topic} to be acknowledged again")
        time.sleep(SETTLE)
        cluster.nodes[victim].start()
        while (found := told()) is None or found.in_sync is None:
            _still(deadline, f"broker {victim} to be in sync again")
    return found


def _have_led(cluster: EmbeddedCluster, lookout: Lookout, topic: str, of_controller: bool) -> None:
    """Makes the controller lead the topic, or another broker."""

    def is_so(view: View) -> bool:
        is_led_by_it = view.partitions[topic, 0].leader == view.controller
        return is_led_by_it == of_controller and _is_well(view, topic)

    deadline = time.monotonic() + WAIT
    with cluster.connect() as client, client.admin() as admin:
        while not is_so(view := lookout.views[-1]):
            replicas = view.partitions[topic, 0].replicas
            others = [broker for broker in replicas if broker != view.controller]
            wanted = [view.controller, *others] if of_controller else [*others, view.controller]
            admin.reassign_partition(topic, 0, wanted[: len(replicas)])
            admin.elect_leaders(topic, 0)
            time.sleep(ASK_EVERY)
            _still(deadline, f"{topic} to be led by the broker to kill")


def _is_well(view: View, topic: str) -> bool:
    placed = view.partitions.get((topic, 0))
    return placed is not None and placed.leader >= 0 and not placed.behind


def _until(lookout: Lookout, holds: Callable[[View], bool], what: str) -> View:
    deadline = time.monotonic() + WAIT
    while not lookout.views or not holds(lookout.views[-1]):
        _still(deadline, what)
    return lookout.views[-1]


def _still(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise BenchTimeout(f"waited {WAIT:.0f} s for {what}")
    time.sleep(LOOK)


# --- a follower comes back ----------------------------------------------------------------------
class Traffic:
    """Records at a steady rate, each timed from when it was due to its acknowledgement."""

    def __init__(self, client: Client, topic: str, rate: int, value: bytes) -> None:
        self._client, self._topic, self._rate, self._value = client, topic, rate, value
        self._done: list[tuple[float, float]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live traffic", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        each = max(1, int(self._rate * SLICE))
        with self._client.producer(acks="all", linger=0.001, delivery_timeout=WAIT) as producer:
            due = time.monotonic()
            while not self._ending.is_set():
                for _ in range(each):
                    producer.send(self._topic, self._value).add_done_callback(self._stopwatch(due))
                due += SLICE
                time.sleep(max(0.0, due - time.monotonic()))
            producer.flush(WAIT)

    def _stopwatch(self, due: float) -> Any:
        def stop(_: Delivery) -> None:
            self._done.append((due, time.monotonic() - due))

        return stop

    def between(self, begun: float, ended: float) -> dict[str, float]:
        """Percentiles of those that were due then."""
        took = np.array([took for due, took in self._done if begun <= due < ended])
        if not len(took):
            return {}
        p50, p99 = (round(float(at) * 1000, 2) for at in np.percentile(took, (50, 99)))
        return {"p50_ms": p50, "p99_ms": p99}

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(WAIT)


def _catch_up(options: ClusterOptions, place: MeasuredNode, progress: BenchProgress) -> Result:
    """Measures a follower of `backlog` that is away while that grows; `live` goes on beside its
    return."""
    cluster = place.cluster
    assert cluster is not None
    value = bytes(options.size)
    with place.topic(1) as backlog, place.topic(1) as live, watch(cluster, [backlog]) as lookout:
        view = _until(lookout, lambda view: _is_well(view, backlog), "the topic to be whole")
        placed = view.partitions[backlog, 0]
        follower = next(broker for broker in placed.replicas if broker != placed.leader)
        cluster.nodes[follower].stop()
        _until(lookout, lambda view: bool(view.behind()), "the follower to be missed")
        count = options.mb * 1_000_000 // options.size
        progress.say(f"backlog of {options.mb:,} MB")
        _fill(place.client, backlog, value, count)
        traffic = Traffic(place.client, live, options.rate, value)
        try:
            time.sleep(SETTLE)
            before = time.monotonic()
            time.sleep(options.seconds)
            progress.say("the follower comes back")
            begun = time.monotonic()
            cluster.nodes[follower].start()
            admitted = time.monotonic()
            _until(lookout, lambda view: _is_well(view, backlog), "the follower to be in sync")
            ended = time.monotonic()
        finally:
            traffic.stop()
    return {
        "catch_up_seconds": round(ended - begun, 3),
        "catch_up_mb_per_second": round(options.mb / max(ended - admitted, 1e-9), 1),
        "live_before": traffic.between(before, begun),
        "live_meanwhile": traffic.between(begun, ended),
    }


def _fill(client: Client, topic: str, value: bytes, count: int) -> None:
    """Sends so many records, committed."""
    each = max(1, (256 << 10) // len(value))
    with client.producer(acks="all", delivery_timeout=WAIT, block_timeout=WAIT) as producer:
        for sent in range(0, count, each):
            producer.send_batch(topic, [value] * min(each, count - sent))
        producer.flush(WAIT)
