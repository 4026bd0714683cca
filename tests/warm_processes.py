"""Starts `python -m penstock.server`, `python -m penstock.cli` and the tests' own programs: forked
from a process that has imported what they need, and not by a new interpreter that imports it (0.1
to 0.4 s of CPU, thousands of times).

`WarmPopen` takes the place of `subprocess.Popen` in processes of pytest; what it cannot fork it
spawns. `PENSTOCK_TEST_SPAWN=1` has it spawn all. What is forked is the child of the process that
forks, which is asked for its exit status, and waits for the orphans that a killed one leaves.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from penstock.ipc.channel import Channel, close_fds, pair
from penstock.server.process import forking

SPAWN: Final = "PENSTOCK_TEST_SPAWN"
WITHIN: Final = 60.0
PRELOADED: Final = {
    "penstock.server": ["argparse", "penstock.server.node.main", "penstock.server.writer.main"],
    "penstock.cli": ["penstock.cli.app", "penstock.client.client"],
}
"""Nodes have no numpy; commands and programs of tests may."""
TESTS: Final = Path(__file__).resolve().parent
NODES: Final = {str(TESTS / "crash" / "node_main.py")}
"""Programs of tests that are nodes."""


class Start(msgspec.Struct, tag=True):
    number: int
    words: list[str]
    variables: dict[str, str]
    folder: str
    fds: list[int]
    """Their numbers, of stdin, stdout and stderr first."""
    session: bool
    group: int


class Ask(msgspec.Struct, tag=True):
    """For the exit status of one."""

    number: int
    pid: int


class Answer(msgspec.Struct, tag=True):
    number: int
    pid: int
    status: int | None = None
    """None: it runs."""


class WarmServer:
    """A process that has imported a module, and forks."""

    def __init__(self, module: str) -> None:
        ours, theirs = pair()
        with theirs:
            self._process = _Popen(
                [sys.executable, __file__, module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel: Channel = Channel(ours, inbound=Answer)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.user = os.getpid()

    def start(self, *order: Any, fds: Sequence[int]) -> int:
        return self._ask(Start(next(self._numbers), *order), fds).pid

    def status(self, pid: int) -> int | None:
        return self._ask(Ask(next(self._numbers), pid)).status

    def _ask(self, order: Start | Ask, fds: Sequence[int] = ()) -> Answer:
        """Answers to what an exception interrupted are left out."""
        with self._lock:
            self._channel.send(order, fds)
            while (received := self._channel.recv(WITHIN)) is not None:
                if received[0].number == order.number:
                    answer: Answer = received[0]
                    return answer
        raise AssertionError("the warm process is gone")


_Popen = subprocess.Popen
_servers: dict[str, WarmServer] = {}
_making = threading.Lock()
_python_path = os.environ.get("PYTHONPATH", "")
"""Of what was imported."""


def warm() -> None:
    """From now on `subprocess` forks what it can."""
    if not os.environ.get(SPAWN):
        vars(subprocess)["Popen"] = WarmPopen


def preloaded_for(words: Sequence[str]) -> str | None:
    """The module whose process can become this command."""
    if words[:1] != [sys.executable]:
        return None
    if words[1:2] == ["-m"]:
        return words[2] if words[2] in PRELOADED else None
    program = Path(words[1]) if words[1:] else TESTS
    if program.suffix != ".py" or TESTS not in program.parents:
        return None
    return "penstock.server" if words[1] in NODES else "penstock.cli"


def has_our_modules(python_path: str) -> bool:
    """Whether who starts with it finds what was imported: it names this checkout or folders of this
    interpreter, and nothing of another's, nor a start of its own."""
    given, ours = (
        {Path(folder) for folder in each.split(os.pathsep) if folder}
        for each in (python_path, _python_path)
    )
    return ours <= given and all(
        any(folder.is_relative_to(home) for home in (TESTS.parent, sys.prefix, sys.base_prefix))
        and not (folder / "sitecustomize.py").exists()
        for folder in given - ours
    )


