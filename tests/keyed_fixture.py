"""A node with keys, and brokers with keys, for tests of what each principal may."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import zmq
from node_helpers import children, eventually
from wire import WITHIN, Dealer

import penstock
from penstock.client.admin.access import AccessEntry
from penstock.cluster.frames import messages as fr
from penstock.security import keys
from penstock.testing import Broker, Cluster

IN_USE = "keys are in use from now on"
"""What a broker's log says then."""


class World:
    """A node with keys, of which `key` makes more. In its block it runs, and asks for keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Raw connections say nothing of themselves, however long a test takes on a busy machine.
        self.broker = Broker(listen=True, options={"client_silence_max": 120.0})
        self.key("first")

    def __enter__(self) -> World:
        with ExitStack() as stack:
            stack.enter_context(self.broker)
            eventually(lambda: IN_USE in self.log)
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def key(self, name: str, **options: Any) -> Path:
        file = self.folder / f"{name}.key"
        keys.create_key(self.broker.data, name, file, **options)
        return file

    def dealer(self, file: Path, *, hello: bool = True) -> Dealer:
        return dealer_of(self.broker.tcp_url, file, hello=hello)

    def allow(self, *lines: str) -> None:
        with self.broker.connect() as client, client.admin() as admin:
            admin.add_access(*(AccessEntry(*line.split()) for line in lines))

    def forbid(self, *lines: str) -> None:
        with self.broker.connect() as client, client.admin() as admin:
            admin.remove_access(*(AccessEntry(*line.split()) for line in lines))

    @property
    def log(self) -> str:
        return self.broker.log_path.read_text()


def connects(dealer: Dealer, within: float = 0.5) -> bool:
    dealer.socket.setsockopt(zmq.SNDTIMEO, int(within * 1000))
    try:
        dealer.say(fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "wire", dealer.incarnation))
    except zmq.Again:  # it was turned away already: there is nowhere to send to
        return False
    finally:
        dealer.socket.setsockopt(zmq.SNDTIMEO, -1)
    return bool(dealer.socket.poll(int(within * 1000)))


def dealer_of(url: str, file: Path, *, hello: bool = True, **options: Any) -> Dealer:
    """A connection with that key. A new key is looked for a few times a second at most, so a
    flood of others may be in its way."""
    key = keys.load_client_key(file)
    deadline, patience = time.monotonic() + WITHIN, 0.5
    while time.monotonic() < deadline:
        dealer = Dealer(
            url,
            hello=False,
            curve_serverkey=key.server.encode(),
            curve_publickey=key.public.encode(),
            curve_secretkey=key.secret.encode(),
            **options,
        )
        if not hello:
            return dealer
        if connects(dealer, patience):
            said = dealer.hear_either((fr.Welcome, fr.Refused))
            if isinstance(said, fr.Welcome):
                dealer.welcome = said
                return dealer
        dealer.close()
        patience *= 2
    raise AssertionError(f"{file} lets nobody in")


def gateways(world: World) -> list[int]:
    """Processes of the node that are one."""
    found = []
    for pid in children(world.broker.pid):
        with suppress(OSError):
            if "penstock.server.gateway.main" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


class KeyedCluster:
    """Three brokers that have the same keys: one for `admin`, who may do everything, and one for
    each of `principals`, who may do what `lines` say, and anything in their `namespaces`."""

    def __init__(
        self,
        folder: Path,
        principals: Sequence[str],
        lines: Sequence[str],
        namespaces: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self._namespaces = namespaces
        keys.create_cluster_key(folder / "cluster.key")
        options = {"cluster_key": str(folder / "cluster.key")}
        self.cluster = Cluster(brokers=3, writers=2, options=options)
        try:
            self._limit(lines)
            self._make_keys(("admin", *principals))
        except BaseException:
            self.cluster.close()
            raise

    def _limit(self, lines: Sequence[str]) -> None:
        """All at once, since the first entry denies what no other one allows."""
        kinds = ("topic", "group", "transactional_id", "cluster")
        lines = [*(f"admin allow all {kind} *" for kind in kinds), *lines]
        with self.cluster.connect(timeout=WITHIN) as client, client.admin() as admin:
            admin.add_access(*(AccessEntry(*line.split()) for line in lines))

    def _make_keys(self, names: Sequence[str]) -> None:
        first, *others = self.cluster.brokers
        for name in names:
            space = self._namespaces.get(name)
            keys.create_key(first.data, name, self.file(name), namespace=space)
        for other in others:
            shutil.copytree(Path(first.data, "keys"), Path(other.data, "keys"))
        logs = [each.log_path for each in self.cluster.brokers]
        eventually(lambda: all(IN_USE in log.read_text() for log in logs), "keys")

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def connect(self, name: str) -> penstock.Client:
        return penstock.connect(self.cluster.url, keys=self.file(name), timeout=WITHIN)

    def dealer(self, name: str, broker: int) -> Dealer:
        return dealer_of(self.cluster.broker(broker).tcp_url, self.file(name))
