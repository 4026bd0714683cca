"""`penstock top`: the numbers are right, the node is not asked, and nothing is written."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
from cli_runner import COMMAND, call_cli, cli_process, environment, run_cli
from node_helpers import eventually

from penstock import TopicConfig
from penstock.testing.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node():
    with EmbeddedNode(writers=2) as running:
        yield running


def make_topic(node, name, partitions=1):
    with node.connect() as client, client.admin() as admin:
        admin.create_topic(name, TopicConfig(partitions=partitions))


def reports(process):
    """The reports of a running `top --format json`, for so long as a test bears with it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        yield json.loads(process.stdout.readline())
    raise AssertionError("what was waited for never showed")


def one(node, *options):
    ran = call_cli(
        "top", "--once", "-i", "0.1", "--format", "json", "--topic", *options, url=node.url
    )
    assert ran.code == 0, ran.err
    return ran.objects[0]


def test_a_topic_that_is_not_there_is_said_to_be_missing(node):
    make_topic(node, "there")
    assert "no topic has a name that was asked for" in one(node, "nowhere")["warnings"]
    assert one(node, "the*")["warnings"] == []


def test_rates_add_up_to_what_was_sent(node):
    make_topic(node, "rates", 3)
    with (
        cli_process("top", "--format", "json", "-i", "0.2", url=node.url) as top,
        node.connect() as client,
        client.producer() as producer,
    ):
        seen = reports(top)
        next(seen)
        producer.send_batch("rates", values=[b"x" * 100] * 5000)
        producer.flush(20)
        records = batches = size = 0.0
        for report in seen:
            [row] = [row for row in report["topics"] if row["topic"] == "rates"]
            records += row["records_per_second"] * report["interval"]
            batches += row["batches_per_second"] * report["interval"]
            size += row["bytes_per_second"] * report["interval"]
            if records > 4999.5:
                break
        assert records == pytest.approx(5000)
        assert batches == pytest.approx(round(batches))
        assert size > 5000 * 100
        assert (row["partitions"], row["records_held"], row["uncommitted"]) == (3, 5000, 0)
        [mine] = [row for row in report["producers"] if row["pid"] == os.getpid()]
        assert (mine["state"], mine["bytes_waiting"], mine["lane_use"]) == ("attached", 0, 0)
        top.send_signal(signal.SIGINT)
        assert top.wait(45) == 0
        assert top.stderr.read() == b""


def test_lag_in_records_and_in_seconds_is_that_of_the_log(node):
    make_topic(node, "lags")
    with node.connect() as client, client.producer() as producer:
        for i in range(40):
            producer.send_and_wait("lags", b"%d" % i, timeout=20)
        consumer = client.consumer("lags")
        assert len(consumer.poll(10, timeout=20)) == 10
        [row] = one(node, "lags")["consumers"]
        assert row["lag"] == 40, "what a poll brought is not done before the next one"
        assert len(consumer.poll(10, timeout=20)) == 10

        report = one(node, "lags")
        [row] = report["consumers"]
        assert (row["pid"], row["topics"], row["assigned"]) == (os.getpid(), ["lags"], 1)
        [at] = row["positions"]
        assert (at["partition"], at["position"], at["lag"]) == (0, 10, 30)
        folder = node.data / f"{topic_id(node, 'lags')}-0"
        batches = call_cli("log", "dump", "--format", "json", folder).objects
        [waited] = [b for b in batches if b["base_offset"] <= 10 <= b["last_offset"]]
        age = report["time"] - waited["append_timestamp"] / 1e6
        assert at["lag_seconds"] == pytest.approx(age, abs=1e-5)
        assert report["topics"][0]["lag"] == 30

        consumer.seek("lags", 0, 35)
        assert one(node, "lags")["consumers"][0]["lag"] == 5
        assert len(consumer.poll(timeout=20)) == 5
        assert not consumer.poll()
        [row] = one(node, "lags")["consumers"]
        assert (row["lag"], row["lag_seconds"], row["drain_seconds"]) == (0, 0, 0)


def topic_id(node, name):
    return call_cli("topic", "describe", name, "--format", "json", url=node.url).objects[0][
        "topic_id"
    ]


def test_iteration_shows_where_it_is_once_it_asks_for_more(node):
    make_topic(node, "steps")
    with node.connect() as client, client.producer() as producer:
        producer.send_batch("steps", values=[b"v"] * 100)
        producer.flush(20)
        consumer = client.consumer("steps", follow=False)
        assert sum(1 for _ in consumer) == 100
        assert one(node, "steps")["consumers"][0]["positions"][0]["position"] == 100


