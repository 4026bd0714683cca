"""Starts the node's helper processes: forked from one that has imported what they need, or spawned.

    node --fork--> fork server --fork--> (gone at once) --fork--> helper: then the node's own child

The fork server is forked before the node has threads, secrets or descriptors of its own. It keeps
nothing but its socket, and has one thread. A helper runs only when the node is its parent (a
subreaper), so its death, its exit status and `PR_SET_PDEATHSIG` are as if it were spawned. So are
its session, its descriptors and its command line. Nothing depends on the fork server: where it is
gone, or cannot be, helpers are spawned. It ends with the node.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

import msgspec

from penstock.core.errors import PenstockError, PenstockTimeout, ResourceLimitError
from penstock.ipc.channel import Channel, close_fds, pair
from penstock.ipc.liveness import end_with_parent

logger = logging.getLogger("penstock.node")

PRELOADED: Final = "penstock.server.writer.main"
"""The module that each node needs. Others need most of its imports, and it starts no thread."""
FORK_TIMEOUT: Final = 10.0
"""Seconds within which the fork server answers; at first it may still be importing."""

_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_CHILD_SUBREAPER = 35, 14, 36
_HIGH: Final = 256
"""Descriptors go up to there before they get their numbers, so that none takes another's."""


class HelperProcess(Protocol):
    """A process that the node started."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Its exit status, as `subprocess.Popen` has it, once it is dead."""

    def kill(self) -> None: ...


Start = Callable[[Sequence[str], Sequence[int]], HelperProcess]
"""Starts a command that inherits these descriptors under their numbers, in a session of its own."""


def spawn(command: Sequence[str], fds: Sequence[int]) -> HelperProcess:
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True)


class ForkedProcess:
    """A helper that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


class Fork(msgspec.Struct, tag=True):
    """The node wants `python -m MODULE WORDS...` with these numbers of the descriptors sent."""

    module: str
    words: list[str]
    fds: list[int]


class Forked(msgspec.Struct, tag=True):
    """It is there, and a child of the node."""

    pid: int


class NotForked(msgspec.Struct, tag=True):
    """The system refused it."""

    reason: str


class ForkServer:
    """The node's side."""

    def __init__(self, channel: Channel | None, pid: int) -> None:
        self._channel = channel
        self.pid = pid
        """0: there is none, and helpers are spawned."""

    @classmethod
    def begin(cls, folder: str) -> ForkServer:
        """Fork it off this process, which must not have other threads. `folder`: the data folder,
        for its command line."""
        node = os.getpid()
        if len(os.listdir("/proc/self/task")) > 1 or not _adopt_orphans():
            return cls(None, 0)
        ours, theirs = pair()
        try:
            pid = os.fork()
        except OSError as error:
            logger.warning("no fork server, so helper processes start slower: %s", error)
            ours.close()
            theirs.close()
            return cls(None, 0)
        if not pid:
            _serve(theirs.detach(), node, folder)
        theirs.close()
        return cls(Channel(ours, inbound=Forked | NotForked), pid)

    def start(self, command: Sequence[str], fds: Sequence[int]) -> HelperProcess:
        """As `spawn`, which does it where this cannot. Raises `PenstockError` and OSError."""
        program, option, module, *words = [*command, "", ""][: max(len(command), 3)]
        if self._channel is None or (program, option) != (sys.executable, "-m"):
            return spawn(command, fds)
        try:
            self._channel.send(Fork(module, words, list(fds)), fds)
            received = self._channel.recv(FORK_TIMEOUT)
        except PenstockTimeout as error:
            self.close()  # what it may have forked meanwhile finds its channel closed, and ends
            raise ResourceLimitError(f"the fork server does not answer: {error}") from error
        except (PenstockError, OSError) as error:
            received, why = None, str(error)
        else:
            why = "it closed its channel"
        if received is None:
            logger.warning(
                "the fork server (pid %d) is gone, so helper processes start slower: %s",
                self.pid, why, extra={"pid": self.pid, "reason": why},
            )  # fmt: skip
            self.close()
            return spawn(command, fds)
        answer, unwanted = received
        close_fds(unwanted)
        if isinstance(answer, NotForked):
            raise ResourceLimitError(f"no process can be forked: {answer.reason}")
        return ForkedProcess(answer.pid)

    def close(self) -> None:
        """End it, and none that it forked."""
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _adopt_orphans() -> bool:
    """Have orphans among this process's descendants become its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        logger.warning(
            "no fork server, so helper processes start slower: prctl: %s",
            os.strerror(ctypes.get_errno()),
        )
        return False
    return True


# --- the fork server's side ---
def _serve(fd: int, node: int, folder: str) -> NoReturn:
    status = 1
    try:
        status = _answer(fd, node, folder)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _answer(fd: int, node: int, folder: str) -> int:
    """Fork what the node wants until it is gone."""
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # as all helpers have them
        signal.signal(number, signal.SIG_IGN)
    if not end_with_parent(node, signal.SIGKILL):
        return 0
    os.setsid()
    if not _rename([sys.executable, "-m", __name__, "--data", folder]):
        logger.warning("no fork server: this kernel lets no process set its command line")
        return 0
    _let_go_of_descriptors(fd)
    logging.basicConfig(handlers=[], force=True)  # each helper has its own
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    importlib.import_module(PRELOADED)
    gc.freeze()
    from socket import socket

    channel = Channel(socket(fileno=fd), inbound=Fork)
    while (received := channel.recv(None)) is not None:
        request, fds = received
        _fork(channel, request, fds)
        close_fds(fds)
    return 0


def _let_go_of_descriptors(kept: int) -> None:
    """Close all that the node has open, but for its output."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _fork(channel: Channel, request: Fork, fds: Sequence[int]) -> None:
    """Fork one that forks the helper and is gone, so that the node adopts the helper, which waits
    for that. It does not run where nobody has told the node of it."""
    go, say_go = os.pipe()
    number, tell_number = os.pipe()
    try:
        between = os.fork()
        if not between:
            _fork_helper(request, fds, (go, say_go), tell_number, channel)
        os.close(tell_number)
        tell_number = -1
        told = os.read(number, 32)
        os.waitpid(between, 0)
        if not told:
            raise BlockingIOError(0, "fork was refused")
        channel.send(Forked(int(told)))
        os.write(say_go, b"!")
    except OSError as error:
        channel.send(NotForked(str(error)))
    finally:
        close_fds([fd for fd in (go, say_go, number, tell_number) if fd >= 0])


