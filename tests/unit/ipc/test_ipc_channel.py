"""Typed messages with descriptors, their bounds and refusals, and how an address is taken."""

from __future__ import annotations

import array
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import (
    ClosedError,
    ConfigError,
    DataFolderError,
    NotConnectedError,
    PenstockTimeout,
)
from penstock.ipc import channel
from penstock.ipc.channel import Channel, ChannelError

WAIT = 20.0


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Number(msgspec.Struct, frozen=True, tag="number"):
    number: int


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    pass


@pytest.fixture(autouse=True)
def no_leak():
    """Every descriptor that a test opens or receives is closed in the end."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def ends():
    """Two ends of one connection."""
    with_both = [Channel(sock, inbound=Text | Number) for sock in channel.pair()]
    yield with_both
    for end in with_both:
        end.close()


@pytest.fixture
def raw():
    """A peer that may send anything, and the channel that it sends to."""
    theirs, ours = channel.pair()
    receiver = Channel(ours, inbound=Text | Number)
    yield theirs, receiver
    theirs.close()
    receiver.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


NAMESPACE = ("--pid", "--fork", "--mount-proc")


def may_unshare(*namespaces):
    tool = shutil.which("unshare")
    return tool is not None and not subprocess.call([tool, *namespaces, "true"])


def rights(fds):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def fill(end):
    """Send numbers from 0 on until the peer's buffer is full; how many."""
    sent = 0
    while True:
        try:
            end.send_nowait(Number(sent))
        except BlockingIOError:
            return sent
        sent += 1


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


# --- messages -----------------------------------------------------------------------------------
def test_messages_arrive_typed_whole_and_in_order(ends):
    first, second = ends
    sent = [Text("a"), Number(1), Text("ü" * 1000), Number(-(2**63))]
    for message in sent:
        first.send(message)
    assert [second.recv(WAIT) for _ in sent] == [(message, []) for message in sent]
    second.send(Number(2))
    assert first.recv(None) == (Number(2), [])


def test_descriptors_travel_in_order_close_on_exec_and_the_sender_keeps_its_own(ends, tmp_path):
    first, second = ends
    fds = []
    for index in range(channel.FDS_MAX):
        (tmp_path / str(index)).touch()
        fds.append(os.open(tmp_path / str(index), os.O_RDONLY))
    first.send(Text("files"), fds)
    arrived = second.recv(WAIT)
    assert arrived is not None
    message, received = arrived
    assert message == Text("files")
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in received] == [
        str(tmp_path / str(index)) for index in range(channel.FDS_MAX)
    ]
    assert not any(os.get_inheritable(fd) for fd in received)
    assert not set(received) & set(fds)
    channel.close_fds(received)
    channel.close_fds(fds)  # raises had the send closed them


def test_the_largest_message_passes_and_one_byte_more_is_refused_by_its_sender(ends):
    first, second = ends
    overhead = len(msgspec.msgpack.encode(Text("x" * 40000))) - 40000
    largest = Text("x" * (channel.MESSAGE_BYTES_MAX - overhead))
    first.send(largest)
    assert second.recv(WAIT) == (largest, [])
    with pytest.raises(ChannelError, match=f"MESSAGE_BYTES_MAX={channel.MESSAGE_BYTES_MAX}"):
        first.send(Text(largest.text + "x"))
    with pytest.raises(ChannelError, match=f"FDS_MAX={channel.FDS_MAX}"):
        first.send(Number(1), [0] * (channel.FDS_MAX + 1))
    first.send(Number(3))
    assert second.recv(WAIT) == (Number(3), [])


def test_a_wait_for_a_message_is_bounded(ends):
    began = time.monotonic()
    with pytest.raises(PenstockTimeout, match=r"0\.03 s"):
        ends[0].recv(0.03)
    assert time.monotonic() - began >= 0.03
    with pytest.raises(BlockingIOError):
        ends[0].recv_nowait()


def test_a_closed_peer_is_the_end_after_its_last_message(ends):
    first, second = ends
    first.send(Number(1))
    first.close()
    assert second.recv(WAIT) == (Number(1), [])
    assert second.recv(WAIT) is None
    assert second.recv_nowait() is None
    with pytest.raises(NotConnectedError):
        second.send(Number(2))


def test_a_peer_that_closed_without_reading_is_an_end_as_well(ends):
    first, second = ends
    second.send(Number(1))
    first.close()
    assert second.recv(WAIT) is None