def test_a_stopped_node_is_not_asked_and_is_said_to_be_stopped(node):
    make_topic(node, "still")
    os.kill(node.pid, signal.SIGSTOP)
    try:
        ran = run_cli("top", "--once", "-i", "0.1", url=node.url)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert ran.code == 0
    assert f"! the node (pid {node.pid}) is stopped" in ran.out.decode()
    assert re.search(r"^still +online", ran.out.decode(), re.MULTILINE)


def test_a_silent_writer_is_named_and_a_replaced_one_counted(node):
    make_topic(node, "writers", 2)
    with cli_process("top", "--format", "json", "-i", "0.2", url=node.url) as top:
        seen = reports(top)
        first = next(seen)["writers"][0]
        assert first["partitions"] > 0
        assert first["rss"] > 1 << 20
        os.kill(first["pid"], signal.SIGSTOP)
        for report in seen:
            if any("no sign of life" in warning for warning in report["warnings"]):
                break
        assert report["writers"][0]["state"] == "stopped"
        os.kill(first["pid"], signal.SIGKILL)
        for report in seen:
            row = report["writers"][0]
            if row["restarts"]:
                break
        assert row["restarts"] == 1
        assert row["generation"] > first["generation"]


def test_shared_memory_is_mapped_for_reading_only(node):
    make_topic(node, "maps")
    with node.connect() as client, client.producer() as producer:
        producer.send_and_wait("maps", b"v", timeout=20)
        with cli_process("top", "--format", "json", "-i", "0.2", url=node.url) as top:
            next(reports(top))
            with open(f"/proc/{top.pid}/maps") as file:
                mapped = [line.split() for line in file if "/dev/shm/penstock-" in line]
    assert len(mapped) >= 3
    assert {words[1] for words in mapped} == {"r--s"}


def test_a_node_that_dies_and_its_successor(tmp_path):
    with EmbeddedNode(tmp_path / "data", writers=1) as node:
        make_topic(node, "t")
        with (
            node.connect() as client,
            client.producer() as producer,  # keeps the tables
            cli_process("top", "--format", "json", "-i", "0.2", url=node.url) as top,
        ):
            producer.send_and_wait("t", b"v", timeout=20)
            seen = reports(top)
            assert next(seen)["node"]["pid"] == node.pid
            node.kill()
            for report in seen:
                if report["node"]["pid"] is None:
                    break
            assert report["warnings"][0].startswith("the node is gone")
            node.start()
            for report in seen:
                if report["node"]["pid"] == node.pid and not report["warnings"]:
                    break
            producer.send_and_wait("t", b"v", timeout=20)


@contextmanager
def _home(tmp_path, *arguments):
    """A named node on a folder that is not its name's own."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    places = {"PENSTOCK_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)}
    with cli_process(
        "serve", "--data", tmp_path / "elsewhere", "--name", "river", "--format", "json", env=places
    ) as process:
        assert process.stdout.readline()
        yield places
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0


def test_a_named_node_is_found_by_its_name(tmp_path):
    with _home(tmp_path) as places:
        ran = run_cli("top", "--once", "-i", "0.1", url="shm://river", env=places)
        assert ran.code == 0, ran.err
        assert str(tmp_path / "elsewhere") in ran.out.decode()
    gone = run_cli("top", "--once", url="shm://river", env=places)
    assert gone.code == 1
    assert "no node runs on" in gone.err


def test_without_a_node_the_message_says_where_and_what_to_do(tmp_path):
    nowhere = call_cli("top", "--once", url=f"shm://{tmp_path / 'none'}")
    assert (nowhere.code, nowhere.out) == (1, b"")
    assert str(tmp_path / "none") in nowhere.err
    assert "penstock serve" in nowhere.err
    assert call_cli("top", "--once", url="tcp://n1:9640").code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_node_of_another_user_is_refused_by_name(tmp_path):
    os.chown(tmp_path, 4711, -1)
    ran = call_cli("top", "--once", url=f"shm://{tmp_path}")
    assert ran.code == 1
    assert "belongs to uid 4711" in ran.err


@pytest.mark.parametrize(
    "options", [["--interval", "0"], ["--sort", "height"], ["-i", "x"], ["--once", "extra"]]
)
def test_mistakes_in_the_options_of_top_are_usage_errors(node, options):
    assert call_cli("top", *options, url=node.url).code == 2


def test_on_a_terminal_it_draws_until_a_signal_and_leaves_the_screen_as_it_was(node):
    make_topic(node, "drawn")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "top", "-i", "0.1", "--topic", "drawn"],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(node.url, {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}),
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def read():
        nonlocal shown
        if select.select([ours], [], [], 0.05)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                return True
        return shown.count(b"drawn-0") >= 2

    try:
        eventually(read, "two reports on the terminal")
        assert b"\x1b[?1049h" in shown
        process.send_signal(signal.SIGINT)
        eventually(lambda: read() and b"\x1b[?1049l" in shown, "the screen as it was")
        assert process.wait(45) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Traceback" not in shown
