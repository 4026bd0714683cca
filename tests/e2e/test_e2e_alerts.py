"""Each alert rule of a node is fired by what a real one tells of a real misfortune."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from alert_deeds import Scrape, Watch, page_of, scrape, total, url_of
from alert_rules import PROMTOOL, RULES, needs_promtool
from altered_start import Seconds, slow_syncs, wrong_clock
from group_fixture import fill
from node_helpers import RawClient, RawProducer, eventually

import penstock
from penstock.client.admin.access import AccessEntry, QuotaSetting
from penstock.ipc import layout as lo
from penstock.ipc import paths
from penstock.security import keys
from penstock.testing import Broker

pytestmark = [
    needs_promtool,
    pytest.mark.local("it stops processes of the node"),
]
AGO = 7200.0
"""Seconds that the node's clock is behind at first: what it has from then is so old."""
SEGMENT = 64 << 10

OLD = (
    "PenstockGroupBehind", "PenstockGroupStopped", "PenstockRetentionNear",
    "PenstockGroupHasNoMembers", "PenstockTransactionOpenForLong", "PenstockJobsWait",
    "PenstockClockJumped",
)  # fmt: skip
BY_NODE = {
    *OLD, "PenstockJobsDie", "PenstockDeadLetters", "PenstockJobsPaused", "PenstockGroupOvertaken",
    "PenstockJobsLost", "PenstockUnreadDeleted", "PenstockKeyExpires", "PenstockClientsDropped",
    "PenstockClientsThrottled", "PenstockBatchesRefused", "PenstockSyncsSlow",
    "PenstockCoordinatorSlow", "PenstockWriterNotUp", "PenstockLaneFull", "PenstockRecordsDropped",
    "PenstockWriterRestarts", "PenstockDiskLow", "PenstockDiskFull", "PenstockPartitionNotOnline",
    "PenstockNodeDoesNotAnswer", "PenstockCoordinatorNotServing", "PenstockDown",
}  # fmt: skip
BY_BROKERS = {
    "PenstockNoController", "PenstockReplicaOffline", "PenstockIsrShrinks",
    "PenstockUnderreplicated", "PenstockNothingCommitted", "PenstockLeaderless",
}  # fmt: skip
"""By `tests/cluster/test_cluster_alerts.py`."""
NOT_MADE = {
    "PenstockBrokerFenced": "a broker that hears the controller sends it heartbeats on the same "
    "connections, and is not fenced for longer than it takes to answer",
}
"""By written series alone (`tests/unit/server/test_alert_rules.py`), and why."""


def test_each_rule_is_fired_by_a_deed_or_has_a_reason():
    names = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert sorted(names) == sorted([*BY_NODE, *BY_BROKERS, *NOT_MADE])
    assert all(NOT_MADE.values())
    cluster = Path(__file__).parents[1] / "cluster/test_cluster_alerts.py"
    for text, rules in (
        (
            Path(__file__).read_text().partition("def test_each_rule_of_a_node")[2],
            BY_NODE - set(OLD),
        ),
        (cluster.read_text(), BY_BROKERS),
    ):
        assert rules == set(re.findall(r'"(Penstock\w+)"', text))


