"""The demo of the web console: a node or brokers with live load, and a console of it.

Owns all of them, and ends them whatever happens.
"""

from __future__ import annotations

import selectors
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from penstock.console.config import ConsoleConfig
from penstock.console.server import ConsoleServer
from penstock.core.errors import ConfigError, PenstockTimeout
from penstock.demo.children import Child
from penstock.demo.directing import StopRequests
from penstock.testing.embedded import EmbeddedNode
from penstock.testing.embedded_cluster import EmbeddedCluster

READY_SECONDS: Final = 60.0


class ConsoleStage:
    """One run. `brokers` 0: a node that is alone. `told` hears the addresses once all is there:
    of the console, and of the node."""

    def __init__(
        self, brokers: int, keep: bool, stopping: StopRequests, told: Callable[[str, str], None]
    ) -> None:
        self._brokers = brokers
        self._keep = keep
        self._stopping = stopping
        self._told = told

    def run(self) -> str | None:
        """Runs until a signal comes; the folder, where it is kept."""
        folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with ExitStack() as stack:
            if not self._keep:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            url = self._started(stack, folder)
            load = Child("penstock.demo.live_load", url)
            stack.callback(load.end)
            if self._is_ready(load):
                server = _serving(url)
                stack.callback(server.stop)
                self._told(server.url, url)
                self._wait(load, None)
        return str(folder) if self._keep else None

    def _started(self, stack: ExitStack, folder: Path) -> str:
        if self._brokers:
            return stack.enter_context(EmbeddedCluster(self._brokers, folder=folder)).url
        return stack.enter_context(EmbeddedNode(folder / "data")).url

    def _is_ready(self, load: Child) -> bool:
        """Waits for the load; False: a signal came before."""
        if self._wait(load, READY_SECONDS):
            return True
        if self._stopping.requested:
            return False
        raise PenstockTimeout(f"the demo's load was not ready within {READY_SECONDS:g} s")

    def _wait(self, load: Child, seconds: float | None) -> bool:
        """Waits for a message of the load, or for a signal. Raises `ChildDiedError`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ)
            selector.register(load, selectors.EVENT_READ)
            for key, _ in selector.select(seconds):
                if key.fileobj is load:
                    return bool(list(load.messages()))
        return False


def _serving(url: str) -> ConsoleServer:
    """A console at the usual port, or at any free one."""
    try:
        server = ConsoleServer(ConsoleConfig(url=url))
    except ConfigError:
        server = ConsoleServer(ConsoleConfig(url=url, port=0))
    server.start()
    return server
