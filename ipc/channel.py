"""Typed messages with descriptors between processes of one host, over AF_UNIX SOCK_SEQPACKET.

Owns the socket, the codec and the bounds of a message, and how the node's address is taken and
found. Knows nothing of what the messages mean. The receiver of a message owns its descriptors;
those of a refused message are closed here.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import os
import select
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from penstock.core.errors import (
    ClosedError,
    ConfigError,
    DataFolderError,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
)
from penstock.ipc.liveness import descriptor_limit_error
from penstock.ipc.machine import check_machine
from penstock.ipc.waits import Wait, Waits, run

MESSAGE_BYTES_MAX: Final = 60 * 1024  # well below the kernel's default socket buffer
FDS_MAX: Final = 80
BACKLOG: Final = 128
SEND_TIMEOUT: Final = 5.0
SEND_RETRY: Final = 0.002  # while the peer's buffer is full
RECEIVE_LOOK: Final = 60.0  # a wait without a bound looks again so often
CONNECT_RETRY: Final = 0.005  # while the node's backlog is full, which cannot be polled for
ADDRESS_LOCK_TIMEOUT: Final = 5.0
SUN_PATH_MAX: Final = 107

_ANCILLARY_BYTES = socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize)
_RECEIVE: Final = ((MESSAGE_BYTES_MAX,), (_ANCILLARY_BYTES,), (socket.MSG_CMSG_CLOEXEC,))
_UCRED = struct.Struct("iII")
_ENCODER = msgspec.msgpack.Encoder()


class ChannelError(PenstockError):
    """A message is malformed, truncated or over a bound. The peer is not to be trusted further."""


class PeerCredentials(NamedTuple):
    """The peer's process at connect or listen, as the kernel saw it then. Pid 0: not visible
    here."""

    pid: int
    uid: int
    gid: int


@lru_cache(maxsize=16)
def _decoder(inbound: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(inbound)


class Channel:
    """One connection. `inbound` is the union of the tagged structs that the peer may send.

    The socket is non-blocking from here on. `recv` and `send` wait with a bound, `receiving` and
    `sending` let another one wait (see `penstock.ipc.waits`); `recv_nowait` and `send_nowait` raise
    BlockingIOError instead of waiting.

    A signal's handler may raise behind any call, so what the kernel did is noted by the very call
    that had it do that: `sent` and `taken` always tell how many messages have gone and come.
    """

    __slots__ = ("_decoder", "_inbox", "_log", "_numbers", "_sock", "taken")

    def __init__(self, sock: socket.socket, inbound: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = _decoder(inbound)
        self._numbers = itertools.count(1)
        self._log: deque[tuple[int, int]] = deque(maxlen=1)  # bytes and number of the last one
        self._inbox: deque[tuple[bytes, list[tuple[int, int, bytes]], int, Any]] = deque()
        self.taken = 0

    @property
    def sent(self) -> int:
        """How many messages have gone."""
        return self._log[0][1] if self._log else 0

    def fileno(self) -> int:
        """-1 once closed."""
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def peer(self) -> PeerCredentials:
        self._check_open()
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return PeerCredentials._make(_UCRED.unpack(credentials))

    def send_nowait(self, obj: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Sends one message whole; BlockingIOError while the peer's buffer is full."""
        self._send(_encode(obj, fds), fds)

    def send(
        self, obj: msgspec.Struct, fds: Sequence[int] = (), timeout: float = SEND_TIMEOUT
    ) -> None:
        """Sends one message whole. The descriptors stay the caller's; the peer gets duplicates.

        PenstockTimeout when the peer does not read for `timeout` seconds (nothing was sent then),
        NotConnectedError when it is gone.
        """
        run(self.sending(obj, fds, timeout))

    def sending(
        self, obj: msgspec.Struct, fds: Sequence[int] = (), timeout: float = SEND_TIMEOUT
    ) -> Waits[None]:
        """`send`, with the waiting left to another one."""
        data = _encode(obj, fds)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._send(data, fds)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PenstockTimeout(
                        f"the peer (pid {self.peer().pid}) has not read its messages for "
                        f"{timeout:g} s, so {type(obj).__name__} was not sent"
                    ) from None
            yield Wait(min(left, SEND_RETRY))

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        self._check_open()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sends = map(self._sock.sendmsg, ([data],), (rights,), (socket.MSG_NOSIGNAL,))
            self._log.extend(zip(sends, self._numbers, strict=False))
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise NotConnectedError("the peer has closed this channel") from error
            if error.errno == errno.ETOOMANYREFS:
                raise descriptor_limit_error(
                    "sending descriptors (too many are under way, unread by their receivers)"
                ) from error
            if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                raise ResourceLimitError(
                    f"no kernel memory for a message of {len(data)} bytes"
                ) from error
            raise

    def recv(self, timeout: float | None) -> tuple[Any, list[int]] | None:
        """The next message and its descriptors (close-on-exec); None when the peer has closed.

        PenstockTimeout after `timeout` seconds (None: without bound), ChannelError for a message
        that cannot be one.
        """
        return run(self.receiving(timeout))

    def receiving(self, timeout: float | None) -> Waits[tuple[Any, list[int]] | None]:
        """`recv`, with the waiting left to another one."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self.recv_nowait()
            except BlockingIOError:
                left = RECEIVE_LOOK if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise PenstockTimeout(f"no message came for {timeout:g} s") from None
            yield Wait(left, self)

    def recv_nowait(self) -> tuple[Any, list[int]] | None:
        """As `recv`, but BlockingIOError when nothing is there."""
        self._check_open()
        if not self._inbox:
            try:
                self._inbox.extend(map(self._sock.recvmsg, *_RECEIVE))
            except ConnectionResetError:  # the peer closed with messages of ours unread
                return None
        data, ancillary, flags, _ = self._inbox[0]
        fds = _received_fds(ancillary)
        try:
            if not data and not fds and self._is_hung_up():
                self._inbox = deque()
                return None
            message = self._decode(data, flags, len(fds))
        except Exception:
            self._inbox, self.taken = deque(), self.taken + 1
            close_fds(fds)
            raise
        self._inbox, self.taken = deque(), self.taken + 1
        return message, fds

    def _decode(self, data: bytes, flags: int, fds: int) -> Any:
        if flags & socket.MSG_TRUNC:
            raise ChannelError(f"a message is over the bound MESSAGE_BYTES_MAX={MESSAGE_BYTES_MAX}")
        if flags & socket.MSG_CTRUNC:
            if fds < FDS_MAX:  # there was room for more, but not in our table
                raise descriptor_limit_error("receiving descriptors")
            raise ChannelError(f"a message carries more descriptors than FDS_MAX={FDS_MAX}")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ChannelError(f"a message of {len(data)} bytes is malformed: {error}") from error

    def _is_hung_up(self) -> bool:
        """Tells the end from a message of no bytes, which read alike."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _check_open(self) -> None:
        if self._sock.fileno() < 0:
            raise ClosedError("this channel is closed")

    def end(self) -> None:
        """Say no more: the peer comes to the end, and may still speak."""
        with contextlib.suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()
        inbox, self._inbox = self._inbox, deque()
        for _, ancillary, _, _ in inbox:
            close_fds(_received_fds(ancillary))

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encode(obj: msgspec.Struct, fds: Sequence[int]) -> bytes:
    data = _ENCODER.encode(obj)
    if len(data) > MESSAGE_BYTES_MAX:
        raise ChannelError(
            f"{type(obj).__name__} takes {len(data)} bytes, over MESSAGE_BYTES_MAX="
            f"{MESSAGE_BYTES_MAX}: page it"
        )
    if len(fds) > FDS_MAX:
        raise ChannelError(f"{len(fds)} descriptors in one message are over FDS_MAX={FDS_MAX}")
    return data