class IllNode:
    """A node, and what is done to it."""

    def __init__(self, folder: Path, clock: Seconds, syncs: Seconds, end: ExitStack) -> None:
        self.folder, self.clock, self.syncs, self.end = folder, clock, syncs, end
        self.clients = ExitStack()
        clock.set(-AGO)
        self.options = {
            "metrics": "127.0.0.1:0", "cleaner_interval": 0.1,
            "coordinator_timeout": 5, "writer_stall_timeout": 120, "lane_capacity": 512 << 10,
        }  # fmt: skip
        self.broker = end.enter_context(Broker(writers=1, listen=True, options=self.options))
        end.enter_context(self.clients)
        self.client = self.clients.enter_context(self.broker.connect())
        self.admin = self.client.admin()
        self.url = url_of(self.broker)
        self.topic = self.broker.create_topic(retention=AGO + 1800)
        self.jobs = self.broker.create_topic()
        fill(self.broker, self.topic, 0, 10)
        with self.client.consumer(self.topic, group="reads", follow=False) as consumer:
            assert len(list(consumer)) == 10
        self.queue = self.clients.enter_context(
            self.client.share_consumer(self.jobs, group="works", max_deliveries=1)
        )
        self.queue.poll(1, timeout=0)
        self.watch = Watch([self.url])

    @property
    def writer(self) -> int:
        [writer] = [each.pid for each in self.admin.describe_node().writers if each.writer == 0]
        return writer

    # --- what is done ---
    def clock_jumps(self) -> None:
        """It was two hours behind: records, an open transaction and jobs are from then."""
        fill(self.broker, self.topic, 10, 5)
        fill(self.broker, self.jobs, 0, 15)
        producer = self.clients.enter_context(self.client.producer(transactional_id="long"))
        producer.begin_transaction()
        producer.send(self.broker.create_topic(), b"open")
        producer.flush(20)
        self.clock.set(0.0)

    def jobs_die(self) -> None:
        for _ in range(15):
            [message] = self.queue.poll(1, timeout=20)
            message.reject(reason="a test")

    def are_buried(self, now: Scrape) -> bool:
        self.queue.poll(1, timeout=0)  # which sends answers, too
        return total(now, "penstock_share_group_events_total", 'event="buried"') == 15

    def jobs_pause(self) -> None:
        self.admin.pause_share_group("works", reason="a test")

    def unread_is_trimmed(self) -> None:
        fill(self.broker, self.jobs, 15, 5)
        self.admin.trim(self.topic, 0, before=12)
        self.admin.trim(self.jobs, 0, before=18)
        self.admin.resume_share_group("works")

    def are_lost(self, now: Scrape) -> bool:
        self.queue.poll(1, timeout=0)
        return total(now, "penstock_share_group_events_total", 'event="lost"') > 0

    def held_is_deleted(self) -> None:
        self.admin.create_topic(
            "held", segment_bytes=SEGMENT, retention_bytes=SEGMENT, hold_for="groups",
            hold_bytes_max=4 * SEGMENT,
        )  # fmt: skip
        with self.client.producer() as producer:
            producer.send("held", b"first").result(20)
            with self.client.share_consumer("held", group="slow") as slow:
                assert len(slow.poll(1, timeout=20)) == 1
            producer.send_batch("held", [bytes(8 << 10)] * 200)
            producer.flush(20)

    def garbage_comes(self) -> None:
        for _ in range(15):
            host, _, port = self.broker.tcp_url.removeprefix("tcp://").rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), 20) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(20)
                while sock.recv(4096):
                    pass

    def key_is_short(self) -> None:
        file = self.folder / "short.key"
        keys.create_key(self.broker.data, "short", file, expires=time.time() + 3 * 86400)

    def has_a_quota(self) -> None:
        """A tenant by TCP, once the gateway holds it back."""
        self.admin.add_access(AccessEntry("*", "allow", "all", "topic", "*"))
        self.admin.set_quota(QuotaSetting("short", produce_bytes=64 << 10))
        self.tenants = self.broker.create_topic()
        file = self.folder / "short.key"
        client = self.clients.enter_context(
            penstock.connect(self.broker.tcp_url, keys=file, transport="tcp", timeout=20)
        )
        self.tenant = self.clients.enter_context(client.producer(linger=0.0, delivery_timeout=60))

        def is_held_back() -> bool:
            self.tenant.send(self.tenants, os.urandom(60 << 10)).result(45)
            return total(scrape([self.url]), "penstock_gateway_throttled_seconds_total") > 0

        eventually(is_held_back)

    def tenant_sends_on(self) -> None:
        for _ in range(4):
            self.tenant.send(self.tenants, os.urandom(60 << 10))
        self.tenant.flush(60)

    def batches_come_in_disorder(self) -> None:
        with RawClient(paths.socket_in(self.broker.data), lo.KIND_PRODUCER) as raw:
            sender = RawProducer(raw, raw.create("disorder"))
            for gap in (5, 9):
                sender.sequences[0] = gap
                sender.send()
            sender.acks(2)
            sender.close()

    def syncs_last(self) -> None:
        topic = self.broker.create_topic(durability="fsync")
        self.syncs.set(0.7)
        with self.client.producer() as producer:
            producer.send(topic, b"slow").result(20)
        self.syncs.set(0.0)

    def writer_goes_on(self, writer: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(writer, signal.SIGCONT)

    def writer_stands(self) -> None:
        """And a producer fills its lane, and gives records up."""
        options: dict[str, Any] = {"on_full": "drop_newest", "buffer_bytes_max": 1 << 20}
        producer = self.clients.enter_context(self.client.producer(batch_bytes=4 << 10, **options))
        topic = self.broker.create_topic()
        producer.send(topic, b"first").result(20)
        writer = self.writer
        os.kill(writer, signal.SIGSTOP)
        self.end.callback(self.writer_goes_on, writer)
        value = os.urandom(1000)

        def gives_up() -> bool:
            """Once its lane and its buffer are full."""
            for _ in range(20):
                producer.send(topic, value)
            return bool(producer.metrics()["dropped_records"] > 1000)

        eventually(gives_up)

    def coordinator_waits(self) -> None:
        """Its writer stops for much longer than a second, and a group commits meanwhile."""
        writer = self.writer
        os.kill(writer, signal.SIGSTOP)
        try:
            thread = threading.Thread(target=self._commit)
            thread.start()
            time.sleep(2.5)
        finally:
            self.writer_goes_on(writer)
        thread.join(30)

    def _commit(self) -> None:
        self.admin.reset_offsets("reads", self.topic, to=penstock.Offset.latest())

    def writer_dies_thrice(self) -> None:
        seen = {0}
        for _ in range(3):
            seen.add(self.writer)
            os.kill(self.writer, signal.SIGKILL)
            eventually(lambda: self.writer not in seen, "another writer")

    def disk_is_full(self) -> None:
        """By the setting of how much room is to stay."""
        self.admin.alter_settings({"disk_warn": 1 << 60, "disk_stop": 1 << 59})
        self.clients.enter_context(self.client.producer()).send(self.topic, b"waits")

    def node_stands(self) -> None:
        os.kill(self.broker.pid, signal.SIGSTOP)

    def log_of_the_coordinator_is_damaged(self) -> None:
        os.kill(self.broker.pid, signal.SIGCONT)
        self.clients.close()
        self.broker.stop()
        [folder] = [
            one for one in self.broker.data.glob("*-0")
            if any(b"reads" in log.read_bytes() for log in one.glob("*.log"))
        ]  # fmt: skip
        with (folder / f"{0:020d}.log").open("r+b") as file:
            os.pwrite(file.fileno(), b"garbage", 200)
        self.broker.start()
        self.watch.urls[:] = [url_of(self.broker)]

    def node_dies(self) -> None:
        self.broker.node.kill_all()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IllNode]:
    clock, syncs = wrong_clock(tmp_path, monkeypatch), slow_syncs(tmp_path, monkeypatch)
    with ExitStack() as end:
        yield IllNode(tmp_path, clock, syncs, end)


