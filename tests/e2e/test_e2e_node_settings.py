"""Settings of a node that no other test turns on: each one's value is what a client or a process
of the node then has, does, or is refused by."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from crash.node_under_test import NodeUnderTest
from node_helpers import eventually
from wire import Dealer, batch_of

import penstock
from penstock import TopicConfig, TransactionError
from penstock.cluster.frames import messages as fr
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.testing import Broker

pytestmark = pytest.mark.local("nodes with settings of their own, looked at from their own host")
WITHIN = 45.0
WINDOW = 96 << 10
HELD = 4 << 20
TICKS = os.sysconf("SC_CLK_TCK")


# --- remote producers -----------------------------------------------------------------------------
@pytest.mark.setting("node.client_window")
def test_a_remote_producer_may_have_its_window_under_way_and_no_more() -> None:
    options = {"client_window": WINDOW}
    with Broker(listen=True, writers=1, options=options) as broker:
        topic = broker.create_topic()
        [writer] = _writers(broker)
        with Dealer(broker.tcp_url) as dealer:
            attached = dealer.producer()
            assert attached.window == WINDOW
            info = dealer.find(1, topic)
            batches = [
                batch_of([b"x" * (WINDOW // 2)], info, attached.producer_id, number)
                for number in range(3)
            ]
            dealer.say(fr.Produce(1, 0, 0, info.pages[0]), batches[0])
            assert [ack.error for ack in dealer.acks(1)] == [0]
            os.kill(writer, signal.SIGSTOP)  # so nothing is answered
            try:
                for number in (1, 2):
                    dealer.say(fr.Produce(1, 0, number, info.pages[0]), batches[number])
                assert "window" in dealer.hear(fr.Ended).reason
            finally:
                os.kill(writer, signal.SIGCONT)


def _writers(broker: Broker) -> list[int]:
    with broker.connect() as client, client.admin() as admin:
        return [it.pid for it in admin.describe_node().writers if it.pid]


def _refusal(dealers: list[Dealer], producers: int) -> str:
    """What the first producer is told that is one too many; they attach in turn."""
    for number in range(producers):
        dealer = dealers[number % len(dealers)]
        dealer.say(fr.Attach(number, lo.KIND_PRODUCER, f"p-{number}"))
        said = dealer.hear_either((fr.Attached, fr.Refused))
        if isinstance(said, fr.Refused):
            assert number > 0
            assert said.error == "ResourceLimitError"
            return said.message
    return ""


@pytest.mark.setting("node.client_bytes_max")
def test_windows_of_one_connection_take_no_more_than_its_bytes() -> None:
    options = {"client_bytes_max": HELD}
    with (
        Broker(listen=True, writers=1, options=options) as broker,
        Dealer(broker.tcp_url) as dealer,
    ):
        assert "client_bytes_max" in _refusal([dealer], HELD // (1 << 20) + 1)


@pytest.mark.setting("node.principal_bytes_max")
def test_windows_of_all_connections_of_a_principal_take_no_more_than_its_bytes() -> None:
    options = {"principal_bytes_max": HELD}
    with (
        Broker(listen=True, writers=1, options=options) as broker,
        Dealer(broker.tcp_url) as one,
        Dealer(broker.tcp_url) as other,
    ):
        assert "principal_bytes_max" in _refusal([one, other], HELD // (1 << 20) + 1)


@pytest.mark.setting("node.client_heartbeat")
def test_a_remote_client_that_has_nothing_to_say_gives_signs_of_life_as_often_as_it_is_told() -> (
    None
):
    """A connection without any for `client_silence_max` is dropped, and made once more."""
    options = {"client_heartbeat": 0.2, "client_silence_max": 1.0}
    with (
        Broker(transport="tcp", options=options) as broker,
        broker.connect() as client,
        client.admin() as admin,
    ):
        admin.list_topics()
        begun = time.monotonic()
        eventually(lambda: time.monotonic() - begun > 3.0, "silence_max passes three times")
        admin.list_topics()
        assert client.metrics()["connects"] == 1


# --- the cleaner ----------------------------------------------------------------------------------
@pytest.mark.setting("node.cleaner_interval")
def test_the_cleaner_makes_its_rounds_at_its_interval() -> None:
    """Five of them, where ten seconds between two would take longer than is waited for."""
    options = {"cleaner_interval": 0.05, "metrics": "127.0.0.1:0"}
    with Broker(options=options) as broker, broker.connect() as client:
        broker.create_topic(retention_bytes=1 << 20)
        url = f"http://{client.admin().describe_node().metrics}/metrics"

        def rounds() -> int:
            with urlopen(url, timeout=WITHIN) as answer:
                told = re.search(
                    r"^penstock_cleaner_runs_total (\d+)", answer.read().decode(), re.M
                )
            return int(told[1]) if told else 0

        eventually(lambda: rounds() >= 5, "rounds", timeout=30)


@pytest.mark.setting("node.cleaner_rate")
def test_compaction_reads_and_writes_at_most_at_its_rate() -> None:
    """It reads 256 KiB at least, a tenth of a second's worth at once: it cannot be over sooner."""
    rate, size = 64 << 10, 256 << 10
    least = size / rate - 0.1
    options = {"cleaner_rate": rate, "cleaner_interval": 0.05}
    with Broker(options=options) as broker, broker.connect() as client:
        admin = client.admin()
        config = TopicConfig(segment_bytes=16 << 10, cleanup="compact", min_dirty_ratio=0.0,
                             min_compaction_lag=3600.0)  # fmt: skip
        admin.create_topic("t", config)
        with client.producer(batch_bytes=4 << 10) as producer:
            for number in range(0, size >> 10, 4):
                values = [b"%d" % number + os.urandom(1 << 10)] * 4
                producer.send_batch("t", values, keys=[b"k"] * 4).result(WITHIN)
        begun = time.monotonic()
        admin.alter_topic("t", min_compaction_lag=0.0)
        eventually(
            lambda: admin.describe_topic("t").partitions[0].cleaning["records_compacted"] > 0,
            "compacted",
        )
        assert time.monotonic() - begun > least


