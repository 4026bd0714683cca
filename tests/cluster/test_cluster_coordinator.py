"""Groups and transactions of three real brokers when their coordinator's broker is killed, stopped,
stands still, or gives its place away in the middle of the work (rules 17 to 19, decision 0043).

By default each test has one of these faults; `PENSTOCK_CLUSTER=all` (`make cluster`) has them all.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from crash.coordinator_workload import Work
from group_fixture import Members

from penstock.client.share.consumer import ShareConsumer
from penstock.core import errors as er
from penstock.core.control import ControlType, control_of, encode_control, is_control
from penstock.core.errors import PenstockError
from penstock.core.log import Log, LogConfig
from penstock.core.lookup import read_batches
from penstock.core.segment import list_segments
from penstock.core.storage import Storage
from penstock.ipc import paths
from penstock.ipc.liveness import boot_id
from penstock.logcheck import check_partition, find_partitions
from penstock.testing.cluster import Cluster, ClusterBroker
from penstock.testing.waiting import wait_until

WANTED = os.environ.get("PENSTOCK_CLUSTER", "")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

COUNT = 900
PACE = 0.004
"""Seconds between two records of the feed, so that there is work while brokers die."""
ALL_WELL = 60.0
LEASE = 4.0
"""Seconds after which whatever a broker leads is led by another one, and more."""
RETRIED = (er.PenstockTimeout, er.NotConnectedError, er.NotLeaderError, er.TransactionError)


def faults(always: str, *others: str) -> pytest.MarkDecorator:
    """What happens to the coordinator's broker; `always`: in the default suite."""
    found = [always, *others] if WANTED == "all" else [always]
    return pytest.mark.parametrize("fault", found)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=3, writers=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """All three brokers, up."""
    for broker in started.running:
        broker.resume()
    started.start()
    started.wait_ready()
    until_well(started)
    return started


def until_well(cluster: Cluster) -> None:
    """All brokers are up, and in sync."""

    def is_well() -> bool:
        try:
            with cluster.connect() as client, client.admin() as admin:
                found = admin.describe_cluster()
        except PenstockError:
            return False
        return all(each.state == "up" for each in found.brokers) and not found.ill_partitions

    wait_until(is_well, ALL_WELL, lambda: f"all is well\n{cluster.log_tail()}")


def coordinator(cluster: Cluster) -> ClusterBroker:
    """The broker that leads the coordinator's partition, as one says that is up."""

    def leader() -> int:
        try:
            with cluster.connect() as client, client.admin() as admin:
                return max(admin.describe_partitions("__coordinator")[0].leader, 0)
        except PenstockError:
            return 0

    found = wait_until(leader, ALL_WELL, "somebody leads __coordinator-0")
    return cluster.broker(found)


