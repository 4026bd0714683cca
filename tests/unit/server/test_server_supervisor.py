"""Writers started, watched, replaced and stopped; the writers are fakes that misbehave on order."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import fake_writer
import msgspec
import pytest
from node_helpers import NodeThread, Refusal, eventually

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.server.config import NodeConfig


def running(folder: Path, *modes: str, **options: Any) -> NodeThread:
    options = {"writers_max": 2, "topic_timeout": 20.0, "drain_timeout": 20.0, **options}
    config = NodeConfig(str(folder / "data"), name=None, **options)
    return NodeThread(config, fake_writer.command(*modes))


IMPATIENT: Any = {"topic_timeout": 2.0, "drain_timeout": 1.0}
"""For nodes whose writers do neither in time, however long that is."""


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_clean(folder: Path) -> bool:
    return bool(msgspec.json.decode((folder / "data/node.json").read_bytes())["clean"])


@pytest.mark.rule(6)
def test_rule_6_writers_start_with_their_first_partition(tmp_path):
    with running(tmp_path, writers_max=3) as node, node.attach() as client:
        assert node.writers() == []
        assert client.create("one").pages == [0]
        assert [writer.writer for writer in node.writers()] == [0]
        assert client.create("four", partitions=4).pages == [1, 2, 3, 4]
        assert [(w.writer, w.partitions) for w in node.writers()] == [(0, 2), (1, 2), (2, 1)]


def test_a_lane_starts_its_writer(tmp_path):
    with running(tmp_path) as node, node.attach(lo.KIND_PRODUCER) as producer:
        producer.open_lane(1).detach()
        assert [(writer.writer, writer.lanes) for writer in node.writers()] == [(1, 1)]


def test_a_successor_is_told_everything_in_order(tmp_path):
    log = tmp_path / "orders"
    with running(tmp_path, f"record={log}", writers_max=1) as node:
        producer = node.attach(lo.KIND_PRODUCER)
        consumer = node.attach(lo.KIND_CONSUMER)
        producer.create("orders", partitions=2, durability="fsync")
        lane = producer.open_lane()
        [before] = node.writers()
        os.kill(before.pid, signal.SIGKILL)
        [after] = eventually(
            lambda: [w for w in node.writers() if w.pid not in (0, before.pid)], "a successor"
        )
        assert after.generation > before.generation
        assert after.restarts == 1
        told = eventually(
            lambda: (
                [o for o in recorded(log) if o["generation"] == after.generation][3:]
                and [o for o in recorded(log) if o["generation"] == after.generation]
            ),
            "orders to the successor",
        )
        assert [(o["type"], o.get("page"), o["fds"]) for o in told] == [
            ("open_partition", 0, 0),
            ("open_partition", 1, 0),
            ("add_lane", None, 1),
            ("add_client", None, 1),
        ]
        assert told[0]["settings"]["durability"] == "fsync"
        assert told[0]["folder"].startswith(str(tmp_path / "data"))
        assert not told[0]["clean"], "what the killed writer left is not clean"
        assert told[2] == {
            "type": "add_lane", "name": lane.name, "dead": False, "replicates": False, "fds": 1,
            "generation": after.generation,
        }  # fmt: skip
        lane.detach()
        producer.close()
        consumer.close()


def test_consumers_are_announced_to_writers_old_and_new(tmp_path):
    log = tmp_path / "orders"
    with running(tmp_path, f"record={log}") as node:
        with node.attach(lo.KIND_CONSUMER) as early:
            early.create("one")
            with node.attach(lo.KIND_CONSUMER) as late:
                early.create("two")
                slots = {early.welcome.slot, late.welcome.slot}

                def told(kind: str) -> list[int]:
                    return [order["slot"] for order in recorded(log) if order["type"] == kind]

                eventually(lambda: len(told("add_client")) == 4, "four announcements")
                assert set(told("add_client")) == slots
        eventually(lambda: len(told("remove_client")) == 4, "four farewells")
        assert set(told("remove_client")) == slots


@pytest.mark.setting("node.restart_backoff", "node.restart_backoff_max")
def test_a_writer_that_keeps_dying_is_restarted_ever_more_slowly(tmp_path, caplog):
    with running(
        tmp_path, "die", restart_backoff=0.01, restart_backoff_max=0.08, **IMPATIENT
    ) as node:
        with node.attach() as client, pytest.raises(Refusal, match="PenstockTimeout"):
            client.create("orders")
        wait_for_deaths(caplog, 6)
        delays = re.findall(
            r"died: exit status 3; its successor starts in ([0-9.]+) s", caplog.text
        )
        assert delays[:6] == ["0.01", "0.02", "0.04", "0.08", "0.08", "0.08"]
        [writer] = node.writers()
        assert writer.restarts >= 6


@pytest.mark.setting("node.restart_healthy_after")
def test_backoff_is_short_again_after_a_time_of_health(tmp_path, caplog):
    options = {"restart_backoff": 0.01, "restart_healthy_after": 0.1}
    with running(tmp_path, **options) as node, node.attach() as client:
        client.create("orders")
        for round_number in range(4):
            [writer] = eventually(lambda: [w for w in node.writers() if w.pid], "a writer")
            lives_for(0.15)
            os.kill(writer.pid, signal.SIGKILL)
            wait_for_deaths(caplog, round_number + 1)
        assert re.findall(r"starts in ([0-9.]+) s", caplog.text) == ["0.01"] * 4


def lives_for(seconds: float) -> None:
    """Health is a time without a death; there is nothing else to wait for."""
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > seconds, "time goes on")


def wait_for_deaths(caplog: pytest.LogCaptureFixture, count: int) -> None:
    eventually(lambda: caplog.text.count(" died: ") >= count, f"death number {count} is noticed")


@pytest.mark.rule(8)
def test_rule_8_a_silent_writer_is_killed_and_then_replaced(tmp_path, caplog):
    with (
        running(tmp_path, "silent", writer_stall_timeout=1.0, drain_timeout=1.0) as node,
        node.attach() as client,
    ):
        begun = time.monotonic()
        client.create("orders")
        [first] = node.writers()
        [second] = eventually(
            lambda: [w for w in node.writers() if w.pid not in (0, first.pid)], "a successor"
        )
        assert second.generation > first.generation
        assert time.monotonic() - begun > 2.0  # the bound, and two looks a second apart
        assert "no sign of life" in caplog.text
        assert "killed by SIGKILL" in caplog.text


@pytest.mark.rule(8)
@pytest.mark.setting("node.writer_stall_timeout")
def test_rule_8_a_stopped_writer_is_silent(tmp_path, caplog):
    with running(tmp_path, writer_stall_timeout=1.0) as node, node.attach() as client:
        client.create("orders")
        [first] = node.writers()
        os.kill(first.pid, signal.SIGSTOP)
        eventually(lambda: [w for w in node.writers() if w.pid not in (0, first.pid)], "successor")
        assert "(writer_stall_timeout 1): it is killed" in caplog.text
        assert "killed by SIGKILL" in caplog.text


@pytest.mark.rule(8)
def test_rule_8_writers_that_give_signs_of_life_are_left_alone(tmp_path, caplog):
    with running(tmp_path, writer_stall_timeout=2.0) as node, node.attach() as client:
        client.create("orders", partitions=2)
        before = node.writers()
        lives_for(4.5)
        assert node.writers() == before
        assert "died" not in caplog.text


@pytest.mark.rule(8)
@pytest.mark.setting("node.writer_open_timeout")
def test_rule_8_recovery_may_be_silent_for_longer(tmp_path, caplog):
    """Opening a partition gives no sign of life; only `writer_open_timeout` bounds it."""
    options = {"writer_stall_timeout": 1.0, "writer_open_timeout": 2.5, **IMPATIENT}
    with running(tmp_path, "silent", "mute", **options) as node, node.attach() as client:
        begun = time.monotonic()
        with pytest.raises(Refusal, match=r"PenstockTimeout: .*not open yet.*orders-0"):
            client.create("orders")
        eventually(lambda: "no sign of life" in caplog.text, "the silence is noticed")
        assert time.monotonic() - begun > 2.5
        assert "(writer_open_timeout 2.5)" in caplog.text


def test_a_writer_that_does_not_read_holds_nobody_up(tmp_path):
    options = {"writers_max": 1, "writer_stall_timeout": 60.0, "writer_open_timeout": 60.0}
    options |= {"topic_timeout": 0.2, "drain_timeout": 1.0, "partitions_max": 4096}
    with running(tmp_path, "deaf", **options) as node, node.attach() as client:
        for number in range(3):  # more orders than a socket takes
            with pytest.raises(Refusal, match="PenstockTimeout"):
                client.create(f"topic-{number}", partitions=1000)
        consumer = node.attach(lo.KIND_CONSUMER)  # its doorbell waits behind all of them
        consumer.close()
        assert client.ask(ms.DescribeNode(), ms.NodeDescription).writers[0].partitions == 3000


def test_a_request_waits_as_long_as_partitions_go_on_opening(tmp_path):
    """A device may be slow: a thousand partitions take longer than `topic_timeout` together."""
    options = {"writers_max": 1, "topic_timeout": 2.0}
    with running(tmp_path, "slow=0.5", **options) as node, node.attach() as client:
        assert len(client.create("many", partitions=5).pages) == 5


def test_a_writer_that_sends_garbage_is_killed(tmp_path, caplog):
    with running(tmp_path, "garbage", **IMPATIENT) as node:
        with node.attach() as client, pytest.raises(Refusal, match="PenstockTimeout"):
            client.create("orders")
        eventually(lambda: "is malformed" in caplog.text, "it is noticed")
        eventually(lambda: "killed by SIGKILL" in caplog.text, "it is killed")


@pytest.mark.setting("node.topic_timeout")
def test_a_program_that_cannot_be_started_is_tried_again(tmp_path, caplog):
    config = NodeConfig(str(tmp_path / "data"), name=None, topic_timeout=0.3)
    with NodeThread(config, ["/nowhere/writer"]) as node, node.attach() as client:
        with pytest.raises(Refusal, match=r"PenstockTimeout: .*after 0\.3 s \(topic_timeout\)"):
            client.create("orders")
        eventually(lambda: caplog.text.count("writer 0 cannot be started") > 2, "more attempts")
        assert node.writers()[0].pid == 0


def test_a_partition_that_cannot_be_opened_fails_its_creation_and_leaves_no_topic(tmp_path):
    with running(tmp_path, "fail=1") as node, node.attach() as client:
        with pytest.raises(Refusal, match=r"LogOfflineError: .*partition 1 is offline: made to"):
            client.create("orders", partitions=3)
        assert client.ask(ms.ListTopics(), ms.Topics).topics == []
        assert len(client.create("orders").pages) == 1


def test_a_clean_stop_sets_the_mark_and_removes_the_tables(tmp_path):
    node = running(tmp_path)
    with node:
        with node.attach() as client:
            client.create("orders", partitions=2)
            client.close(bye=True)
        assert not is_clean(tmp_path)
        eventually(lambda: not node.node._attached.clients, "the client is gone")
        node.stop()
        assert node.error is None
        assert is_clean(tmp_path)
        assert not list(Path("/dev/shm").glob(f"penstock-{node.node._ground.folder.record.uuid}*"))


@pytest.mark.setting("node.drain_timeout")
def test_a_writer_that_does_not_stop_is_killed_and_the_mark_stays_off(tmp_path, caplog):
    node = running(tmp_path, "stubborn", drain_timeout=0.3)
    with node:
        with node.attach() as client:
            client.create("orders")
        node.stop()
        assert node.error is None
        assert not is_clean(tmp_path)
        assert "has not drained within 0.3 s (drain_timeout)" in caplog.text


def test_a_writer_that_is_dead_at_the_stop_is_started_once_more_to_close_clean(tmp_path, caplog):
    node = running(tmp_path, restart_backoff=60.0, restart_backoff_max=60.0, drain_timeout=10.0)
    with node:
        with node.attach() as client:
            client.create("orders")
        [writer] = node.writers()
        os.kill(writer.pid, signal.SIGKILL)
        eventually(lambda: "its successor starts in 60" in caplog.text, "the death is noticed")
        node.stop()
        assert is_clean(tmp_path)


def test_an_offline_partition_keeps_the_mark_off(tmp_path):
    with running(tmp_path) as node, node.attach() as client:
        client.create("orders", partitions=3)
    config = NodeConfig(str(tmp_path / "data"), name=None)
    with NodeThread(config, fake_writer.command("fail=1")) as again:
        with again.attach() as client:
            found = client.ask(ms.FindTopic("orders"), ms.TopicFound)
            assert found.topic.pages == [0, 1, 2]
        again.stop()
        assert not is_clean(tmp_path)


def test_the_clean_mark_holds_for_the_first_opening_only(tmp_path):
    log = tmp_path / "orders"
    with running(tmp_path) as node, node.attach() as client:
        client.create("orders")
    assert is_clean(tmp_path)
    with running(tmp_path, f"record={log}") as node:
        [writer] = node.writers()
        os.kill(writer.pid, signal.SIGKILL)
        orders = eventually(
            lambda: (
                [o for o in recorded(log) if o["type"] == "open_partition"][1:] and recorded(log)
            ),
            "a second opening",
        )
        opened = [order for order in orders if order["type"] == "open_partition"]
        assert [order["clean"] for order in opened] == [True, False]