def test_a_closed_channel_refuses_every_use(ends):
    end = ends[0]
    end.close()
    end.close()
    assert end.closed
    assert end.fileno() == -1
    for use in (lambda: end.send(Number(1)), lambda: end.send_nowait(Number(1)),
                lambda: end.recv(0), end.recv_nowait, end.peer):  # fmt: skip
        with pytest.raises(ClosedError):
            use()


def test_a_peer_that_does_not_read_bounds_the_sender_and_gets_each_message_once(ends):
    first, second = ends
    sent = fill(first)
    assert sent > 0
    began = time.monotonic()
    with pytest.raises(PenstockTimeout, match=f"pid {os.getpid()}.*Number"):
        first.send(Number(sent), timeout=0.05)
    assert 0.05 <= time.monotonic() - began < WAIT
    assert [second.recv_nowait() for _ in range(sent)] == [(Number(n), []) for n in range(sent)]
    with pytest.raises(BlockingIOError):
        second.recv_nowait()
    first.send(Number(sent), timeout=0.05)
    assert second.recv(WAIT) == (Number(sent), [])


# --- what is no message -------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data",
    [
        b"\xc1", b"\x00", b"{}", b"\x80", b"\x91" * 60000,
        msgspec.msgpack.encode(Unknown()),
        msgspec.msgpack.encode({"type": "number"}),
        msgspec.msgpack.encode({"type": "number", "number": "1"}),
        msgspec.msgpack.encode({"type": "text", "text": b"\xff"}),
        b"\x82\xa4type\xa4text\xa4text\xa1\xff",  # a string that is no UTF-8
        b"\x82\xa4type\xa6number\xa1x" + b"\x91" * 50000,  # nested too deep to pass over
        msgspec.msgpack.encode(Number(1)) + b"\x00",
        msgspec.msgpack.encode(Number(1))[:-1],
        b"x" * (channel.MESSAGE_BYTES_MAX + 1),
        b"",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_with_its_descriptors_and_the_next_one_read(raw, data):
    sock, receiver = raw
    sock.sendmsg([data])
    sock.sendmsg([data], rights([0, 1, 2]))
    sock.sendmsg([msgspec.msgpack.encode(Number(7))])
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        with pytest.raises(ChannelError):
            receiver.recv(WAIT)
    assert os.listdir("/proc/self/fd") == before
    assert receiver.recv(WAIT) == (Number(7), [])


def test_a_message_over_the_bound_is_refused_even_where_its_beginning_is_one(raw):
    sock, receiver = raw
    overhead = len(msgspec.msgpack.encode(Text("x" * 40000))) - 40000
    whole = msgspec.msgpack.encode(Text("x" * (channel.MESSAGE_BYTES_MAX - overhead)))
    sock.sendmsg([whole + b"\0"])
    with pytest.raises(ChannelError, match=f"MESSAGE_BYTES_MAX={channel.MESSAGE_BYTES_MAX}"):
        receiver.recv(WAIT)


@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_a_message_or_refused(data):
    sock, ours = channel.pair()
    with sock, Channel(ours, inbound=Text | Number) as receiver:
        sock.sendmsg([data], rights([0]))
        try:
            arrived = receiver.recv(WAIT)
        except ChannelError:
            return
        assert arrived is not None
        message, fds = arrived
        channel.close_fds(fds)
        assert isinstance(message, Text | Number)


@pytest.mark.parametrize("count", [channel.FDS_MAX + 1, 253])
def test_too_many_descriptors_are_refused_and_closed(raw, count):
    sock, receiver = raw
    message = [msgspec.msgpack.encode(Number(1))]
    before = os.listdir("/proc/self/fd")
    sock.sendmsg(message, rights([0] * count))
    with pytest.raises(ChannelError, match="FDS_MAX"):
        receiver.recv(WAIT)
    assert os.listdir("/proc/self/fd") == before


def test_running_out_of_descriptors_on_receipt_names_the_limit_and_leaks_nothing():
    code = """
import os, resource
import msgspec
from penstock.core.errors import ResourceLimitError
from penstock.ipc import channel

class Number(msgspec.Struct, tag="number"):
    number: int

first, second = [channel.Channel(sock, inbound=Number) for sock in channel.pair()]
first.send(Number(1), [0, 1, 2])
highest = os.open("/dev/null", os.O_RDONLY)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))  # room for one
for attempt in (lambda: second.recv(5), channel.pair):
    try:
        attempt()
    except ResourceLimitError as error:
        print("RLIMIT_NOFILE" in str(error), end=" ")
os.close(os.dup(0))  # the one place is free again
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True,
                          text=True, timeout=30)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


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