def server_of(module: str) -> WarmServer:
    with _making:
        if module not in _servers or _servers[module].user != os.getpid():
            _servers[module] = WarmServer(module)
        return _servers[module]


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, but for how the process comes to be, and who waits for it."""

    _server: WarmServer | None = None

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """As `os.waitpid`, which this is for others."""
        if self._server is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        delay = 0.0005
        while (status := self._server.status(self.pid)) is None:
            if flags & os.WNOHANG:
                return 0, 0
            delay = min(2 * delay, 0.02)
            time.sleep(delay)
        return self.pid, status

    def _internal_poll(self, *further: Any, **named: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*further, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
        cwd: Any, env: Any, startupinfo: Any, creationflags: Any, shell: Any,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
        start_new_session: Any, process_group: Any,
    ) -> None:  # fmt: skip
        words = [] if shell or isinstance(args, str | bytes) else [os.fspath(word) for word in args]
        variables = dict(os.environ if env is None else env)
        streams = [
            own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        module = preloaded_for(words)
        if (
            module is None
            or not has_our_modules(variables.get("PYTHONPATH", ""))
            or not all(isinstance(word, str) for word in [*words, *variables])
            or any(each is not None for each in (preexec_fn, gid, gids, uid))
            or umask != -1
            or not close_fds
            or any(os.isatty(fd) for fd in streams)
        ):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                restore_signals, gid, gids, uid, umask, start_new_session, process_group,
            )  # fmt: skip
            return
        numbers = sorted(pass_fds)
        order = (
            words, variables, os.fspath(cwd or os.getcwd()), [0, 1, 2, *numbers],
            bool(start_new_session), process_group,
        )  # fmt: skip
        try:
            server = server_of(module)
            self.pid = server.start(*order, fds=[*streams, *numbers])
            self._server, self._child_created = server, True
        finally:
            self._close_pipe_fds(  # type: ignore[attr-defined]
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
            )


# --- the process that forks ---
def serve(module: str, fd: int) -> None:
    for name in PRELOADED[module]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    forking.adopt_orphans()
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    channel: Channel = Channel(socket.socket(fileno=fd), inbound=Start | Ask)
    statuses: dict[int, int | None] = {}
    while True:
        ready, _, _ = select.select([channel.fileno(), wake.fileno()], [], [])
        if wake.fileno() in ready:
            wake.recv(4096)
        while (gone := _dead()) is not None:
            if gone[0] in statuses:
                statuses[gone[0]] = gone[1]
        if channel.fileno() not in ready:
            continue
        if (received := channel.recv(None)) is None:
            return
        order, fds = received
        if isinstance(order, Start):
            pid = os.fork()
            if not pid:
                leave_as(order, fds, channel, [wake, woken])
            close_fds(fds)
            statuses[pid] = None
            channel.send(Answer(order.number, pid))
        else:
            channel.send(Answer(order.number, order.pid, statuses[order.pid]))


def _dead() -> tuple[int, int] | None:
    """One that is dead, and its status, as `os.waitpid` has them."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def leave_as(
    order: Start, fds: Sequence[int], channel: Channel, unwanted: Sequence[socket.socket]
) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in unwanted:
            each.close()
        status = become(order, fds, channel)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def become(order: Start, fds: Sequence[int], channel: Channel) -> int:
    """Be that command."""
    channel.close()
    if order.session:
        os.setsid()
    elif order.group != -1:
        os.setpgid(0, order.group)
    os.environ.clear()
    os.environ.update(order.variables)
    os.chdir(order.folder)
    forking.show(order.words)
    forking.place(fds, order.fds)
    gc.unfreeze()
    sys.path[1:1] = filter(None, order.variables.get("PYTHONPATH", "").split(os.pathsep))
    if order.words[1] == "-m":
        sys.path[0], sys.argv = order.folder, order.words[2:]
        return forking.status_of(
            lambda: runpy.run_module(order.words[2], run_name="__main__", alter_sys=True) and None
        )
    sys.path[0], sys.argv = os.path.dirname(order.words[1]), order.words[1:]
    return forking.status_of(lambda: runpy.run_path(order.words[1], run_name="__main__") and None)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "src")
    serve(sys.argv[1], int(sys.argv[2]))
