"""A node of one's own: started as a child process on a data folder, gone when its owner is done.

Used by the demo, the benchmarks and tests. The node is a real one, reached by its folder's URL.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from penstock.client.client import Client, connect
from penstock.core.errors import PenstockError
from penstock.ipc.ownership import unlink_own
from penstock.testing.node_clock import ClockOfNode
from penstock.testing.processes import end_processes_on

ANY_PORT: Final = "tcp://127.0.0.1:0"
LOG_LINES: Final = 40


class EmbeddedNode:
    """Start a node; `with` stops it and removes what it left.

    Args:
        data: its data folder; None makes a temporary one that is removed at the end.
        writers: its `--writers`; None leaves the default.
        log: where its log lines go, a file or the path of one to append to; None discards them,
            unless it fails to start.
        arguments: further arguments of `python -m penstock.server`.
        listen: where clients connect by TCP, see `tcp_url`; True is any free port of this host, and
            None nowhere.
        ready_timeout: seconds within which it must admit clients.
        before: what goes before its command, such as where it is to run; it has to keep the pid.
        start: False only makes the object: `launch` and `await_ready`, or `start`, do the rest.
        clock: whether `advance` may move the clock of its coordinator.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        writers: int | None = None,
        log: IO[bytes] | Path | None = None,
        arguments: tuple[str, ...] = (),
        listen: str | bool | None = None,
        ready_timeout: float = 15.0,
        before: Sequence[str] = (),
        start: bool = True,
        clock: bool = False,
    ) -> None:
        self._owns_folder = data is None
        self.data = Path(data if data is not None else tempfile.mkdtemp(prefix="penstock-"))
        self._writers = writers
        self._log = log
        self._listen = ANY_PORT if listen is True else listen or None
        self._arguments = arguments
        self._ready_timeout = ready_timeout
        self._before = before
        self._process: subprocess.Popen[bytes] | None = None
        self._launched: _Launch | None = None
        self._terminated = False
        self.started_in = 0.0
        self._clock = ClockOfNode() if clock else None
        try:
            if start:
                self.start()
        except BaseException:
            if self._owns_folder:
                shutil.rmtree(self.data, ignore_errors=True)
            raise

    @property
    def url(self) -> str:
        return f"shm://{self.data.resolve()}"

    @property
    def tcp_url(self) -> str:
        """Returns the address for remote clients, with the real port. The same after a restart."""
        listen = self._record().get("listen") if self._listen else None
        if not listen:
            raise PenstockError("this node serves no remote clients: make it with listen=True")
        return str(listen)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PenstockError("the embedded node is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts (again) on the same folder and waits until clients are admitted; kills it if that
        fails."""
        self.launch()
        try:
            self.await_ready()
        except PenstockError:
            self.kill()
            raise

    def launch(self) -> None:
        """Starts (again) without waiting: several that need each other start side by side."""
        self._forget_launch()
        begun = time.monotonic()
        reader, writer = os.pipe()
        command = [
            *self._before, sys.executable, "-m", "penstock.server", "--data", str(self.data),
            "--ready-fd", str(writer), "--owner", str(os.getpid()), *self._arguments,
        ]  # fmt: skip
        if self._listen is not None:
            command += ["--listen", self._record().get("listen") or self._listen]
        if self._writers is not None:
            command += ["--writers", str(self._writers)]
        with ExitStack() as stack:
            stack.callback(os.close, writer)
            fds = [writer]
            if self._clock is not None:
                fds.append(stack.enter_context(self._clock.launching()))
                command += ["--clock-fd", str(fds[-1])]
            log, errors = self._log, None
            if isinstance(log, Path):
                log = stack.enter_context(log.open("ab"))
            elif log is None:
                errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the launch
            self._launched = _Launch(reader, begun, errors)
            self._terminated = False
            self._process = subprocess.Popen(
                command,
                pass_fds=fds,
                process_group=0,  # a terminal's Ctrl-C is for the owner, who then stops the node
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log or errors,
            )

    def await_ready(self, timeout: float | None = None) -> None:
        """Waits until a launched node admits clients; does nothing where it is known that it does.

        Raises `PenstockError` where it has ended, or takes longer than `timeout` (None: its
        `ready_timeout`) seconds: then it goes on.
        """
        launched, timeout = self._launched, self._ready_timeout if timeout is None else timeout
        if launched is None or self._process is None:
            return
        poller = select.poll()
        poller.register(launched.reader, select.POLLIN)
        if not poller.poll(timeout * 1000):
            why = f"did not admit clients within {timeout:g} s"
        elif os.read(launched.reader, 64):
            self.started_in = time.monotonic() - launched.begun
            self._forget_launch()
            return
        else:  # its end of the pipe is gone, and so is it
            status = self._process.wait(self._ready_timeout)
            why = f"ended with exit status {status} before it admitted clients"
        raise PenstockError(f"the node on {self.data} {why}:\n{_end_of(launched.errors)}")

    def is_ready(self) -> bool:
        """Returns whether a launched node admits clients by now. Raises `PenstockError` where it
        ended."""
        launched = self._launched
        if launched is not None:
            poller = select.poll()
            poller.register(launched.reader, select.POLLIN)
            if not poller.poll(0):
                return False
            self.await_ready(0.0)
        return True

    def advance(self, seconds: float) -> None:
        """Move the clock of its coordinator ahead, also over stops and starts. Raises
        `PenstockError` where a running node does not say that it did."""
        if self._clock is None:
            raise PenstockError("the clock of this node cannot be moved: make it with clock=True")
        self._clock.advance(seconds, is_running=self.is_running)

    def _forget_launch(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.close()

    def _ended(self) -> None:
        """Drops all that is kept for a process that runs."""
        self._forget_launch()
        if self._clock is not None:
            self._clock.close()

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Returns the last lines of its log, where that is a file of its own."""
        if not isinstance(self._log, Path) or not self._log.exists():
            return ""
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-lines:])

    def connect(self, **options: float) -> Client:
        """Returns a client of this node."""
        return connect(self.url, **options)  # type: ignore[arg-type]

    def connect_tcp(self, *, client_id: str = "", timeout: float = 5.0) -> Client:
        """Returns a client that connects as from another host."""
        return connect(self.tcp_url, client_id=client_id, timeout=timeout, transport="tcp")

    def stop(self, timeout: float = 30.0) -> int:
        """Sends SIGTERM: drain and leave. Returns the exit code; kills after `timeout` seconds."""
        if self._process is None:
            return 0
        process = self._process
        self.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self._ended()

    def terminate(self) -> None:
        """Sends SIGTERM without waiting: `stop` does that. Once: a second one lets it leave at
        once."""
        if self._process is not None and not self._terminated:
            self._terminated = True
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL, as a crash."""
        self._ended()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill_all(self) -> None:
        """Sends SIGKILL to it and all its processes, as when its host loses them."""
        self.kill()
        if not end_processes_on(str(self.data)):
            raise PenstockError(f"processes on {self.data} outlive SIGKILL")

    def remove(self) -> None:
        """Stops, then removes shared memory and (if it is temporary) the folder."""
        self.stop()
        unlink_own(str(self.data))
        if self._owns_folder:
            shutil.rmtree(self.data, ignore_errors=True)

    def _record(self) -> dict[str, Any]:
        """Returns the fields of node.json; none before there is one."""
        import msgspec

        try:
            return msgspec.json.decode((self.data / "node.json").read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            return {}

    def __enter__(self) -> EmbeddedNode:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.remove()


@dataclass(frozen=True, slots=True)
class _Launch:
    """A node that was started and is not yet known to be ready."""

    reader: int
    begun: float
    errors: IO[bytes] | None

    def close(self) -> None:
        os.close(self.reader)
        if self.errors is not None:
            self.errors.close()


def _end_of(errors: IO[bytes] | None) -> str:
    """Returns the node's output before it failed, where no other log has it."""
    if errors is None:
        return "its log says why"
    errors.seek(0)
    return errors.read().decode("utf-8", "replace").strip()[-4000:]
