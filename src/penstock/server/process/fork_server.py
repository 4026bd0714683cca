"""Starts the node's helper processes: forked from one that has imported what they need, or spawned.

    node --fork--> fork server --fork--> (gone at once) --fork--> helper: then the node's own child

The fork server is forked before the node has threads, secrets or descriptors of its own. It keeps
nothing but its socket, and has one thread. A helper runs only when the node is its parent (a
subreaper), so its death, its exit status and `PR_SET_PDEATHSIG` are as if it were spawned. So are
its session, its descriptors and its command line. Nothing depends on the fork server: where it is
gone, or cannot be, helpers are spawned. It ends with the node.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn, Protocol

import msgspec

from penstock.core.errors import PenstockError, PenstockTimeout, ResourceLimitError
from penstock.ipc.channel import Channel, close_fds, pair
from penstock.ipc.liveness import end_with_parent, raise_descriptor_limit
from penstock.server.process import forking

logger = logging.getLogger("penstock.node")

PRELOADED: Final = "penstock.server.writer.main"
"""The module that each node needs. Others need most of its imports, and it starts no thread."""
FORK_TIMEOUT: Final = 10.0
"""Seconds within which the fork server answers; at first it may still be importing."""


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
        if len(os.listdir("/proc/self/task")) > 1:
            return cls(None, 0)
        ours, theirs = pair()
        try:
            forking.adopt_orphans()
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
    raise_descriptor_limit()  # helpers get numbers of the node's
    if not forking.show([sys.executable, "-m", __name__, "--data", folder]):
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
        try:
            forking.fork_for_adoption(
                partial(_become, request, fds, channel), lambda pid: channel.send(Forked(pid))
            )
        except OSError as error:
            channel.send(NotForked(str(error)))
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


def _become(request: Fork, fds: Sequence[int], channel: Channel) -> int:
    """Be that command, to its end."""
    os.setsid()
    forking.show([sys.executable, "-m", request.module, *request.words])
    channel.close()
    forking.place(fds, request.fds)
    gc.enable()
    sys.argv = [request.module, *request.words]
    return forking.status_of(lambda: importlib.import_module(request.module).main(request.words))
