"""Typed messages with descriptors, their bounds, and what is refused as no message."""

from __future__ import annotations

import array
import gc
import os
import socket
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import (
    ClosedError,
    NotConnectedError,
    PenstockTimeout,
)
from penstock.ipc import channel
from penstock.ipc.channel import Channel, ChannelError
from penstock.testing import wait_until

WAIT = 45.0


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Number(msgspec.Struct, frozen=True, tag="number"):
    number: int


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    pass


@pytest.fixture(autouse=True)
def no_leak():
    """Every descriptor that a test opens or receives is closed in the end. A thread that an earlier
    test has left may close some of its own meanwhile."""
    gc.collect()  # what earlier tests left to the collector goes before it is counted
    before = len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 5.0, "all descriptors closed")


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


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


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
    gc.collect()  # what earlier tests left to the collector goes before it is counted
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(ChannelError):
            receiver.recv(WAIT)
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, 5.0, "all of them closed")
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
    gc.collect()  # what earlier tests left to the collector goes before it is counted
    before = set(os.listdir("/proc/self/fd"))
    sock.sendmsg(message, rights([0] * count))
    with pytest.raises(ChannelError, match="FDS_MAX"):
        receiver.recv(WAIT)
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, 5.0, "all of them closed")


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
