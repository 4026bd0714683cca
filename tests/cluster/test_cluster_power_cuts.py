"""Power cuts of all brokers at once: topics, groups and transactions go on by themselves (rule 23,
decisions 0056 and 0057).

Each broker has a file system of its own and finds another boot id afterwards. Needs root and loop
devices. `PENSTOCK_POWER_CUTS` says how often (`make cluster`: ten times).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time

import pytest
from brokers_power import Sender, cut_power, file_systems
from cli_runner import Ran, call_cli
from cluster_under_test import ClusterUnderTest
from crash import block_device
from crash.coordinator_workload import Work
from seeds import tell

from penstock.client.producer.delivery import Receipt
from penstock.core.errors import LogTruncatedError
from penstock.ipc import paths
from penstock.testing import drain, produce, wait_until

ROUNDS = int(os.environ.get("PENSTOCK_POWER_CUTS", "1"))
SAFE = {"replication_factor": 3, "min_insync_replicas": 2}
KINDS = ("fsync", "os", "interval")
LEAST = 20
BACK_WITHIN = 60.0

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(120 + 60 * ROUNDS),
    pytest.mark.skipif(block_device.why_not() is not None, reason=str(block_device.why_not())),
]


@pytest.fixture
def disks(tmp_path):
    with file_systems(tmp_path, 3) as found:
        yield found


@pytest.fixture
def ground(disks):
    with ClusterUnderTest(parents=[each.mounted_at for each in disks]) as found:
        yield found


class Requests(threading.Thread):
    """Commits, claims and transactions, one after the other, also while nobody answers."""

    def __init__(self, ground):
        super().__init__()
        turns = itertools.count()
        brokers = ground.cluster.brokers

        def where():
            return paths.socket_in(brokers[next(turns) % len(brokers)].data)

        self.work = Work(where, partitions=(0,), timeout=2 * BACK_WITHIN)
        self.work.retriable += ("StorageError",)  # of a disk that is cut before its broker is
        self.rounds = 0
        self.failures: list[BaseException] = []
        self.stop = threading.Event()

    def run(self):
        try:
            while not self.stop.is_set():
                self.work.round()
                self.rounds += 1
        except BaseException as error:
            self.failures.append(error)

    def until_answered(self, ground, more):
        """So many rounds more."""
        until = self.rounds + more
        wait_until(lambda: self.rounds >= until or self.failures, BACK_WITHIN, ground.tail)
        assert not self.failures, (self.failures, ground.tail())


class Topic:
    """One that is written to, and read by a consumer that has all of it when the power goes."""

    def __init__(self, ground, kind):
        self._ground = ground
        self.sender = Sender(ground, "", 0)
        self.name = ground.cluster.create_topic(durability=kind, **SAFE)
        self.is_synced = kind == "fsync"
        self.acknowledged: dict[bytes, Receipt] = {}
        self.lost = 0

    def begin(self, turn):
        self.sender = Sender(self._ground, self.name, turn * 1_000_000)
        self.sender.start()

    def until_acknowledged(self):
        wait_until(lambda: len(self.sender.acknowledged) >= LEAST, 60, self._ground.tail)

    def ends(self):
        self.acknowledged |= self.sender.end()

    @contextlib.contextmanager
    def reader(self):
        """A consumer that has read some of it, but not the end of the topic's time."""
        with self._ground.connect() as client, client.consumer(self.name) as consumer:
            self._poll(consumer, LEAST)
            yield consumer

    def _poll(self, consumer, count):
        """So many records more."""
        until = consumer.position(self.name, 0) + count
        wait_until(
            lambda: consumer.poll(timeout=0.1) is None or consumer.position(self.name, 0) >= until,
            30, self._ground.tail,
        )  # fmt: skip

    def check(self, reader):
        """Hold it against its receipts, and forget those of what is gone: that is in the range that
        the cluster names, and who has read of it is told."""
        ground, name = self._ground, self.name
        with ground.connect() as client, client.admin() as admin:
            [place] = admin.describe_partitions(name)
            named = {each.topic for each in admin.describe_cluster().unclean}
        assert (name in named) == (place.unclean is not None)
        position = reader.position(name, 0)
        fresh = [b"%s in %d: %d" % (name.encode(), place.leader_epoch, n) for n in range(position)]
        produce(ground.cluster, name, fresh)
        records = drain(ground.cluster, name)
        values = {record.value: record.offset for record in records}
        assert len(values) == len(records), "doubled"
        lost = [v for v, receipt in self.acknowledged.items() if values.get(v) != receipt.offset]
        if self.is_synced:
            assert not lost, f"acknowledged, and not there: {lost}"
            assert place.unclean is None
        if lost:
            first = min(self.acknowledged.pop(value).offset or 0 for value in lost)
            assert first >= place.unclean.first, "more is gone than the cluster tells"
            self.lost += len(lost)
        if not self.is_synced and position > place.unclean.first:
            with pytest.raises(LogTruncatedError) as raised:
                self._poll(reader, 1 << 20)  # what it fetched ahead may come first
            assert raised.value.divergence == place.unclean.first
        else:
            self._poll(reader, 1)


