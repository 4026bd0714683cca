"""A node as a service and at a terminal: hang-ups, and what the service manager hears."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cli_runner import COMMAND, call_cli, cli_process, environment, run_cli
from node_helpers import NodeProcess, eventually, shared_objects
from quorum_fixture import free_port

WITHIN = 45.0
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def is_clean(data: Path) -> bool:
    return json.loads((data / "node.json").read_text())["clean"] is True


@contextmanager
def at_a_terminal(*arguments: str | Path) -> Iterator[tuple[int, io.FileIO]]:
    """A command with a terminal of its own: its pid, and the other end of the terminal."""
    pid, terminal = pty.fork()
    if not pid:
        try:
            os.execvpe(COMMAND[0], [*COMMAND, *map(str, arguments)], environment())
        finally:
            os._exit(127)
    with io.FileIO(terminal) as end:
        try:
            yield pid, end
        finally:
            with suppress(ChildProcessError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def status_of(pid: int) -> int:
    """Of a child that ends in time."""
    watch = os.pidfd_open(pid)
    try:
        assert select.select([watch], [], [], WITHIN)[0], "it runs on"
    finally:
        os.close(watch)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_hang_up_is_a_clean_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cli_process("serve", "--data", data, "--format", "json", "-q") as process:
        url = json.loads(process.stdout.readline())["url"]
        assert call_cli("topic", "create", "t", url=url).code == 0
        process.send_signal(signal.SIGHUP)
        assert process.wait(WITHIN) == 0
        assert process.stderr.read() == b""
    assert is_clean(data)
    assert shared_objects(data) == []


def test_a_broker_ends_cleanly_by_a_hang_up_too(tmp_path: Path) -> None:
    data, quorum = tmp_path / "data", f"1@127.0.0.1:{free_port()}"
    arguments = ["--node-id", "1", "--listen", "tcp://127.0.0.1:0", "--controller-quorum", quorum]
    with NodeProcess(data, *arguments).start() as node:
        node.signal(signal.SIGHUP)
        assert node.wait() == 0
        assert is_clean(data)


def test_a_terminal_that_goes_away_is_a_clean_end(tmp_path: Path) -> None:
    """Nor does it matter that there is nowhere to log to."""
    data = tmp_path / "data"
    with at_a_terminal("serve", "--data", data, "--format", "json") as (pid, terminal):
        told = b""
        while b'"ready"' not in told:
            assert select.select([terminal], [], [], WITHIN)[0], told
            told += terminal.read(4096) or b""
        terminal.close()
        assert status_of(pid) == 0
    assert is_clean(data)


def test_hang_ups_do_not_hurry_and_another_signal_after_one_does_not_either(
    tmp_path: Path,
) -> None:
    """Shells and terminals send several of them."""
    with NodeProcess(tmp_path / "data").start() as node:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            node.signal(number)
        assert node.wait() == 0
        assert is_clean(node.folder)


def test_nohup_is_obeyed(tmp_path: Path) -> None:
    """Who starts it so wants it to stay."""
    with under_nohup("serve", "--data", tmp_path / "data", "--format", "json") as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGHUP)
        assert call_cli("topic", "create", "t", url=url).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 0


def test_nohup_is_obeyed_by_commands_too() -> None:
    with under_nohup("demo", "--no-kill", "--records", "20000") as process:
        eventually(lambda: _catches(process.pid, signal.SIGTERM), "it catches signals")
        process.send_signal(signal.SIGHUP)
        assert process.wait(120) == 0


@contextmanager
def under_nohup(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["nohup", *COMMAND, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"SigCgt:\t(\w+)", status)
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_hears_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, is_abstract: bool
) -> None:
    name = f"@{tmp_path}" if is_abstract else str(tmp_path / "notify")
    data = tmp_path / "data"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if is_abstract else name)
        manager.settimeout(WITHIN)
        asked = {"NOTIFY_SOCKET": name}
        with cli_process("serve", "--data", data, "--format", "json", "-q", env=asked) as process:
            heard = [manager.recv(4096).decode()]
            while "READY=1" not in heard[-1]:
                heard.append(manager.recv(4096).decode())
            assert heard[-1] == f"READY=1\nSTATUS=serves {data}"
            assert f"STATUS=opens {data} its logs" in heard
            url = f"shm://{data}"
            assert call_cli("topic", "create", "t", url=url).code == 0
            [node] = call_cli("node", "describe", "--format", "json", url=url).objects
            [writer] = node["writers"]
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{writer['pid']}/environ").read_bytes()
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1\nSTATUS=drains and closes its logs"
            assert process.wait(WITHIN) == 0
            assert process.stderr.read() == b""


def test_a_service_manager_hears_why_a_node_cannot_serve(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WITHIN)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        assert run_cli("serve", "--data", tmp_path / "file", env=asked).code == 1
        assert manager.recv(4096).startswith(b"STATUS=opens")
        assert b"cannot serve" in manager.recv(4096)


def test_a_service_manager_that_is_gone_disturbs_nobody(tmp_path: Path) -> None:
    data, asked = tmp_path / "data", {"NOTIFY_SOCKET": str(tmp_path / "nowhere")}
    with cli_process("serve", "--data", data, "--format", "json", env=asked) as process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 0
        assert b"nobody hears at $NOTIFY_SOCKET" in process.stderr.read()


def test_a_service_manager_gets_the_signs_of_life_that_it_asks_for(tmp_path: Path) -> None:
    data, place = tmp_path / "data", str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(WITHIN)
        asked = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "200000"}
        with cli_process("serve", "--data", data, "--format", "json", "-q", env=asked) as process:
            while not manager.recv(4096).startswith(b"READY=1"):
                pass
            for _ in range(3):
                assert manager.recv(4096) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while not manager.recv(4096).startswith(b"STOPPING=1"):
                pass
            assert process.wait(WITHIN) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_one(tmp_path: Path) -> None:
    """systemd ignores what it cannot read, and says so."""
    program = "/opt/penstock/bin/penstock"
    unit = (DEPLOY / "penstock.service").read_text()
    assert f"ExecStart={program} serve" in unit
    (tmp_path / "penstock.service").write_text(unit.replace(program, sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "penstock.service"],
        capture_output=True, text=True, check=True, timeout=WITHIN,
    )  # fmt: skip
    assert checked.stderr + checked.stdout == ""
