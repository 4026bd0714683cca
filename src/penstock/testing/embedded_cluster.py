"""Brokers of one's own on this machine, which are one cluster: child processes, gone when their
owner is done. Used by the demo and the benchmarks; `penstock.testing.Cluster` is for tests.

Owns which ports they have. The brokers are real ones, and find each other as on hosts of their own.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from penstock.client.client import Client, connect
from penstock.core.errors import ConfigError, PenstockError
from penstock.testing.embedded import EmbeddedNode

BROKERS_MAX: Final = 9
"""So many on one machine show all there is to see."""
HERE: Final = "127.0.0.1"
CLIENTS_PORT: Final = 9640
CLUSTER_PORT: Final = 9650
VOTERS_MAX: Final = 5


class Places:
    """The addresses of the brokers 1 to `brokers` of one cluster, and their options.

    On this host each gets two free ports, which no other process gets for as long as this lives,
    also while no broker listens there. `hosts` are addresses of their own instead, with fixed
    ports.
    """

    def __init__(self, brokers: int, hosts: Sequence[str] = ()) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise ConfigError(f"brokers={brokers}: allowed are 1..{BROKERS_MAX}")
        self.numbers = range(1, brokers + 1)
        self.voters = self.numbers[: min(brokers - (brokers + 1) % 2, VOTERS_MAX)]
        """The voters: an odd number, since one more survives no more deaths."""
        self._held: list[socket.socket] = []
        self._clients: dict[int, str] = {}
        self._cluster: dict[int, str] = {}
        for number in self.numbers:
            if hosts:
                host = hosts[number - 1]
                self._clients[number] = f"{host}:{CLIENTS_PORT}"
                self._cluster[number] = f"{host}:{CLUSTER_PORT}"
            else:
                self._clients[number] = self._reserved()
                self._cluster[number] = self._reserved()

    def _reserved(self) -> str:
        """Reserves a port that is bound here, without a listener. The kernel gives it to no socket
        that asks for any port, and to one that asks for it with SO_REUSEADDR, as servers do."""
        held = socket.socket()
        self._held.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HERE, 0))
        return f"{HERE}:{held.getsockname()[1]}"

    @property
    def url(self) -> str:
        """All brokers, for `penstock.connect`."""
        return "tcp://" + ",".join(self._clients.values())

    def listen(self, number: int) -> str:
        """Returns the address where that broker serves clients."""
        return f"tcp://{self._clients[number]}"

    def options(self, number: int) -> dict[str, object]:
        """Returns the options that make a node that broker, by the names of the operations
        guide."""
        voters = ",".join(f"{each}@{self._cluster[each]}" for each in self.voters)
        return {
            "node_id": number,
            "cluster_listen": f"tcp://{self._cluster[number]}",
            "controller_quorum": voters,
        }

    def close(self) -> None:
        for held in self._held:
            held.close()


class EmbeddedCluster:
    """Start them; `with` stops them and removes what they left.

    Args:
        brokers: how many; their numbers begin at 1.
        folder: where their data folders and logs are made; None is a temporary one, which is
            removed at the end.
        writers: most writer processes of each; None leaves the default.
        arguments: further arguments of `python -m penstock.server`, for each of them.
        ready_timeout: seconds within which all must admit clients.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        folder: Path | None = None,
        writers: int | None = None,
        arguments: Sequence[str] = (),
        ready_timeout: float = 30.0,
    ) -> None:
        begun = time.monotonic()
        self.places = Places(brokers)
        self._owns_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-"))
        self.nodes: dict[int, EmbeddedNode] = {}
        try:
            for number in self.places.numbers:
                home = self.folder / f"broker-{number}"
                home.mkdir(mode=0o700, exist_ok=True)
                self.nodes[number] = EmbeddedNode(
                    home / "data",
                    writers=writers,
                    log=home / "node.log",
                    arguments=(*arguments, *as_arguments(self.places.options(number))),
                    listen=self.places.listen(number),
                    ready_timeout=ready_timeout,
                    start=False,
                )
            start_together(self.nodes)
        except BaseException:
            self.remove()
            raise
        self.started_in = time.monotonic() - begun

    @property
    def url(self) -> str:
        return self.places.url

    def connect(self, *, client_id: str = "", timeout: float = 10.0) -> Client:
        """Returns a client of all brokers."""
        return connect(self.url, client_id=client_id, timeout=timeout, transport="tcp")

    def log_path(self, number: int) -> Path:
        return self.folder / f"broker-{number}" / "node.log"

    def remove(self) -> None:
        """Stops all, side by side, then removes shared memory and (if it is temporary) the
        folder."""
        with ExitStack() as stack:
            stack.callback(self.places.close)
            if self._owns_folder:
                stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for node in self.nodes.values():
                stack.callback(node.remove)
                node.terminate()

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.remove()


def start_together(nodes: Mapping[int, EmbeddedNode]) -> None:
    """Launches all, then waits for all: a broker is ready once most of the quorum are there.

    Raises `PenstockError`, with the end of that broker's log, for the first that is not.
    """
    for node in nodes.values():
        node.launch()
    for number, node in nodes.items():
        try:
            node.await_ready()
        except PenstockError as error:
            raise PenstockError(f"broker {number}: {error}\n{node.log_tail()}".rstrip()) from error


def as_arguments(options: Mapping[str, object]) -> tuple[str, ...]:
    """Options by their names in the operations guide, as a command line has them."""
    words: list[str] = []
    for name, value in options.items():
        if value is not False:
            words.append("--" + name.replace("_", "-"))
            words += [] if value is True else [str(value)]
    return tuple(words)