# --- writers --------------------------------------------------------------------------------------
@pytest.mark.setting("node.writer_spin")
def test_a_writer_that_is_to_look_on_for_records_is_busy_after_each() -> None:
    """One that sleeps at once takes about a millisecond for each of these records."""
    with Broker(writers=1, options={"writer_spin": 0.1}) as broker, broker.connect() as client:
        topic, empty = broker.create_topic(), broker.create_topic()
        with client.producer(linger=0) as producer, client.consumer(empty) as idle:
            producer.send_and_wait(topic, b"the first", timeout=WITHIN)
            [writer] = _writers(broker)
            before = _busy(writer)
            for _ in range(100):
                producer.send_and_wait(topic, b"another", timeout=WITHIN)
                idle.poll(timeout=0.1)
                if _busy(writer) - before > 0.5:
                    return
        raise AssertionError(f"busy for {_busy(writer) - before:.2f} s after 100 records")


def _busy(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --- time -----------------------------------------------------------------------------------------
@pytest.mark.setting("node.stage_timeout")
def test_a_stage_that_nobody_commits_in_time_is_given_up() -> None:
    with Broker(options={"stage_timeout": 0.5}) as broker, broker.connect() as client:
        topic = broker.create_topic()
        with client.stage("job", 1) as stage:
            stage.send(topic, b"waits")
        with client.producer() as plain:
            plain.send_and_wait(topic, b"behind it", timeout=WITHIN)
        with client.consumer(topic, isolation="read_committed") as consumer:
            assert [it.value for it in consumer.poll(timeout=WITHIN)] == [b"behind it"]
        with pytest.raises(TransactionError, match=r"stage_timeout=0\.5 s"):
            client.commit_transaction("job", 1, [stage.name])


@pytest.mark.setting("node.offsets_retention")
def test_offsets_of_a_group_without_members_are_kept_for_as_long_as_the_node_says() -> None:
    with Broker(options={"offsets_retention": 1.0}) as broker, broker.connect() as client:
        topic = broker.create_topic()
        with client.producer() as producer:
            producer.send_and_wait(topic, b"", timeout=WITHIN)
        with client.consumer(topic, group="short", follow=False) as member:
            assert len(list(member)) == 1
        admin = client.admin()
        eventually(lambda: not admin.list_groups(), "the group and its offsets to be gone")


@pytest.mark.setting("node.client_absence_max")
def test_remote_clients_that_do_not_come_back_are_dead_after_the_absence_they_may_have() -> None:
    """One after another: ten seconds for each would take longer than is waited for."""
    options = {"client_absence_max": 0.2}
    with (
        Broker(listen=True, writers=1, options=options) as broker,
        broker.connect() as client,
        client.admin() as admin,
    ):
        begun = time.monotonic()
        for number in range(5):
            with Dealer(broker.tcp_url) as dealer:
                dealer.producer()
                topic = dealer.find(1, broker.create_topic())
                ready = dealer.ask(1, co.InitTransactions(f"tx-{number}", 600.0))
                place = (topic.topic_id, 0)
                dealer.ask(
                    1,
                    co.AddPartitions(
                        f"tx-{number}", ready.producer_id, ready.producer_epoch, [place]
                    ),
                )
            left = begun + WITHIN - time.monotonic()
            eventually(
                lambda: {it.state for it in admin.list_transactions()} == {"ready"}, "aborted", left
            )


# --- who may come ---------------------------------------------------------------------------------
@pytest.mark.setting("node.insecure")
def test_a_word_lets_a_node_listen_beyond_its_host_without_keys(tmp_path: Path) -> None:
    with NodeUnderTest(tmp_path, listen="tcp://0.0.0.0:0", insecure=True) as node:
        assert node.listens is not None
        port = node.listens.rpartition(":")[2]
        with penstock.connect(f"tcp://127.0.0.2:{port}", transport="tcp") as client:
            assert client.admin().list_topics() == []


@pytest.mark.setting("node.metrics", "node.metrics_public")
def test_a_word_lets_metrics_be_seen_from_elsewhere(tmp_path: Path) -> None:
    with (
        NodeUnderTest(tmp_path, metrics="0.0.0.0:0", metrics_public=True) as node,
        node.connect() as client,
    ):
        port = client.admin().describe_node().metrics.rpartition(":")[2]
        with urlopen(f"http://127.0.0.2:{port}/healthz", timeout=WITHIN) as answer:
            assert answer.status == 200


@pytest.mark.setting("node.lock_timeout")
def test_a_node_waits_for_the_lock_of_its_folder_as_long_as_it_is_told(tmp_path: Path) -> None:
    first = NodeUnderTest(tmp_path)
    with first:
        second = NodeUnderTest(tmp_path, lock_timeout=0.25)
        second.launch()
        assert second.process.wait(WITHIN) != 0
        assert "within 0.25 s (lock_timeout)" in second.tail()
        assert first.is_running