def _fork_helper(
    request: Fork, fds: Sequence[int], go: tuple[int, int], tell_number: int, channel: Channel
) -> NoReturn:
    try:
        if pid := os.fork():
            os.write(tell_number, b"%d" % pid)
            os._exit(0)
        os.close(go[1])
        if os.read(go[0], 1):
            channel.close()
            _become(request, fds, [go[0], tell_number])
    finally:
        os._exit(1)


def _become(request: Fork, fds: Sequence[int], unwanted: Sequence[int]) -> NoReturn:
    """Be that command, to its end."""
    status = 1
    try:
        os.setsid()
        _rename([sys.executable, "-m", request.module, *request.words])
        close_fds(unwanted)
        _number(fds, request.fds)
        gc.enable()
        sys.argv = [request.module, *request.words]
        status = _exit_status(request)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _number(fds: Sequence[int], wanted: Sequence[int]) -> None:
    """Give descriptors the numbers that the command line names."""
    high = max([_HIGH, *wanted]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for fd in fds]
    close_fds(fds)
    for fd, number in zip(moved, wanted, strict=True):
        os.dup2(fd, number)
    close_fds(moved)


def _exit_status(request: Fork) -> int:
    """Run it, and what an interpreter runs at its end."""
    try:
        status = importlib.import_module(request.module).main(request.words)
    except SystemExit as leaving:
        status = leaving.code
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of the kernel."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "start_code", "end_code", "start_data", "end_data", "start_brk", "brk",
                "start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv",
            )
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


_shown: ctypes.Array[ctypes.c_char] | None = None
"""Shown by the kernel for as long as this process lives."""


def _rename(command: Sequence[str]) -> bool:
    """Have this process's command line be that, for `ps` and for who looks for a folder's
    processes, and its environment what it is now. False: this kernel cannot do that."""
    global _shown
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(b"%b=%b\0" % pair for pair in os.environb.items())
    shown = ctypes.create_string_buffer(words + variables, len(words) + len(variables))
    at = ctypes.addressof(shown)
    middle, end = at + len(words), at + len(shown)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb", buffering=0) as file:
        rest = file.read().rpartition(b")")[2].split()  # from the third field of proc(5) on
    code_data_brk = [int(rest[field - 3]) for field in (26, 27, 45, 46, 47)]
    stack = int(rest[28 - 3])
    found = _MemoryMap(
        *code_data_brk, libc.sbrk(0), stack, at, middle, middle, end, 0, 0, 0xFFFFFFFF
    )
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(found), ctypes.sizeof(found), 0):
        return False
    _shown = shown
    return True
