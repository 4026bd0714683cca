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
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from penstock.client import Client, connect
from penstock.core.errors import PenstockError
from penstock.ipc.shm import unlink_all

ANY_PORT: Final = "tcp://127.0.0.1:0"


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
    ) -> None:
        self._owns_folder = data is None
        self.data = Path(data if data is not None else tempfile.mkdtemp(prefix="penstock-"))
        self._writers = writers
        self._log = log
        self._listen = ANY_PORT if listen is True else listen or None
        self._arguments = arguments
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self.started_in = 0.0
        try:
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
        """Where remote clients find it, with the real port. The same after a restart."""
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
        """Start (again) on the same folder and wait until clients are admitted."""
        begun = time.monotonic()
        reader, writer = os.pipe()
        command = [
            sys.executable, "-m", "penstock.server", "--data", str(self.data), "--ready-fd",
            str(writer), "--owner", str(os.getpid()), *self._arguments,
        ]  # fmt: skip
        if self._listen is not None:
            command += ["--listen", self._record().get("listen") or self._listen]
        if self._writers is not None:
            command += ["--writers", str(self._writers)]
        # Closed below, read on failure.
        log = open(self._log, "ab") if isinstance(self._log, Path) else self._log  # noqa: SIM115
        errors = tempfile.TemporaryFile() if log is None else None  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(writer,),
                process_group=0,  # a terminal's Ctrl-C is for the owner, who then stops the node
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log or errors,
            )
            os.close(writer)
            poller = select.poll()
            poller.register(reader, select.POLLIN)
            poller.poll(self._ready_timeout * 1000)
            if not poller.poll(0) or not os.read(reader, 64):
                why = f"did not admit clients within {self._ready_timeout:g} s"
                if poller.poll(0):  # its end of the pipe is gone, and so is it
                    status = self._process.wait(self._ready_timeout)
                    why = f"ended with exit status {status} before it admitted clients"
                self.kill()
                raise PenstockError(f"the node on {self.data} {why}:\n{_end_of(errors)}")
        finally:
            os.close(reader)
            if errors is not None:
                errors.close()
            if isinstance(self._log, Path) and log is not None:
                log.close()
        self.started_in = time.monotonic() - begun

    def connect(self, **options: float) -> Client:
        """A client of this node."""
        return connect(self.url, **options)  # type: ignore[arg-type]

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM: drain and leave. Returns the exit code; kills after `timeout` seconds."""
        if self._process is None:
            return 0
        process = self._process
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        """Stop, then remove shared memory and (if it is temporary) the folder."""
        uuid = self._uuid()
        self.stop()
        if uuid is not None:
            unlink_all(uuid)
        if self._owns_folder:
            shutil.rmtree(self.data, ignore_errors=True)

    def _uuid(self) -> str | None:
        node = self._record()
        uuid = node.get("uuid") or node.get("node_uuid")
        return uuid if isinstance(uuid, str) else None

    def _record(self) -> dict[str, Any]:
        """What node.json tells; nothing before there is one."""
        import msgspec

        try:
            return msgspec.json.decode((self.data / "node.json").read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            return {}

    def __enter__(self) -> EmbeddedNode:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def _end_of(errors: IO[bytes] | None) -> str:
    """What the node said before it failed, where nobody else has it."""
    if errors is None:
        return "its log says why"
    errors.seek(0)
    return errors.read().decode("utf-8", "replace").strip()[-4000:]
