"""How a node takes its address, how clients find it, and who they are to each other."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError, DataFolderError, NotConnectedError
from penstock.ipc import channel
from penstock.ipc.channel import Channel
from penstock.testing import wait_until

WAIT = 45.0

NAMESPACE = ("--pid", "--fork", "--mount-proc")


def may_unshare(*namespaces):
    tool = shutil.which("unshare")
    return tool is not None and not subprocess.call([tool, *namespaces, "true"])


@pytest.fixture(autouse=True)
def no_leak():
    """Every descriptor that a test opens or receives is closed in the end."""
    gc.collect()  # what earlier tests left to the collector goes before it is counted
    before = len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 5.0, "all descriptors closed")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


LISTENER = """
import sys, time
from penstock.core.errors import DataFolderError
from penstock.ipc import channel
try:
    sock = channel.listen(sys.argv[1], int(sys.argv[2]))
except DataFolderError:
    print("refused", flush=True)
else:
    print("listening", flush=True)
    sys.stdin.read()
"""


class Node:
    """A process that listens at a path until it is killed."""

    def __init__(self, path, backlog=8):
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(path), str(backlog)], env=environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def answer(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


# --- peers --------------------------------------------------------------------------------------
CLIENT = """
import os, sys
from penstock.ipc import channel, liveness
peer = channel.Channel(channel.connect(sys.argv[1], 10), inbound=None).peer()
print(peer.pid, peer.uid, peer.gid, flush=True)
try:
    os.close(liveness.open_pidfd(peer.pid))
except Exception as error:
    print(type(error).__name__, "tcp://" in str(error), flush=True)