def test_each_rule_of_a_node_is_fired_by_what_is_done_to_one(
    scene: IllNode, tmp_path: Path
) -> None:
    watch = scene.watch
    assert PROMTOOL is not None
    page = page_of(scene.url)
    subprocess.run([PROMTOOL, "check", "metrics"], input=page, text=True, check=True)

    def told(name: str, at_least: float, *labels: str) -> Callable[[Scrape], bool]:
        return lambda now: total(now, f"penstock_{name}", *labels) >= at_least

    def at_most(name: str, most: float) -> Callable[[Scrape], bool]:
        return lambda now: total(now, f"penstock_{name}") <= most

    def is_old(now: Scrape) -> bool:
        group = 'group="reads"'
        return (
            total(now, "penstock_group_status", group) == 3
            and total(now, "penstock_group_retention_left_seconds", group) > 0
            and total(now, "penstock_share_group_oldest_seconds") > 3600
            and total(now, "penstock_open_transaction_seconds") > 900
            and total(now, "penstock_clock_ahead_seconds") > 3600
        )

    def is_full(now: Scrape) -> bool:
        return total(now, "penstock_partition_online", f'topic="{scene.topic}"') == 0

    def is_a_lane_full(now: Scrape) -> bool:
        lanes = {name: n for name, n in now.items() if name.startswith("penstock_lane_used_bytes")}
        return any(
            used > 0.9 * now[name.replace("used", "capacity")] for name, used in lanes.items()
        )

    def is_deaf(now: Scrape) -> bool:
        return (
            at_most("writer_up", 0)(now)
            and is_a_lane_full(now)
            and total(now, "penstock_producer_dropped_records_total") > 10
        )

    watch.after(OLD, scene.clock_jumps, is_old)
    watch.after(["PenstockJobsDie", "PenstockDeadLetters"], scene.jobs_die, scene.are_buried)
    watch.after(["PenstockJobsPaused"], scene.jobs_pause, told("share_group_paused", 1))
    watch.after(
        ["PenstockGroupOvertaken", "PenstockJobsLost"], scene.unread_is_trimmed, scene.are_lost,
    )  # fmt: skip
    watch.after(
        ["PenstockUnreadDeleted"], scene.held_is_deleted, told("cleaner_unread_records_total", 1)
    )
    watch.after(
        ["PenstockClientsDropped"], scene.garbage_comes,
        told("gateway_dropped_connections_total", 15),
    )  # fmt: skip
    watch.after(
        ["PenstockKeyExpires"], scene.key_is_short, told("key_expires_timestamp_seconds", 1)
    )
    scene.has_a_quota()
    watch.after(
        ["PenstockClientsThrottled"], scene.tenant_sends_on,
        told("gateway_throttled_seconds_total", 2), goes_on=True,
    )  # fmt: skip
    watch.after(
        ["PenstockBatchesRefused"], scene.batches_come_in_disorder,
        told("refused_batches_total", 2),
    )  # fmt: skip
    watch.after(
        ["PenstockSyncsSlow"], scene.syncs_last,
        lambda now: total(now, "penstock_sync_seconds_sum") > 0.6, goes_on=True,
    )  # fmt: skip
    watch.after(
        ["PenstockCoordinatorSlow"], scene.coordinator_waits,
        lambda now: total(now, "penstock_coordinator_seconds_sum") > 1, goes_on=True,
    )  # fmt: skip
    watch.after(
        ["PenstockWriterNotUp", "PenstockLaneFull", "PenstockRecordsDropped"],
        scene.writer_stands, is_deaf,
    )  # fmt: skip
    scene.writer_goes_on(scene.writer)
    watch.after(
        ["PenstockWriterRestarts"], scene.writer_dies_thrice, told("writer_restarts_total", 3)
    )
    watch.after(
        ["PenstockDiskLow", "PenstockDiskFull", "PenstockPartitionNotOnline"],
        scene.disk_is_full, is_full,
    )  # fmt: skip
    scene.admin.alter_settings({"disk_warn": None, "disk_stop": None})
    watch.after(["PenstockNodeDoesNotAnswer"], scene.node_stands, at_most("node_answers", 0))
    watch.after(
        ["PenstockCoordinatorNotServing"], scene.log_of_the_coordinator_is_damaged,
        lambda now: now.get('penstock_coordinator_serving{job="penstock",instance="0"}') == 0,
    )  # fmt: skip
    watch.after(["PenstockDown"], scene.node_dies, at_most("node_up", 0))
    watch.judge(tmp_path)
