"""The broker's part in the quorum, as the rest of the node sees it.

    consensus     raft: disk, timers, the committed image
    links         to all other brokers
    active        the controller, while this broker's is active
    standing      this broker: registered, heartbeats
    asking        questions to the active controller, wherever it is
    members       who belongs to the quorum
    requests      node to node

Owns their order of life and which message is whose. All of it lives on the node's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from penstock.cluster.controller import Controller, ControllerConfig, Image, Place
from penstock.cluster.raft import RaftConfig, RaftMessage
from penstock.core.errors import (
    AttachRefusedError,
    ClosedError,
    ConfigError,
    DataFolderError,
    NotLeaderError,
    PenstockError,
    ResourceLimitError,
    StorageError,
)
from penstock.security.keys import keys_in_use, load_cluster_key
from penstock.server.broker.settings import place_of
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum import identity
from penstock.server.quorum import messages as qm
from penstock.server.quorum.active_controller import Active
from penstock.server.quorum.broker_lifecycle import BrokerLifecycle
from penstock.server.quorum.controller_client import ControllerClient
from penstock.server.quorum.identity import (
    FORGOTTEN_PAUSE,
    keep_cluster,
    load_cluster,
    tell_forgotten,
)
from penstock.server.quorum.links import Links
from penstock.server.quorum.members import QuorumMembers
from penstock.server.quorum.raft_node import RaftNode
from penstock.server.quorum.raft_storage import RaftDisk
from penstock.server.quorum.requests import Handler, Requests
from penstock.server.quorum.sockets import resolved
from penstock.server.security.exposure import is_loopback

logger = logging.getLogger("penstock.quorum")

HEARTBEATS: Final = 5
"""A leader's, in an election timeout."""
LOOK: Final = 0.1
"""Seconds between two looks for brokers that are silent, join, or have other addresses."""
HAND_OVER: Final = 1.0
"""Seconds that another one may take to lead in the place of a broker that leaves."""
CLUSTER_ID: Final = ("cluster", "id")
CLUSTER_SECRET: Final = ("cluster", "secret")
ID_BYTES: Final = 16
SECRET_BYTES: Final = 32


R = TypeVar("R")


