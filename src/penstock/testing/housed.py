"""A node in a throw-away folder of its own: what `Broker` is, and each broker of a `Cluster`.

Owns the folder, the node's process over stops, kills and restarts, and that nothing of it is left:
neither when the test fails nor when the process that made it is killed (see `reaper`).
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from penstock.core.errors import PenstockError
from penstock.testing import reaper, remains
from penstock.testing.embedded import LOG_LINES, EmbeddedNode
from penstock.testing.embedded_cluster import as_arguments

PREFIX: Final = "penstock-test-"


class Housed:
    """Started when made, unless told not to; `with` (or `close`) takes it away with all that is in
    it.

    Raises `PenstockError` with the node's log when it does not start.
    """

    def __init__(
        self,
        *,
        writers: int | None = None,
        options: Mapping[str, object] | None = None,
        listen: str | bool | None = None,
        start_timeout: float = 15.0,
        before: Sequence[str] = (),
        start: bool = True,
        parent: Path | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._node: EmbeddedNode | None = None
        where = tempfile.gettempdir() if parent is None else parent
        self.folder = Path(where, PREFIX + secrets.token_hex(6)).resolve()
        """The folder that is removed in the end: it has the data folder and the node's log."""
        reaper.guard(os.fspath(self.folder))
        try:
            self.folder.mkdir(mode=0o700)
            self._node = EmbeddedNode(
                remains.data_folder(os.fspath(self.folder)),
                writers=writers,
                log=self.log_path,
                arguments=as_arguments(options or {}),
                listen=listen,
                ready_timeout=start_timeout,
                before=before,
                start=start,
                clock=True,
            )
        except BaseException as error:
            said = self.log_tail()
            self.close()
            if isinstance(error, PenstockError):
                raise PenstockError(f"{error}\n{said}".rstrip()) from error
            raise

    # --- what it is ---
    @property
    def node(self) -> EmbeddedNode:
        """Its process. Raises `PenstockError` once it is closed."""
        if self._node is None:
            raise PenstockError("this broker is closed: nothing of it is left")
        return self._node

    @property
    def tcp_url(self) -> str:
        """Where remote clients find it, if it was made to listen."""
        return self.node.tcp_url

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.node.data

    @property
    def pid(self) -> int:
        return self.node.pid

    @property
    def is_running(self) -> bool:
        return self._node is not None and self._node.is_running

    @property
    def log_path(self) -> Path:
        return self.folder / "node.log"

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines that node and writers logged."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-lines:])

    # --- what tests do to it ---
    def kill(self) -> None:
        """SIGKILL the node, as a crash; its writers leave by themselves. `start` brings it back."""
        self.node.kill()

    def stop(self) -> int:
        """Have it drain, sync and close its logs; the exit status. `start` brings it back."""
        return self.node.stop()

    def start(self) -> None:
        """Start it again on what it had."""
        self.check_not_running()
        self.node.start()

    def check_not_running(self) -> None:
        if self.is_running:
            raise PenstockError(f"the broker of pid {self.pid} runs already")

    def restart(self, *, kill: bool = False) -> float:
        """Stop it cleanly, or with SIGKILL, and start it again; the seconds it was away.

        Clients that live on find it again by themselves.
        """
        begun = time.monotonic()
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()
        return time.monotonic() - begun

    def advance(self, seconds: float) -> None:
        """Moves the clock of its coordinator ahead, for good: what it times is due so much sooner.
        That is delays, backoffs and leases of share groups, sessions of members that are away,
        timeouts of transactions, offsets that expire. Other clocks stay: timestamps, retention.

        Raises `PenstockError` where a running node does not say that it did."""
        self.node.advance(seconds)

    # --- the end ---
    def close(self) -> None:
        """Take away node, writers, shared memory and folder. Any number of times; in a forked child
        of the process that made it nothing happens."""
        if os.getpid() != self._owner:
            return
        node, self._node = self._node, None
        if node is not None:
            node.kill()
        if self.folder.exists():
            remains.remove(os.fspath(self.folder))
        reaper.release(os.fspath(self.folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
