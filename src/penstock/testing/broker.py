"""`Broker`: a real node on a throw-away folder, for one test or for many.

Owns the folder, the node's process over stops, kills and restarts, and that nothing of it is left:
neither when the test fails nor when the process that made it is killed (see `reaper`).
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from penstock.admin import TopicConfig
from penstock.client import Client, connect
from penstock.core.errors import ConfigError, PenstockError
from penstock.embedded import EmbeddedNode
from penstock.testing import reaper, remains

Durability = Literal["os", "interval", "fsync"]
Transport = Literal["shm", "tcp"]

PREFIX: Final = "penstock-test-"
LOG_LINES: Final = 40
TRANSPORT_VARIABLE: Final = "PENSTOCK_TEST_TRANSPORT"
"""How clients of a broker reach it that was not told: "shm" (the default) or "tcp"."""


class Broker:
    """Started when made; `with` (or `close`) takes it away with all that is in it.

    Args:
        partitions: how many a topic gets that is made without saying.
        durability: the same ("os", "interval" or "fsync").
        writers: most writer processes of the node; None leaves its default.
        options: further options of the node by their names in the operations guide, such as
            `{"lanes_max": 4}`; `penstock.server` has to know them on its command line.
        listen: whether clients find it by TCP too, at `tcp_url`.
        transport: how `url` and `connect` reach it, "shm" or "tcp"; None is what the environment
            says by `PENSTOCK_TEST_TRANSPORT`, else "shm".
        start_timeout: seconds within which the node must admit clients.

    Raises `PenstockError` with the node's log when it does not start.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        durability: Durability = "os",
        writers: int | None = None,
        options: Mapping[str, object] | None = None,
        listen: bool = False,
        transport: Transport | None = None,
        start_timeout: float = 15.0,
    ) -> None:
        if durability not in ("os", "interval", "fsync"):
            raise ConfigError(f"durability={durability!r} must be 'os', 'interval' or 'fsync'")
        transport = transport or as_transport(os.environ.get(TRANSPORT_VARIABLE) or "shm")
        self.transport: Transport = as_transport(transport)
        """How `url` and `connect` reach it."""
        self._partitions = partitions
        self._durability: Durability = durability
        self._numbers = itertools.count()
        self._owner = os.getpid()
        self._node: EmbeddedNode | None = None
        self.folder = Path(tempfile.gettempdir(), PREFIX + secrets.token_hex(6)).resolve()
        """What is removed in the end: the data folder, and the node's log."""
        reaper.guard(os.fspath(self.folder))
        try:
            self.folder.mkdir(mode=0o700)
            arguments = [
                word
                for name, value in (options or {}).items()
                for word in ("--" + name.replace("_", "-"), str(value))
            ]
            self._node = EmbeddedNode(
                remains.data_folder(os.fspath(self.folder)),
                writers=writers,
                log=self.log_path,
                arguments=tuple(arguments),
                listen=listen or self.transport == "tcp",
                ready_timeout=start_timeout,
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
        """Its process. Raises `PenstockError` once the broker is closed."""
        if self._node is None:
            raise PenstockError("this broker is closed: nothing of it is left")
        return self._node

    @property
    def url(self) -> str:
        """For `penstock.connect`, and for programs under test."""
        return self.tcp_url if self.transport == "tcp" else self.node.url

    @property
    def tcp_url(self) -> str:
        """The same for remote clients, if it was made with `listen=True`."""
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

    # --- what tests ask of it ---
    def connect(self, *, client_id: str = "", timeout: float = 5.0) -> Client:
        """A client, as `penstock.connect` gives it."""
        kind: Literal["auto", "tcp"] = "tcp" if self.transport == "tcp" else "auto"
        return connect(self.url, client_id=client_id, timeout=timeout, transport=kind)

    def create_topic(
        self, name: str | None = None, *, partitions: int | None = None, **settings: Any
    ) -> str:
        """Make a topic; its name, a fresh one if none is given.

        `settings` are the fields of `TopicConfig`; what is not said is as the broker was told.
        """
        name = name or f"topic-{next(self._numbers)}"
        settings.setdefault("durability", self._durability)
        config = TopicConfig(partitions=partitions or self._partitions, **settings)
        with self.connect() as client, client.admin() as admin:
            admin.create_topic(name, config)
        return name

    # --- what tests do to it ---
    def kill_writer(self, topic: str | None = None, partition: int = 0) -> list[int]:
        """SIGKILL the writer process of that partition, or all writers of the node. Their pids.

        The node replaces them at once, and clients go on as after any such death.
        """
        with self.connect() as client, client.admin() as admin:
            pids = {info.writer: info.pid for info in admin.describe_node().writers if info.pid}
            if topic is not None:
                parts = admin.describe_topic(topic).partitions
                if not 0 <= partition < len(parts):
                    raise ConfigError(
                        f"topic {topic!r} has no partition {partition}: it has {len(parts)}"
                    )
                writer = parts[partition].writer
                pids = {writer: pids[writer]} if writer in pids else {}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        return sorted(pids.values())

    def kill(self) -> None:
        """SIGKILL the node, as a crash; its writers leave by themselves. `start` brings it back."""
        self.node.kill()

    def stop(self) -> int:
        """Have it drain, sync and close its logs; the exit status. `start` brings it back."""
        return self.node.stop()

    def start(self) -> None:
        """Start it again on what it had."""
        if self.is_running:
            raise PenstockError(f"the broker of pid {self.pid} runs already")
        self.node.start()

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

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def as_transport(name: str) -> Transport:
    """Raises `ConfigError` for a name that is none."""
    if name == "shm":
        return "shm"
    if name == "tcp":
        return "tcp"
    raise ConfigError(f"transport={name!r} must be 'shm' or 'tcp'")