# --- requests by hand, each repeated until it is answered ----------------------------------------
class Brokers:
    """Where to attach next: each running broker in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = itertools.count()

    def where(self) -> Path:
        running = self._cluster.running
        return paths.socket_in(running[next(self._turn) % len(running)].data)


def transactions_in(cluster: Cluster) -> list[list[tuple[str, int]]]:
    """Of each copy of each partition that has transactions: type and epoch of its control batches.
    All copies are checked."""
    found: list[list[tuple[str, int]]] = []
    for broker in cluster.brokers:
        for partition in find_partitions(str(broker.data)):
            checked = check_partition(partition)
            assert not checked.errors, checked.errors
            heads = read_batches(
                Storage(), partition.folder, list_segments(Storage(), partition.folder),
                1 << 62, 0, 1 << 30,
            )  # fmt: skip
            ends = [control_of(head) for head, _ in heads if is_control(head)]
            if ends:
                found.append([(end.type.name, end.epoch) for end in ends])
    return found


@pytest.mark.rule(17, 18, 19)
@faults("kill", "stop", "pause", "elect", "kill another")
def test_rules_17_to_19_what_was_answered_is_there_with_the_next_coordinator(fault):
    with Cluster(brokers=3, writers=2, options={"drain_timeout": 3.0}) as cluster:
        cluster.create_topic("orders", partitions=3)
        brokers = Brokers(cluster)
        work = Work(brokers.where, partitions=(0, 1, 2))
        for _ in range(3):
            work.round()
            hit = coordinator(cluster)
            if fault == "elect":
                move(cluster, hit)
            elif fault == "kill another":  # which leads a partition of each transaction
                next(each for each in cluster.brokers if each is not hit).kill()
            else:
                getattr(hit, fault)()
            if fault == "pause":  # it wakes up with a request that waited for it
                threading.Timer(LEASE, hit.resume).start()
            for _ in range(3):
                work.round()
            cluster.start()
            cluster.wait_ready()
        work.round()
        work.check()
        work.close()
        until_well(cluster)
        stop_all(cluster)
        copies = transactions_in(cluster)
        assert len(copies) == 9
        first, rounds = copies[0][0][1], 3 * 4 + 1
        epochs = range(first, first + rounds)
        for copy in copies:
            assert copy == [(kind, epoch) for epoch in epochs for kind in ("BEGIN", "COMMIT")]


@pytest.mark.skipif(WANTED != "all", reason="PENSTOCK_CLUSTER=all waits until a broker looks")
def test_a_transaction_that_nobody_knows_is_aborted_where_another_broker_leads():
    with Cluster(brokers=3, writers=2, options={"drain_timeout": 3.0}) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=1)
        work = Work(Brokers(cluster).where, partitions=(0,))
        work.round()
        work.close()
        until_well(cluster)
        owner = cluster.broker(cluster.leader_of("orders"))
        owner.stop()  # first: the last one would be the only one in sync of all that has replicas
        stop_all(cluster)
        assert begin_by_hand(owner, "orders-0")
        cluster.start(broker.number for broker in cluster.brokers if broker is not owner)
        assert coordinator(cluster) is not owner
        cluster.start()

        def ends() -> list[tuple[int, int]]:
            with cluster.connect() as client, client.admin() as admin:
                found = admin.describe_topic("orders").partitions
            return [(each.last_stable, each.log_end) for each in found]

        wait_until(lambda: ends() == [(4, 4)], ALL_WELL, lambda: f"its abort: {ends()}")


def begin_by_hand(broker: ClusterBroker, name: str) -> bool:
    """Have a transaction open in that broker's copy of a partition, if it has one, of which no
    coordinator knows."""
    for partition in find_partitions(str(broker.data)):
        if partition.name == name and partition.owner is not None:
            topic_id, number = partition.owner
            log, _ = Log.open(
                Storage(), partition.folder, LogConfig(), topic_id=topic_id, partition=number,
                generation=1 << 20, now_us=time.time_ns() // 1000, boot_id=boot_id(),
                node_clean=True, replicated=True,
            )  # fmt: skip
            image = encode_control(
                ControlType.BEGIN, producer_id=5, producer_epoch=3, coordinator_epoch=1,
                timestamp=0, topic_id=topic_id, partition=number,
            )  # fmt: skip
            assert not log.append([memoryview(image)], time.time_ns() // 1000)[0].error
            log.close(clean=True)
            return True
    return False


def stop_all(cluster: Cluster) -> None:
    with ThreadPoolExecutor(3) as pool:  # or the last ones wait in vain for a controller
        list(pool.map(ClusterBroker.stop, cluster.brokers))


def move(cluster: Cluster, away: ClusterBroker) -> None:
    """Another broker leads the coordinator's partition, by an operator's word."""
    with cluster.connect() as client, client.admin() as admin:
        [place] = admin.describe_partitions("__coordinator")
        others = [each for each in place.replicas if each != away.number]
        admin.reassign_partition("__coordinator", 0, [*others, away.number])
        admin.elect_leaders("__coordinator")
    wait_until(lambda: coordinator(cluster) is not away, ALL_WELL, "another coordinator")


# --- with the clients that users have ------------------------------------------------------------
class Feed:
    """A producer in a thread of its own: its values, one after the other, are all acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, count: int = COUNT) -> None:
        self._cluster = cluster
        self._topic = topic
        self.values = [b"%05d" % number for number in range(count)]
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._cluster.connect(timeout=30.0) as client, client.producer(acks="all") as out:
                for value in self.values:
                    out.send(self._topic, value, key=value)
                    time.sleep(PACE)
                out.flush(ALL_WELL)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(ALL_WELL + 60.0)
        assert not self._thread.is_alive()
        assert not self.failures


def strike(cluster: Cluster, fault: str) -> None:
    """The coordinator's broker is hit, and another one is the coordinator after that. One that
    stands still wakes up deposed."""
    hit = coordinator(cluster)
    getattr(hit, fault)()
    if fault == "pause":
        threading.Timer(LEASE, hit.resume).start()
    wait_until(lambda: coordinator(cluster) is not hit, ALL_WELL, "another coordinator")


@contextmanager
def members(cluster: Cluster, topic: str, group: str, guarantee: str) -> Iterator[Members]:
    """Two members of a group, polled by the test."""
    found = Members()
    with ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(cluster.connect(timeout=30.0))
            options: dict[str, Any] = {"guarantee": guarantee, "start": "earliest"}
            found.add(client.consumer(topic, group=group, **options))
        stack.callback(found.close)
        yield found


def claimed(cluster: Cluster, group: str) -> tuple[int, int]:
    """How many records are committed, and how many counted as skipped; none where the broker that
    was asked has just been missed."""
    try:
        with cluster.connect(timeout=30.0) as client:
            found = client.admin().describe_group(group)
    except RETRIED:
        return 0, 0
    return sum(each.committed or 0 for each in found.partitions), found.skipped


