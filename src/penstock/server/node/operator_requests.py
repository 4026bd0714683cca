"""Serves operators' requests to this node: attached clients, the removal of one, its settings.

A removed client gets the reason, and may come back: only the access list and the keys can keep it
away. Its resources stay as after a broken connection: lanes are drained or resumed, members of
groups have their session timeout. The node's own processes are no clients here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.core.errors import ConfigError
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.server.node.attach_server import Answer, Reply
from penstock.server.node.attached_client import KINDS, AttachedClient
from penstock.server.node.client_registry import ClientRegistry
from penstock.server.node.live_settings import LiveSettings

logger = logging.getLogger("penstock.node")


class OperatorRequests:
    """`lost` is told of a client whose connection was ended. `broker`: this one's number, None for
    a node that is alone."""

    def __init__(
        self,
        attached: ClientRegistry,
        settings: LiveSettings,
        broker: int | None,
        lost: Callable[[AttachedClient], None],
    ) -> None:
        self._attached = attached
        self._settings = settings
        self._broker = broker
        self._lost = lost
        self.kicked = 0

    def answer(self, asker: AttachedClient, request: op.Request) -> Answer:
        if request.broker not in (None, self._broker):
            here = "this node is alone" if self._broker is None else f"this is {self._broker}"
            raise ConfigError(
                f"broker {request.broker} answers for itself, and {here}: connect to the "
                "cluster by tcp://HOST:PORT, which finds each of its brokers"
            )
        match request:
            case op.ListClients():
                return Reply(self._listed(request))
            case op.KickClient():
                return Reply(self._kick(asker, request.number))
            case op.DescribeSettings():
                return Reply(self._settings.described())
            case op.ChangeSettings():
                return self._settings.change(request.changes, str(asker.permits))

    def _listed(self, request: op.ListClients) -> op.Clients:
        known = self._clients()
        numbers = sorted(number for number in known if number > request.after)
        page = numbers[: op.CLIENTS_PER_PAGE]
        return op.Clients(
            [self._info(known[number]) for number in page],
            page[-1] if page else request.after,
            len(numbers) > len(page),
        )

    def _clients(self) -> dict[int, AttachedClient]:
        return {
            client.number: client
            for client in self._attached.clients
            if client.connection is not None and not self._attached.is_of_the_node(client)
        }

    def _id(self, number: int) -> str:
        return str(number) if self._broker is None else f"{self._broker}-{number}"

    def _info(self, client: AttachedClient) -> op.ClientInfo:
        remote = client.remote
        return op.ClientInfo(
            id=self._id(client.number),
            kind=KINDS[client.kind],
            client_id=client.name,
            principal=str(client.permits),
            transport="shm" if remote is None else "tcp",
            address="" if remote is None else remote.address[:100],
            pid=client.pid if remote is None else 0,
            since=client.since,
        )

    def _kick(self, asker: AttachedClient, number: int) -> ms.Done:
        client = self._clients().get(number)
        if client is None:
            raise ConfigError(
                f"no client {self._id(number)} is attached: `penstock client list` shows those "
                "that are, and a client that comes back has another id"
            )
        if client is asker:
            raise ConfigError(f"client {self._id(number)} is the one that asks: close it instead")
        assert client.connection is not None
        self.kicked += 1
        logger.info("%s sends %s away", asker.permits, client, extra=client.log_fields)
        client.connection.refuse(
            "NotConnectedError",
            f"{asker.permits} sent this {KINDS[client.kind]} away (`penstock client kick "
            f"{self._id(number)}`): connect again if that is right",
        )
        self._lost(client)
        return ms.Done()
