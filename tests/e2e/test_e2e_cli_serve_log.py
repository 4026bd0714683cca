"""The log of a node and its writers as JSON: every line parses and says what it is about."""

from __future__ import annotations

import json
import os
import signal

import pytest
from cli_runner import call_cli, cli_process, run_cli
from node_helpers import NodeProcess, eventually


def parsed(folder, *arguments):
    node = NodeProcess(folder, *arguments)
    return node, lambda: [json.loads(line) for line in node.log.rpartition("\n")[0].splitlines()]


@pytest.mark.parametrize("by", ["option", "environment"])
def test_every_line_of_node_and_writers_is_an_object(tmp_path, by, monkeypatch):
    if by == "environment":
        monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    options = ["--log-format", "json"] if by == "option" else []
    node, lines = parsed(tmp_path / "data", "--writers", "1", "-v", *options)
    with node.start():
        with node.attach() as client:
            client.create("orders", partitions=1, segment_bytes=4096)
        [writer] = node.writers()
        os.kill(writer.pid, signal.SIGKILL)
        eventually(lambda: any(line.get("reason") == "killed by SIGKILL" for line in lines()))
        eventually(lambda: node.writers()[0].pid not in (0, writer.pid))
        assert node.stop() == 0
        found = lines()
    assert {line["process"] for line in found} >= {"node"}
    assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in found)
    [created] = [line for line in found if line["message"].startswith("topic orders created")]
    assert created["topic"] == "orders"
    [died] = [line for line in found if line.get("reason") == "killed by SIGKILL"]
    assert (died["level"], died["writer"], died["pid"]) == ("WARNING", 0, writer.pid)
    assert died["process_id"] == node.pid


def test_a_partition_that_cannot_be_opened_is_named_by_its_writer(tmp_path):
    node, lines = parsed(tmp_path / "data", "--writers", "1", "--log-format", "json")
    with node.start():
        with node.attach() as client:
            info = client.create("broken", partitions=1)
        node.stop()
        folder = tmp_path / "data" / f"{info.topic_id.hex()}-0"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        folder.write_text("no folder")
        node.start()
        eventually(
            lambda: [
                x
                for x in lines()
                if x["process"] == "writer-0" and "cannot be opened" in x["message"]
            ],
            "the writer's line",
        )
        node.stop()
        found = lines()
    [told] = [x for x in found if x["process"] == "writer-0" and x["level"] == "ERROR"]
    assert (told["topic"], told["partition"]) == ("broken", 0)
    assert told["reason"]
    assert told["error"] == "LogOfflineError"
    [offline] = [x for x in found if x["process"] == "node" and "is offline" in x["message"]]
    assert (offline["topic"], offline["partition"]) == ("broken", 0)


def test_serve_writes_nothing_but_objects_on_stderr(tmp_path):
    data = tmp_path / "data"
    with cli_process("serve", "--data", data, "--log-format", "json") as process:
        first = json.loads(process.stderr.readline())
        while "serves" not in first["message"]:
            first = json.loads(process.stderr.readline())
        assert (first["pid"], first["folder"]) == (process.pid, str(data))
        assert call_cli("topic", "create", "t", url=f"shm://{data}").code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0
        rest = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert any(line.get("topic") == "t" for line in rest)


@pytest.mark.setting("node.log_format")
def test_a_node_that_cannot_start_says_so_in_the_chosen_format(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    config = tmp_path / "node.toml"
    config.write_text('log_format = "json"\n')
    ran = run_cli("serve", "--data", tmp_path / "file", "--config", config)
    assert ran.code == 1
    [line] = [json.loads(text) for text in ran.err.splitlines()]
    assert line["folder"] == str(tmp_path / "file")
    assert line["reason"]


def test_a_format_that_does_not_exist_is_a_usage_error(tmp_path):
    ran = call_cli("serve", "--data", tmp_path / "data", "--log-format", "xml")
    assert ran.code == 2
    config = tmp_path / "node.toml"
    config.write_text('log_format = "xml"\n')
    ran = call_cli("serve", "--data", tmp_path / "data", "--config", config)
    assert ran.code == 2
    assert "log_format" in ran.err
