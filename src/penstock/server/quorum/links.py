"""The control link: this broker's connections to all others, and theirs to it.

Each broker connects to each other one that it knows of, and a message goes by either of the two
connections that is up. So a broker that comes back is heard at once, also where the others wait
before they try it again. Messages that cannot be sent are dropped and counted; their senders send
them again.

Both sides check the other one: its number, its cluster, and whether it has lost its data folder
since. A member with a vote must not lose it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq

from penstock.cluster.controller.records import METADATA_VERSION
from penstock.core.errors import AttachRefusedError, PenstockError, UnsupportedVersionError
from penstock.security.keys import ServerKey
from penstock.server.quorum import messages as qm
from penstock.server.quorum.connector import Dial
from penstock.server.quorum.listener import QuorumListener
from penstock.server.quorum.sockets import Context
from penstock.version import __version__

logger = logging.getLogger("penstock.quorum")

SILENCE: Final = 2.0
"""Seconds without a sign of life after which a connection is given up."""
PEERS_MAX: Final = 1_000


class BrokerRelease(NamedTuple):
    """The version of a broker's software. `metadata`: the newest records of the controller's log
    that it knows."""

    name: str
    metadata: int

    def __str__(self) -> str:
        return f"Penstock {self.name or 'of an older release'}"


OWN: Final = BrokerRelease(__version__, METADATA_VERSION)


class Links:
    """`is_trusted(node, folder)`: raises where a broker of that number may not have this data
    folder. `received(node, message)`."""

    def __init__(
        self,
        node: int,
        url: str,
        folder: bytes,
        life: bytes,
        key: ServerKey | None,
        *,
        cluster: Callable[[], bytes],
        is_trusted: Callable[[int, bytes], None],
        received: Callable[[int, qm.LinkMessage], None],
        lets_in: Callable[[qm.Hello], bool] = lambda _: True,
    ) -> None:
        """`lets_in`: whether a broker that greets may be one."""
        self.node = node
        self.counts: Counter[str] = Counter()
        self.loses: Callable[[int, qm.LinkMessage], bool] | None = None
        """For tests: whether a message to that broker gets lost."""
        self.hears_of_cluster = False
        """Whether somebody said the cluster's id."""
        self.releases: dict[int, BrokerRelease] = {}
        """Of the other brokers, as they greeted last."""
        self._url = url
        self._folder = folder
        self._life = life
        self._key = key
        self._cluster = cluster
        self._is_trusted = is_trusted
        self._lets_in = lets_in
        self._received = received
        self._context: Context = zmq.Context(io_threads=1)
        self._door: QuorumListener | None = None
        self._dials: dict[int, Dial] = {}

    def listen(self, url: str) -> None:
        """Raises `ConfigError`."""
        self._door = QuorumListener(
            self._context, url, self._key, SILENCE * 2, self.counts,
            admits=self._admit, received=self._take,
        )  # fmt: skip

    def know(self, peers: dict[int, str]) -> None:
        """Be connected to these, and to nobody else by this broker's own doing."""
        for node, dial in list(self._dials.items()):
            if peers.get(node) != dial.url:
                del self._dials[node]
                dial.close()
        for node, url in peers.items():
            if node != self.node and node not in self._dials and len(self._dials) < PEERS_MAX:
                self._dials[node] = Dial(
                    self._context, node, url, self._key, SILENCE, self.counts,
                    hello=self._hello, welcomed=self._welcomed, received=self._take,
                )  # fmt: skip

    def nodes(self) -> set[int]:
        """Returns the brokers that can be sent something now."""
        up = {node for node, dial in self._dials.items() if dial.is_up}
        return up | self._door.nodes() if self._door is not None else up

    def gone(self) -> list[int]:
        """Returns brokers that are not connected, and whose host says that nothing listens
        there."""
        here = self.nodes()
        return [node for node, dial in self._dials.items() if dial.is_gone and node not in here]

    def trouble(self, node: int) -> str:
        """Why a broker cannot be reached."""
        dial = self._dials.get(node)
        return dial.trouble if dial is not None else "nobody knows where it is"

    def send(self, node: int, message: qm.LinkMessage) -> bool:
        """Whether it left for there. It may get lost all the same."""
        if self.loses is not None and self.loses(node, message):
            return True
        data = qm.encode(message)
        if len(data) > qm.MESSAGE_BYTES_MAX:
            logger.error(
                "%s for broker %d has %d bytes, and may have %d: it cannot be told",
                type(message).__name__, node, len(data), qm.MESSAGE_BYTES_MAX,
            )  # fmt: skip
            self.counts["too large"] += 1
            return False
        dial = self._dials.get(node)
        is_sent = (dial is not None and dial.send(data)) or (
            self._door is not None and self._door.send(node, data)
        )
        self.counts["sent" if is_sent else "dropped"] += 1
        return is_sent

    async def close(self) -> None:
        for dial in self._dials.values():
            dial.close()
        self._dials.clear()
        if self._door is not None:
            self._door.close()
            self._door = None
        await asyncio.to_thread(self._context.term)  # nothing lingers

    # --- identities ---
    def _hello(self) -> qm.Hello:
        return qm.Hello(
            qm.LINK_VERSION, self.node, self._cluster(), self._folder, self._url, self._life,
            OWN.metadata, OWN.name,
        )  # fmt: skip

    def _admit(self, hello: qm.Hello) -> qm.Welcome:
        if not self._lets_in(hello):
            raise AttachRefusedError(
                "clients need keys here, and this broker has no cluster_key: only brokers that are "
                "in the cluster already are let in. Make a key (`penstock keys create-cluster`) "
                "and start all brokers with it"
            )
        self._check(hello)
        if hello.node == self.node:
            raise AttachRefusedError(
                f"broker {hello.node} at {hello.url} has this broker's number: give one of the two "
                "another node_id"
            )
        return qm.Welcome(
            qm.LINK_VERSION, self.node, self._cluster(), self._folder, self._life, OWN.metadata,
            OWN.name,
        )  # fmt: skip

    def _welcomed(self, node: int, welcome: qm.Welcome) -> None:
        self._check(welcome)
        if welcome.node != node:
            raise AttachRefusedError(
                f"broker {welcome.node} answers where broker {node} should be: look at "
                "controller_quorum and at node_id"
            )

    def _check(self, other: qm.Hello | qm.Welcome) -> None:
        release = BrokerRelease(other.release, other.metadata)
        if other.version != qm.LINK_VERSION:
            raise UnsupportedVersionError(
                f"broker {other.node} ({release}) speaks version {other.version} of the control "
                f"link, and broker {self.node} ({OWN}) version {qm.LINK_VERSION}: run a release on "
                "one of them that speaks the other one's"
            )
        own = self._cluster()
        if own and other.cluster and own != other.cluster:
            raise AttachRefusedError(
                f"broker {other.node} is of cluster {other.cluster.hex()}, and broker {self.node} "
                "of another one: look at controller_quorum, or at the data folders"
            )
        self._is_trusted(other.node, other.folder)
        self.hears_of_cluster |= bool(other.cluster)
        self._note(other.node, release)

    def _note(self, node: int, release: BrokerRelease) -> None:
        """Say it once where brokers do not know the same records."""
        if self.releases.get(node) == release:
            return
        self.releases[node] = release
        if release.metadata == OWN.metadata:
            return
        older = f"broker {node}" if release.metadata < OWN.metadata else "this one"
        logger.warning(
            "broker %d runs %s with metadata version %d, and this one %s with %d: %s stops once "
            "the controller's log has a record that it does not know, so upgrade it",
            node, release, release.metadata, OWN, OWN.metadata, older,
        )  # fmt: skip

    def newest(self) -> str:
        """Which of the other brokers know newer records than this one; empty where none does."""
        newer = [(n, it) for n, it in sorted(self.releases.items()) if it.metadata > OWN.metadata]
        return ", ".join(
            f"broker {n} runs {it} (metadata version {it.metadata})" for n, it in newer
        )

    def _take(self, node: int, message: qm.LinkMessage) -> None:
        self.counts["received"] += 1
        try:
            self._received(node, message)
        except PenstockError as error:
            self.counts[f"refused: {type(error).__name__}"] += 1