class Quorum:
    """This broker's part in the quorum of controllers. Made and used in the node's loop.

    `changed(image, places)`: the committed state changed, for these partitions at least (none: for
    brokers, topics, settings), or for everything (None). It is called only while this broker is
    current, in the loop, and must not block; the image is changed in place afterwards.
    `failed(error)`: this broker can take no part any more, because its disk failed, for example.
    The node has to stop.
    """

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        *,
        changed: Callable[[Image, set[Place] | None], None],
        failed: Callable[[PenstockError], None] | None = None,
    ) -> None:
        assert config.node_id is not None
        assert config.cluster_listen is not None
        self.node = node = config.node_id
        self._config = config
        self._folder = folder
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._cluster = b""
        self._is_closed = False
        self._is_ours = False
        """Whether the records in the folder are of this cluster."""
        self._has_forgotten, self._votes_from = False, 0.0
        """Whether its part of the controller's log is gone, and not here again yet."""
        self._looks: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Future[None] | None = None
        life = os.urandom(16)
        timeout = config.election_timeout
        self._consensus = RaftNode(
            node,
            RaftDisk(folder.storage, folder.path, node),
            RaftConfig(election_timeout=timeout, heartbeat=timeout / HEARTBEATS),
            send=self._send_raft,
            changed=self._image_changed,
            committed=lambda index, term: self._active.committed(index, term),
            turned=self._turned,
            may_begin=lambda: not (self._has_forgotten or self._links.hears_of_cluster),
            may_vote=lambda: not self._has_forgotten or self._loop.time() > self._votes_from,
            failed=self._has_failed,
            newer=lambda: self._links.newest(),
        )
        key = load_cluster_key(config.cluster_key) if config.cluster_key is not None else None
        host, _ = place_of("cluster_listen", config.cluster_listen)
        if key is None and not config.insecure and not is_loopback(host):
            raise ConfigError(
                f"cluster_listen is {config.cluster_listen!r} and cluster_key is missing: a "
                "process that reaches the port could speak as a broker"
            )
        self._links = Links(
            node,
            config.voters.get(node, config.cluster_listen),
            folder.uuid,
            life,
            key,
            cluster=lambda: self._cluster or self.cluster_id,
            is_trusted=self._check_folder,
            received=self._received,
            lets_in=lambda hello: (
                (key is not None or config.insecure or not keys_in_use(folder.path))
                or identity.is_known(hello, self.image, self._cluster or self.cluster_id)
            ),
        )
        self._membership = QuorumMembers(self._consensus, self._links, config.voters)
        self._active = Active(
            self._consensus,
            ControllerConfig(
                session_timeout=config.broker_session_timeout,
                balance_interval=config.leader_balance_interval,
            ),
            answer=self._answer,
            begins=self._begins,
            others={
                cr.RemoveMember: self._membership.remove,
                cr.Describe: lambda _: (None, self._membership.describe(self._active)),
            },
        )
        self._asking = ControllerClient(
            life,
            lambda: self.image,
            lambda: self._consensus.leader,
            self._send_ask,
            self._trouble,
        )
        self._requests = Requests(self._send_request)
        self._standing = BrokerLifecycle(
            node, folder, config.rack, config.broker_session_timeout,
            self._asking, lambda: self.image, changed,
        )  # fmt: skip

    # --- life ---
    async def start(self) -> None:
        """Read what is stored, listen, and connect. Returns before anybody leads. Raises
        `DataFolderError`, `StorageError`, `ConfigError`."""
        config, folder = self._config, self._folder
        assert config.cluster_listen is not None
        disk = RaftDisk(folder.storage, folder.path, self.node)
        self._cluster = load_cluster(folder.storage, folder.path, self.node, has_log=disk.is_there)
        voters = tuple(sorted(config.voters)) if self.node in config.voters else ()
        if folder.was_registered and not disk.is_there:
            tell_forgotten(disk.path, self.node, voters)
        try:
            own = await resolved(config.cluster_listen)
        except OSError as error:
            raise ConfigError(
                f"cluster_listen is {config.cluster_listen!r}, and no address is found for it in "
                f"time ({error}): name one of this host's, or 0.0.0.0"
            ) from error
        self._links.listen(own)
        try:
            await self._consensus.start(voters)
        except BaseException:
            await self._links.close()
            raise
        if folder.was_registered and self._consensus.is_empty:  # also where it tried before
            self._has_forgotten, self._votes_from = True, self._loop.time() + FORGOTTEN_PAUSE
        if (count := len(config.voters)) % 2 == 0:
            logger.warning(
                "controller_quorum has %d brokers, of which %d must be up: %d would survive as "
                "many deaths, and %d one more", count, count // 2 + 1, count - 1, count + 1,
            )  # fmt: skip
        self._look()

    async def close(self) -> None:
        """The end, at once: what is decided is stored, and the others hear nothing more."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._looks is not None:
            self._looks.cancel()
        self._asking.end(ClosedError(f"broker {self.node} has left the quorum"))
        await self._standing.close()
        await self._requests.close()
        await self._consensus.close()
        await self._links.close()
        if self._keeping is not None:
            with contextlib.suppress(PenstockError):
                await self._keeping

    # --- what can be asked ---
    @property
    def image(self) -> Image:
        """Of what is committed. Only `changed` says that it is for this life of the broker."""
        return self._consensus.image

    @property
    def applied(self) -> int:
        """How far in the controller's log the image is."""
        return self._consensus.applied

    @property
    def leader(self) -> int | None:
        """The broker whose controller is active, as far as this one has heard."""
        return self._consensus.leader

    @property
    def is_active(self) -> bool:
        """Whether this broker's controller is."""
        return self._active.controller is not None

    @property
    def broker_epoch(self) -> int | None:
        """Of this broker's registration; None before, and while it is not known any more."""
        return self._standing.broker_epoch

    @property
    def is_current(self) -> bool:
        """Whether the image has this broker's own registration."""
        return self._standing.is_current

    @property
    def is_fenced(self) -> bool:
        """As the controller said last: then this broker leads nothing, and may be in no ISR."""
        return self._standing.is_fenced

    @property
    def failure(self) -> PenstockError | None:
        """Why this broker takes no part any more."""
        return self._consensus.failure

    @property
    def cluster_id(self) -> bytes:
        """16 bytes, the same at all brokers; empty before the first controller was active."""
        return self.image.settings.get(CLUSTER_ID, b"")

    @property
    def cluster_secret(self) -> bytes:
        """32 bytes that the brokers share and tell nobody; empty before, as the id."""
        return self.image.settings.get(CLUSTER_SECRET, b"")

    @property
    def decided(self) -> dict[str, int]:
        """Returns the counts of decisions since this broker's controller became active; empty where
        it is not."""
        controller = self._active.controller
        return {} if controller is None else dict(controller.counts)

    def counts(self) -> dict[str, int]:
        """For metrics."""
        raft, active, storing = self._consensus.raft, self._active, self._consensus.storing
        found = {f"link {name}": count for name, count in self._links.counts.items()}
        found |= {f"log {name}": count for name, count in self._consensus.counts.items()}
        if storing is not None:
            found |= {"log syncs": storing.syncs, "log syncs_refused": storing.refusals}
        if raft is not None:
            found |= {f"raft {name}": count for name, count in raft.counts.items()}
        found |= {f"controller {name}": count for name, count in self.decided.items()}
        return found | {"asks waiting": self._asking.waiting, "answers held": active.held}

    def describe(self) -> dict[str, Any]:
        """Members, roles, terms, and lags where this broker leads: plain values."""
        return self._membership.describe(self._active)

    # --- asking ---
    async def ask(self, request: cr.QuorumRequest[R], timeout: float = 10.0) -> R:
        """Lets the active controller decide that, at any broker; or the quorum that it leads. The
        decision is in the log when this returns, and soon in every image.

        Raises what the controller raises; `ConfigError` for values that a request cannot have;
        `PenstockTimeout`, and then it may still be done; `ClosedError`.
        """
        return await self._asking.ask(request, timeout)

    async def coordinator_epoch(self, timeout: float = 10.0) -> int:
        """A number higher than all that were given before in this cluster (rule 17)."""
        return await self.ask(cr.CoordinatorEpoch(), timeout)

    async def request(self, broker: int, kind: str, body: bytes, timeout: float) -> bytes:
        """Ask another broker's node, once; see `serve`. Raises what its handler raises;
        `NotConnectedError` where it did not leave; `PenstockTimeout`, and then it may be done."""
        if broker == self.node:
            raise ConfigError(f"broker {broker} is this one: ask here")
        return await self._requests.request(broker, kind, body, timeout)

    def serve(self, kind: str, handler: Handler) -> None:
        """Have `handler(broker, body)` answer requests of that kind; one at most for each."""
        self._requests.serve(kind, handler)

    # --- this broker ---
    async def register(self, endpoints: Iterable[str], was_clean: bool) -> int:
        """This broker is there, and reached at these places: its epoch. From then on heartbeats are
        said by themselves, and it is registered again where it has to be. Waits for a controller.

        Called again with other places: a new life begins there, as with `renew`.

        `was_clean`: all that its logs ever said to others is still in them; after a power cut only
        what was synced is. The place of the control link is added as the last endpoint.

        Raises `AttachRefusedError` where another broker with this number is alive."""
        own = self._config.voters.get(self.node, self._config.cluster_listen or "")
        return await self._standing.register((*endpoints, own), was_clean=was_clean)

    def tells_of_logs(
        self, lost: tuple[Place, ...], offline: Callable[[], tuple[Place, ...]]
    ) -> None:
        """Before `register`: logs that are gone since the last life; which take nothing now."""
        self._standing.lost, self._standing.offline = lost, offline

    def renew(self) -> None:
        """A new life of this broker begins: it is fenced, and gets another epoch soon. All that the
        one before said to others counts no more; its logs have what they had."""
        self._standing.renew()

    async def leave(self, timeout: float) -> bool:
        """Have others lead what this broker leads, and the quorum: whether that was done in time.
        Then it may stop without anybody noticing. Not waited for where nobody can decide it, as
        most of the quorum are gone."""
        end = self._loop.time() + timeout
        leaving = asyncio.create_task(self._standing.leave(timeout), name="leave")
        while not leaving.done() and not self.is_hopeless:
            await asyncio.wait((leaving,), timeout=LOOK)
        if not leaving.done():
            leaving.cancel()
            await asyncio.wait((leaving,))
            return False
        await self._hand_over(min(HAND_OVER, max(0.0, end - self._loop.time())))
        return leaving.result()

    @property
    def is_hopeless(self) -> bool:
        """Whether most members with a vote are gone for certain, or this broker's part is over."""
        members, gone = self._consensus.members, self._links.gone()
        left = sum(voter not in gone for voter in members.voters)
        return self.failure is not None or left < members.quorum

    async def _hand_over(self, timeout: float) -> None:
        consensus = self._consensus
        others = [n for n in consensus.members.voters if n in self._links.nodes()]
        try:
            async with asyncio.timeout(timeout):
                while consensus.is_leader and others:
                    with contextlib.suppress(NotLeaderError):  # it is under way
                        consensus.transfer(others[0])
                    await asyncio.sleep(LOOK / 2)
        except TimeoutError:
            logger.info("no other broker leads the quorum yet: one will be elected")

    # --- messages ---
    def _received(self, node: int, message: qm.LinkMessage) -> None:
        match message:
            case qm.Consensus():
                self._consensus.receive(node, message.message)
            case qm.Ask():
                self._active.ask(node, message)
            case qm.Answer():
                self._asking.answered(message)
            case qm.Request():
                self._requests.asked(node, message)
            case qm.Response():
                self._requests.responded(node, message)
            case _:
                raise qm.LinkError(f"{type(message).__name__} is no message for a broker")

    def _send_raft(self, to: int, message: RaftMessage) -> None:
        self._links.send(to, qm.Consensus(message))

    def _send_request(self, to: int, message: qm.Request | qm.Response) -> bool:
        return self._links.send(to, message)

    def _send_ask(self, to: int, ask: qm.Ask) -> None:
        if to == self.node:
            self._active.ask(to, ask)
        else:
            self._links.send(to, ask)

    def _answer(self, to: int, answer: qm.Answer) -> None:
        if to == self.node:
            self._asking.answered(answer)
        else:
            self._links.send(to, answer)

    def _trouble(self) -> str:
        """Why no controller is known, as far as this broker can tell."""
        here, named = self._links.nodes() | {self.node}, self._config.voters
        away = [
            f"{node} ({self._links.trouble(node)}"
            f"{'' if node in named else '; it has a vote, and controller_quorum does not name it'})"
            for node in sorted({*named, *self._consensus.members.voters} - here)
        ]
        return (
            "no controller is active; most brokers of controller_quorum must be up and reach each "
            f"other. Not connected: {', '.join(away) or 'none'}"
        )

    def _check_folder(self, node: int, folder: bytes) -> None:
        """A member with a vote that has another folder has forgotten how it voted."""
        known = self.image.brokers.get(node)
        if known is None or known.folder == folder:
            return
        if node in self._consensus.members.voters:
            raise AttachRefusedError(
                f"broker {node} has another data folder than the one it voted with. Bring that one "
                f"back; or take it out of the quorum first (`penstock cluster remove {node}`)"
            )

    # --- events ---
    def _turned(self) -> None:
        self._active.turned()
        self._asking.turned()

    def _has_failed(self, error: PenstockError) -> None:
        logger.error("broker %d takes no part in the quorum any more: %s", self.node, error)
        self._asking.end(error)
        if self._failed is not None:
            self._failed(error)

    def _image_changed(self, places: set[Place] | None) -> None:
        if not self._cluster and self.cluster_id and self._keeping is None:
            self._keeping = self._loop.run_in_executor(None, self._keep_cluster, self.cluster_id)
        if self.cluster_id and not self._is_ours:
            try:
                self._folder.belongs_to(self.cluster_id)
                self._is_ours = True
            except DataFolderError as error:
                self._consensus.fail(error)
                return
            except StorageError as error:  # the next change tries again
                logger.warning("the cluster's id is not noted: %s", error)
        self._standing.image_changed(places)
        if self._standing.is_current:
            self._has_forgotten = False  # its earlier messages are in front of its registration

    def _keep_cluster(self, cluster: bytes) -> None:
        try:
            keep_cluster(self._folder.storage, self._folder.path, self.node, cluster)
        except PenstockError as error:  # the next start tries again
            logger.warning("the cluster's id cannot be kept: %s", error)

    def _begins(self, controller: Controller) -> None:
        """The first controller that is active gives the cluster its id and its secret."""
        try:
            for (kind, name), size in ((CLUSTER_ID, ID_BYTES), (CLUSTER_SECRET, SECRET_BYTES)):
                if (kind, name) not in controller.image.settings:
                    self._active.decide(controller.set(kind, name, os.urandom(size)))
        except (NotLeaderError, ResourceLimitError) as error:
            logger.warning("the cluster gets no id now: %s", error)
        self._loop.call_soon(self._look_at_once)  # mostly because the one before is gone

    def _look_at_once(self) -> None:
        if not self._is_closed:
            self._look()

    # --- time ---
    def _look(self) -> None:
        if self._looks is not None:
            self._looks.cancel()
        self._looks = self._loop.call_later(LOOK, self._look)
        if self.failure is not None:
            return
        gone = self._links.gone()
        for node in gone:
            self._consensus.gone(node)
        self._active.look(gone)
        self._membership.look()
        self._links.know(self._peers())

    def _peers(self) -> dict[int, str]:
        """Where the others are: as they registered last, or as the configuration says."""
        peers = dict(self._config.voters)
        for node, broker in self.image.brokers.items():
            if broker.endpoints:
                peers[node] = broker.endpoints[-1]
        peers.pop(self.node, None)
        return peers
