"""`penstock serve`: a node in the foreground."""

from __future__ import annotations

import json
import signal
import socket

import pytest
from cli_runner import call_cli, cli_process, run_cli
from node_helpers import NodeProcess, shared_objects

from penstock.ipc import layout as lo


@pytest.mark.setting("node.data_folder")
def test_a_node_from_ready_to_a_clean_end(tmp_path):
    data = tmp_path / "data"
    with cli_process(
        "serve", "--data", data, "--writers", "1", "--format", "json", "-q"
    ) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        assert ready["url"] == f"shm://{data}"
        assert ready["pid"] == process.pid
        assert call_cli("topic", "create", "t", "-p", "2", url=ready["url"]).code == 0
        [topic] = call_cli("topic", "describe", "t", "--format", "json", url=ready["url"]).objects
        assert {part["writer"] for part in topic["partitions"]} == {0}

        second = run_cli(
            "serve", "--data", data, "--config", _config(tmp_path, "lock_timeout = 0.1")
        )
        assert second.code == 1
        assert str(process.pid) in second.err

        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0
        assert process.stderr.read() == b""
    assert json.loads((data / "node.json").read_text())["clean"] is True


@pytest.mark.setting("node.listen")
def test_the_port_that_remote_clients_got_is_told(tmp_path):
    data = tmp_path / "data"
    with cli_process(
        "serve", "--data", data, "--listen", "tcp://127.0.0.1:0", "--format", "json", "-q"
    ) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["listen"].startswith("tcp://127.0.0.1:")
        assert not ready["listen"].endswith(":0")
        assert json.loads((data / "node.json").read_text())["listen"] == ready["listen"]
        [node] = call_cli("node", "describe", "--format", "json", url=ready["url"]).objects
        assert node["listen"] == ready["listen"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0


def test_a_port_that_is_taken_is_said_at_the_start_which_leaves_nothing(tmp_path):
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ended = run_cli("serve", "--data", data, "--listen", url)
    assert ended.code == 1
    assert f"cannot listen at {url}" in ended.err
    assert shared_objects(data) == []
    assert json.loads((data / "node.json").read_text())["clean"] is True


def test_a_broker_whose_own_port_is_taken_leaves_nothing_either(tmp_path):
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_cli(
            "serve", "--data", data, "--node-id", "1", "--listen", "tcp://127.0.0.1:0",
            "--controller-quorum", f"1@{place}",
        )  # fmt: skip
    assert ended.code == 1
    assert f"cannot listen at tcp://{place}: Address already in use; see who" in ended.err
    assert shared_objects(data) == []


def test_a_start_that_fails_leaves_what_is_another_nodes(tmp_path):
    data = tmp_path / "data"
    impatient = _config(tmp_path, "lock_timeout = 0.1")
    with cli_process("serve", "--data", data, "--format", "json", "-q") as process:
        url = json.loads(process.stdout.readline())["url"]
        before = shared_objects(data)
        assert len(before) == 3
        assert run_cli("serve", "--data", data, "--config", impatient).code == 1
        assert shared_objects(data) == before
        assert call_cli("topic", "create", "t", url=url).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0


def test_a_start_that_fails_leaves_the_lanes_of_living_producers(tmp_path):
    """What they wait for to be taken is there when the node comes back."""
    data = tmp_path / "data"
    with NodeProcess(data).start() as node, node.attach(lo.KIND_PRODUCER) as producer:
        producer.open_lane()
        before = shared_objects(data)
        assert len(before) == 4
        node.kill()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            ended = run_cli("serve", "--data", data, "--listen", url)
        assert ended.code == 1
        assert shared_objects(data) == before


@pytest.mark.parametrize("url", ["127.0.0.1:9640", "tcp://", "tcp://host", "tcp://h:99999"])
def test_a_listening_address_that_is_none_is_refused(tmp_path, url):
    ended = run_cli("serve", "--data", tmp_path / "data", "--listen", url)
    assert ended.code != 0
    assert "tcp://127.0.0.1:9640" in ended.err


def _config(folder, text):
    path = folder / "node.toml"
    path.write_text(text)
    return path


@pytest.mark.setting("node.name", "node.lane_capacity")
def test_a_named_node_with_a_configuration_file(tmp_path):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    places = {"PENSTOCK_RUNTIME_DIR": str(runtime), "PENSTOCK_DATA_DIR": str(tmp_path / "data")}
    config = _config(tmp_path, 'name = "river"\nlane_capacity = "1MiB"\nwriters = 1\n')
    with cli_process("serve", "--config", config, env=places) as process:
        while b"shm://river" not in process.stderr.readline():
            pass
        ran = run_cli("topic", "create", "t", url="shm://river", env=places)
        assert ran.code == 0, ran.err
        # A batch takes at most a quarter of a lane.
        big = run_cli("produce", "t", url="shm://river", stdin=b"x" * (300 << 10), env=places)
        assert big.code == 1
        assert "262" in big.err or "261" in big.err
        process.send_signal(signal.SIGINT)
        assert process.wait(45) == 0
    assert (tmp_path / "data" / "node.json").is_file()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no toml", "TOML"),
        ("color = 'red'", "color"),
        ("writers = 0", "writers_max"),
        ("writers = true", "writers_max"),
        ("lane_capacity = 'much'", "size"),
        ("lane_capacity = 100000", "4096"),
        ("drain_timeout = 'soon'", "duration"),
        ("node_id = '1'", "node_id is '1': write it without quotes"),
        ("insecure = 'true'", "without quotes"),
        ("data = 7", "data_folder"),
        ("name = '../up'", "name"),
    ],
)
def test_a_configuration_that_cannot_be_is_a_usage_error(tmp_path, text, reason):
    # The file's folder would win over none, an option would win over the file.
    folder = [] if text.startswith("data") else ["--data", tmp_path / "data"]
    ran = call_cli("serve", *folder, "--config", _config(tmp_path, text))
    assert ran.code == 2
    assert reason in ran.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "/nowhere/node.toml"],
        ["--writers", "0"],
        ["--writers", "1000"],
        ["--lane-capacity", "7"],
        ["--name", "a b"],
    ],
)
def test_options_that_cannot_be_are_usage_errors(tmp_path, arguments):
    ran = call_cli("serve", "--data", tmp_path / "data", *arguments)
    assert ran.code == 2
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_used_is_a_failure(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    ran = run_cli("serve", "--data", tmp_path / "file")
    assert ran.code != 0
    assert "file" in ran.err
    assert "Traceback" not in ran.err