@faults("stop", "kill", "pause")
def test_at_least_once_skips_nothing(cluster, fault):
    topic = cluster.create_topic(partitions=4)
    with Feed(cluster, topic) as feed, members(cluster, topic, topic, "at-least-once") as group:
        group.until_more_than(COUNT // 10)
        strike(cluster, fault)
        group.until(lambda: set(group.seen) == set(feed.values), "every record", ALL_WELL)
        group.until(lambda: claimed(cluster, topic)[0] == COUNT, "all of it committed", ALL_WELL)


@pytest.mark.rule(18)
@faults("pause", "kill", "stop")
def test_rule_18_at_most_once_hands_nothing_out_twice(cluster, fault):
    topic = cluster.create_topic(partitions=4)
    with Feed(cluster, topic) as feed, members(cluster, topic, topic, "at-most-once") as group:
        group.until_more_than(COUNT // 10)
        strike(cluster, fault)

        def all_claimed() -> bool:
            done, skipped = claimed(cluster, topic)
            return done == COUNT and len(group.seen) + skipped >= COUNT

        group.until(lambda: len(group.seen) > COUNT // 2, "half of the records", ALL_WELL)
        group.until(all_claimed, "all records claimed", ALL_WELL)
    assert set(group.seen.values()) == {1}
    assert set(group.seen) <= set(feed.values)


class Copier:
    """A member of an exactly-once group that copies what it reads, in a thread of its own, as the
    guide has it: what fails for now is tried again, with everything made again."""

    def __init__(self, cluster: Cluster, number: int, source: str, target: str) -> None:
        self._cluster = cluster
        self._source = source
        self._target = target
        self._name = f"{target}-{number}"
        self._stop = threading.Event()
        self.committed = 0
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._work()
                except RETRIED as error:
                    print(f"{self._name}: {type(error).__name__}: {error}")
                    time.sleep(0.1)
        except BaseException as error:
            self.failures.append(error)

    def _work(self) -> None:
        with (
            self._cluster.connect(timeout=30.0) as client,
            client.producer(transactional_id=self._name, transaction_timeout=10.0) as producer,
            client.consumer(
                self._source, group=self._target, guarantee="exactly-once", start="earliest",
                session_timeout=5.0,
            ) as consumer,
        ):  # fmt: skip
            while not self._stop.is_set():
                batch = consumer.poll(max_records=20, timeout=0.2)
                if not batch:
                    continue
                with producer.transaction(consumed=batch):
                    for record in batch:
                        producer.send(self._target, record.value, key=record.value)
                self.committed += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(ALL_WELL)
        assert not self._thread.is_alive()
        assert not self.failures


def committed_values(cluster: Cluster, topic: str) -> Counter[bytes]:
    """Nothing where a broker that was asked has just been missed."""
    try:
        with (
            cluster.connect(timeout=30.0) as client,
            client.consumer(topic, isolation="read_committed", follow=False) as reader,
        ):
            return Counter(record.value or b"" for record in reader)
    except RETRIED:
        return Counter()


@faults("kill", "stop", "pause")
def test_exactly_once_over_partitions_with_different_leaders(cluster, fault):
    source, target = cluster.create_topic(partitions=3), cluster.create_topic(partitions=3)
    with cluster.connect() as client, client.admin() as admin:

        def do_all_lead() -> bool:
            """Unless one was missed for a moment."""
            admin.elect_leaders(target)
            return len({each.leader for each in admin.describe_partitions(target)}) == 3

        wait_until(do_all_lead, ALL_WELL, "each broker leads one of them")
    with Feed(cluster, source) as feed:
        copiers = [Copier(cluster, number, source, target) for number in range(2)]
        try:
            wait_until(lambda: sum(each.committed for each in copiers) > 3, ALL_WELL, "commits")
            strike(cluster, fault)
            wait_until(
                lambda: set(committed_values(cluster, target)) == set(feed.values),
                ALL_WELL, "everything copied",
            )  # fmt: skip
        finally:
            for each in copiers:
                each.end()
    found = wait_until(lambda: committed_values(cluster, target), ALL_WELL, "an answer")
    assert set(found) == set(feed.values)
    assert set(found.values()) == {1}


@faults("kill", "stop", "pause")
def test_workers_of_a_share_group_do_every_job_and_what_was_answered_once(cluster, fault):
    topic = cluster.create_topic(partitions=3)
    done: Counter[bytes] = Counter()

    def work(jobs: ShareConsumer, until: int) -> bool:
        for job in jobs.poll(20, timeout=0.05):
            with job:
                done[job.value or b""] += 1
        return len(done) >= until

    with Feed(cluster, topic, 300) as feed, ExitStack() as stack:
        workers = [
            stack.enter_context(
                stack.enter_context(cluster.connect(timeout=30.0)).share_consumer(
                    topic, group=topic, session_timeout=60.0
                )
            )
            for _ in range(2)
        ]

        def worked(until: int) -> bool:
            found = [work(jobs, until) for jobs in workers]  # each has its turn
            return any(found)

        wait_until(lambda: worked(30), ALL_WELL, lambda: f"{len(done)} jobs")
        for jobs in workers:
            jobs.flush()
        strike(cluster, fault)
        wait_until(lambda: worked(300), ALL_WELL, lambda: f"{len(done)} jobs")
        for jobs in workers:
            jobs.flush(ALL_WELL)
        assert set(done) == set(feed.values)
        assert all(jobs.poll(timeout=0.0) == [] for jobs in workers)
        assert set(done.values()) == {1}, "both workers live"