sys.stdin.read()
"""


def served(path, prefix=()):
    """Accept one client of ours at `path`; what it saw of us and we of it."""
    with channel.listen(path, 8) as listening:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", CLIENT, str(path)], env=environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            listening.settimeout(WAIT)
            with Channel(listening.accept()[0], inbound=None) as accepted:
                seen = accepted.peer()
                output = process.communicate("", timeout=WAIT)[0].splitlines()
        finally:
            process.kill()
            process.communicate()
        return process.pid, seen, output


def test_both_ends_know_the_process_at_the_other(folder):
    pid, seen, output = served(folder / "n.sock")
    assert seen == (pid, os.geteuid(), os.getegid())
    assert output == [f"{os.getpid()} {os.geteuid()} {os.getegid()}"]


@pytest.mark.rule(7)
@pytest.mark.skipif(not may_unshare(*NAMESPACE), reason="makes a pid namespace")
def test_rule_7_a_node_outside_of_the_clients_pid_namespace_is_refused_with_advice(folder):
    _, seen, output = served(folder / "n.sock", prefix=["unshare", *NAMESPACE])
    assert seen.pid > 0, "from outside the process in the namespace is visible"
    assert output[0].split()[0] == "0", "from inside we are not"
    assert output[1] == "AttachRefusedError True"


# --- addresses ----------------------------------------------------------------------------------
def talk(path):
    """Whether a client of `path` reaches whoever listens there."""
    with channel.connect(path, WAIT) as sock:
        return Channel(sock, inbound=None).peer().pid


def test_the_folder_and_the_socket_are_this_users_alone_whatever_the_umask(tmp_path):
    path = tmp_path / "new" / "n.sock"
    before = os.umask(0)
    try:
        with channel.listen(path, 8) as sock:
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert not os.get_inheritable(sock.fileno())
            with pytest.raises(BlockingIOError):
                sock.accept()
    finally:
        os.umask(before)


def test_a_folder_that_others_can_write_is_refused(folder):
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match="written by others"):
        channel.listen(folder / "n.sock", 8)
    assert list(folder.iterdir()) == []


def test_the_socket_of_a_dead_node_is_replaced(folder):
    path = folder / "n.sock"
    with Node(path) as node:
        assert node.answer() == "listening"
        assert talk(path) == node.process.pid
    assert path.is_socket(), "a killed node leaves it behind"
    with channel.listen(path, 8):
        assert talk(path) == os.getpid()


@pytest.mark.parametrize("condition", ["running", "stopped", "full"])
def test_a_node_that_is_there_keeps_its_address(folder, condition):
    path = folder / "n.sock"
    with Node(path, backlog=0) as node:
        assert node.answer() == "listening"
        inode = path.stat().st_ino
        if condition == "stopped":
            node.stop()
        waiting = channel.connect(path, WAIT) if condition == "full" else None
        with pytest.raises(DataFolderError, match=f"another node answers at {path}"):
            channel.listen(path, 8)
        assert path.stat().st_ino == inode
        if waiting is not None:
            waiting.close()


def test_a_file_that_is_no_socket_is_left_alone(folder):
    path = folder / "n.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        channel.listen(path, 8)
    assert path.read_text() == "precious"


def test_of_many_nodes_that_find_a_stale_socket_one_gets_the_address(folder):
    path = folder / "n.sock"
    with Node(path) as dead:
        assert dead.answer() == "listening"
    nodes = [Node(path) for _ in range(6)]
    try:
        answers = [node.answer() for node in nodes]
        assert sorted(answers) == ["listening"] + ["refused"] * 5
        assert talk(path) == nodes[answers.index("listening")].process.pid
    finally:
        for node in nodes:
            node.kill()


def test_a_path_longer_than_the_kernel_takes_works(tmp_path):
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    path = folder / "n.sock"
    with pytest.raises(NotConnectedError, match="penstock serve"):
        channel.connect(path, 1)
    folder.mkdir(parents=True, mode=0o700)
    with channel.listen(path, 8):
        assert path.is_socket()
        assert talk(path) == os.getpid()
        with pytest.raises(DataFolderError, match="another node"):
            channel.listen(path, 8)
    with channel.listen(path, 8):  # the stale one is replaced by the same way
        assert talk(path) == os.getpid()
    with pytest.raises(ConfigError, match="too long"):
        channel.listen(folder / ("n" * 200), 8)


def test_without_a_node_the_error_names_the_path_and_what_to_do(folder):
    path = folder / "n.sock"
    for _ in range(2):  # no file at all, then the one of a dead node
        with pytest.raises(NotConnectedError, match=rf"{path}.*penstock serve"):
            channel.connect(path, WAIT)
        channel.listen(path, 8).close()
    (folder / "file").touch()
    with pytest.raises(NotConnectedError, match="penstock serve"):
        channel.connect(folder / "file" / "n.sock", WAIT)


def test_a_node_that_does_not_accept_bounds_the_wait(folder):
    path = folder / "n.sock"
    with channel.listen(path, 0), channel.connect(path, WAIT):
        began = time.monotonic()
        with pytest.raises(NotConnectedError, match=r"not accepted.*0\.05 s"):
            channel.connect(path, 0.05)
        assert 0.05 <= time.monotonic() - began < WAIT


def test_a_client_waits_for_a_place_in_the_backlog(folder):
    path = folder / "n.sock"
    code = "import sys; from penstock.ipc import channel; channel.connect(sys.argv[1], 20)"
    with channel.listen(path, 0) as listening, channel.connect(path, WAIT):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], env=environment())
        try:
            listening.settimeout(WAIT)
            peers = []
            for _ in range(2):
                with Channel(listening.accept()[0], inbound=None) as accepted:
                    peers.append(accepted.peer().pid)
            assert peers == [os.getpid(), process.pid]
            assert process.wait(WAIT) == 0
        finally:
            process.kill()
            process.wait()


def test_another_kind_of_socket_is_no_node(folder):
    path = folder / "n.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(os.fspath(path))
        other.listen(1)
        with pytest.raises(NotConnectedError, match="penstock serve"):
            channel.connect(path, WAIT)
        with pytest.raises(ConfigError, match="cannot tell"):
            channel.listen(path, 8)
    assert Path(path).is_socket()