def together(ground, disks, turn, brokers):
    """All come back side by side."""
    ground.returns(*brokers)


def one_later(ground, disks, turn, brokers):
    """One of them is away for longer: what is not synced waits for it, and nothing else does."""
    first, *others = brokers[turn % 3 :] + brokers[: turn % 3]
    ground.returns(*others)
    with ground.connect() as client, client.admin() as admin:

        def waiting():
            ill = admin.describe_cluster().ill
            return {each.topic for each in ill if each.leader < 0}

        wait_until(lambda: "__coordinator" not in waiting(), BACK_WITHIN, ground.tail)
        assert "topic-1" in waiting()
    ground.returns(first)


def cut_again(ground, disks, turn, brokers):
    """The power goes again as soon as a broker is back."""
    for each in brokers:
        each.node.launch()
    brokers[turn % 3].node.await_ready(BACK_WITHIN)
    cut_power(ground, disks, turn + ROUNDS, [1, 2, 3])
    ground.returns(*brokers)


COMEBACKS = (together, one_later, cut_again)


@pytest.mark.rule(23)
def test_after_power_cuts_of_all_brokers_everything_goes_on_by_itself(ground, disks, capsys):
    topics = [Topic(ground, kind) for kind in KINDS]
    ground.cluster.create_topic("orders", **SAFE)
    requests = Requests(ground)
    requests.start()
    terms = []
    try:
        for turn in range(ROUNDS):
            with contextlib.ExitStack() as stack:
                for topic in topics:
                    topic.begin(turn)
                for topic in topics:
                    topic.until_acknowledged()
                readers = [stack.enter_context(topic.reader()) for topic in topics]
                requests.until_answered(ground, 1)
                brokers = cut_power(ground, disks, turn, [1, 2, 3])
                for topic in topics:
                    topic.ends()
                begun = time.monotonic()
                comeback = COMEBACKS[turn % len(COMEBACKS)]
                comeback(ground, disks, turn, brokers)
                admitted = time.monotonic() - begun
                requests.until_answered(ground, 2)
                answered = time.monotonic() - begun
                ground.await_in_sync()
                well = time.monotonic() - begun
                terms.append(ground.cluster.look().term)
                for topic, reader in zip(topics, readers, strict=True):
                    topic.check(reader)
                lost = ", ".join(
                    f"{topic.lost} of {kind}" for kind, topic in zip(KINDS, topics, strict=True)
                )
                with capsys.disabled():
                    tell(
                        f"power cut {turn}, {comeback.__name__}: clients admitted after "
                        f"{admitted:.1f} s, groups and transactions answered after {answered:.1f} "
                        f"s, all in sync after {well:.1f} s; lost until now: {lost}"
                    )
    finally:
        requests.stop.set()
        requests.join(60)
    requests.work.check()

    def health() -> Ran | None:
        """Once no replica lags, as one may for a moment on a busy machine."""
        found = call_cli("cluster", "health", url=ground.url)
        return found if found.code == 0 else None

    # What may be missing is told, and is nothing that is ill now.
    found = wait_until(health, BACK_WITHIN, ground.tail)
    assert found is not None
    told = " ".join(found.lines)
    assert [f"{topic.name}-0 may miss" in told for topic in topics] == [False, True, True]
    assert terms == sorted(set(terms)), f"a term was given twice: {terms}"
