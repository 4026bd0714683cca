"""A server of others for one run: in a folder of the run, on free ports of this host, never left
behind. Its data goes with the folder, so it is killed and not asked."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.bench.errors import BenchError

HOST: Final = "127.0.0.1"
LIBC: Final = ctypes.CDLL(None)
PR_SET_PDEATHSIG: Final = 1
READY_WITHIN: Final = 60.0
LOOK_EVERY: Final = 0.05
LOG_BYTES: Final = 2000


@contextmanager
def serving(
    name: str,
    command: Sequence[str | Path],
    folder: Path,
    is_ready: Callable[[], bool],
    *,
    env: Mapping[str, str] | None = None,
    within: float = READY_WITHIN,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends, which begins once `is_ready`. The kernel kills it should
    this process be killed. Raises `BenchError` with the end of its log where it does not start."""
    log = folder / f"{name}.log"
    process = _started(command, folder, log, env)
    try:
        deadline = time.monotonic() + within
        while not is_ready():
            if (code := process.poll()) is not None:
                raise BenchError(f"{name} ended with status {code} at its start:\n{_end_of(log)}")
            if time.monotonic() > deadline:
                raise BenchError(f"{name} is not ready after {within:g} s:\n{_end_of(log)}")
            time.sleep(LOOK_EVERY)
        yield process
    finally:
        _end(process)


def finished(name: str, command: Sequence[str | Path], folder: Path, within: float) -> str:
    """The output of a command that ends by itself; it ends with this process, too. Raises
    `BenchError` with the end of its log where it fails, or takes longer."""
    log = folder / f"{name}.log"
    process = _started(command, folder, log, None)
    try:
        code = process.wait(within)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{name} is not done after {within:g} s:\n{_end_of(log)}") from None
    finally:
        _end(process)
    if code:
        raise BenchError(f"{name} ended with status {code}:\n{_end_of(log)}")
    return log.read_text("utf-8", "replace")


def _started(
    command: Sequence[str | Path], folder: Path, log: Path, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    owner = os.getpid()
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,  # a terminal's Ctrl-C is for the run, which then ends the server
            preexec_fn=lambda: _end_with(owner),
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with(owner: int) -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner:
        os._exit(1)


def _end_of(log: Path) -> str:
    return log.read_text("utf-8", "replace").strip()[-LOG_BYTES:]


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def said_by(*command: str | Path) -> str:
    """The output of a command, for its version; empty where it does not run."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=READY_WITHIN, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()