def _received_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def close_fds(fds: Sequence[int]) -> None:
    """Closes received descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, for a parent and the child that it is about to start."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise _translated(error, "making a socket pair") from error


def _translated(error: OSError, doing: str) -> Exception:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return descriptor_limit_error(doing)
    return error


def _socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise _translated(error, "making a socket") from error


class _Address:
    """A path as the kernel takes it: one over 107 bytes goes by its folder's open descriptor."""

    def __init__(self, path: str) -> None:
        self._folder = -1
        self.text = path
        if len(os.fsencode(path)) > SUN_PATH_MAX:
            folder, name = os.path.split(path)
            try:
                self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise _translated(error, f"opening {folder}") from error
            self.text = f"/proc/self/fd/{self._folder}/{name}"
            if len(os.fsencode(self.text)) > SUN_PATH_MAX:
                os.close(self._folder)
                raise ConfigError(f"{name!r} is too long for the name of a socket")

    def __enter__(self) -> str:
        return self.text

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)


def listen(path: str | os.PathLike[str], backlog: int = BACKLOG) -> socket.socket:
    """Takes the address `path`: a non-blocking listening socket, its file 0600 from the start.

    Its folder must be ours alone. Replaces the socket file of a dead node. Raises DataFolderError
    if something answers, and ConfigError if the folder or the file is not as it should be.
    """
    from penstock.ipc.paths import private_folder  # clients and writers do without pathlib

    path = os.fspath(path)
    folder = private_folder(os.path.dirname(os.path.abspath(path)))
    # Two nodes may find the same stale file at once. Without this lock the second one would remove
    # what the first has bound in the meantime.
    lock = _lock_folder(folder)
    sock = None
    try:
        _remove_stale(path)
        sock = _socket()
        os.fchmod(sock.fileno(), 0o600)  # bind takes the file's mode from here: no moment of 0755
        with _Address(path) as address:
            sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    finally:
        os.close(lock)
    return sock


def _lock_folder(folder: str) -> int:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _translated(error, f"opening {folder}") from error
    deadline = time.monotonic() + ADDRESS_LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                raise PenstockTimeout(
                    f"another process has held the lock of {folder} for {ADDRESS_LOCK_TIMEOUT:g} s "
                    "while it takes its address"
                ) from None
            time.sleep(CONNECT_RETRY)
        except BaseException:
            os.close(fd)
            raise


def _remove_stale(path: str) -> None:
    """Removes the socket file of a dead node: one to which connecting is refused, nothing else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} is no socket and is left alone: the node cannot listen there")
    with _socket() as probe:
        probe.setblocking(False)  # a full backlog answers too, by EAGAIN
        try:
            with _Address(path) as address:
                probe.connect(address)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConfigError(f"cannot tell whether a node answers at {path}: {error}") from error
    raise DataFolderError(
        f"another node answers at {path}: stop it first, or start this one under another name "
        "and data folder"
    )


def connect(path: str | os.PathLike[str], timeout: float) -> socket.socket:
    """Connect to the node that listens at `path`; NotConnectedError when none does.

    `timeout` bounds the wait for a node that is there but does not accept.
    """
    return run(connecting(path, timeout))


def connecting(path: str | os.PathLike[str], timeout: float) -> Waits[socket.socket]:
    """`connect`, with the waiting left to another one."""
    check_machine()
    path = os.fspath(path)
    sock = _socket()
    try:
        sock.setblocking(False)
        try:
            place = _Address(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise _no_node(path, error) from None
        with place as address:
            yield from _connect(sock, address, path, timeout)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(sock: socket.socket, address: str, path: str, timeout: float) -> Waits[None]:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return sock.connect(address)
        except BlockingIOError:
            pass
        except PermissionError as error:
            raise NotConnectedError(
                f"this user (uid {os.geteuid()}) may not connect to {path}: a node serves the user "
                "that runs it; others connect by tcp://"
            ) from error
        except OSError as error:
            raise _no_node(path, error) from None
        if time.monotonic() >= deadline:
            raise NotConnectedError(
                f"the node at {path} has not accepted a connection for {timeout:g} s: it is "
                "stopped or overloaded"
            )
        yield Wait(CONNECT_RETRY)


def _no_node(path: str, error: OSError) -> NotConnectedError:
    from penstock.ipc.paths import serve_command  # as above

    return NotConnectedError(
        f"no node answers at {path} ({error.strerror}): start one with `{serve_command(path)}`, or "
        "name a running one by shm://NAME or shm:///DATA/FOLDER"
    )
