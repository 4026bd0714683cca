"""Remote consumers without a network: `FetchHandler` over a real log, and clients that hold it to
the protocol. What is posted goes through the codec, as it would over the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from partition_fixture import Partition
from store_crash import memory
from unit.core.log_helpers import TOPIC

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.columns import decode
from penstock.core.header import BatchHeader, checked
from penstock.core.storage import Buffer
from penstock.ipc import clients as client_table
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.gateway.fetch import FetchHandler, FetchLimits
from penstock.server.gateway.membership import Membership
from penstock.server.gateway.partition_states import Known, PageStates

SLOTS = 64


def folder_in(root: object) -> str:
    """Where the partition's log lies in a data folder."""
    return f"{root}/{TOPIC.hex()}-0"


def heads_of(payload: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches that stand back to back there, each of them whole."""
    at = 0
    while at < len(payload):
        head = checked(payload, at)
        assert at + head.length <= len(payload), "not whole batches"
        yield at, head
        at += head.length


class Session:
    """What an endpoint's attachment is to fetching: two tables."""

    def __init__(self, state: Any, slot: ClientSlot | None) -> None:
        self.state = state
        self.slot = slot


class Peer:
    def __init__(self) -> None:
        self.principal = "alice"
        self.has_room = True
        self.is_gone = False
        self.charged = 0
        self.clients: dict[int, Client] = {}

    def send(self, head: bytes, payload: Any = None) -> bool:
        if self.is_gone:
            return False
        frames = [head] if payload is None else [head, payload]
        message: Any
        message, body = codec.from_gateway(frames)
        self.clients[message.endpoint].take(message, b"" if body is None else bytes(body))
        return True

    def charge(self, cost: int = 1) -> None:
        self.charged += cost


class Client(GatewayEndpoint):
    """An endpoint and the consumer at its other end, which keeps what came."""

    def __init__(
        self, number: int, peer: Peer, session: Session, kind: int, states: PageStates
    ) -> None:
        its_peer: Any = peer
        peer.clients[number] = self
        its_session: Any = session
        super().__init__(its_peer, number, kind, f"client-{number}")
        self.session = its_session
        self.states = states
        self.came: list[Any] = []
        self.pages: dict[int, fr.PageState] = {}
        self.epochs: dict[int, list[tuple[int, int]]] = {}
        self.cursors: dict[int, Reading] = {}
        self.order: list[tuple[int, int]] = []  # (cursor, bytes) of every payload

    def take(self, got: Any, body: bytes) -> None:
        self.came.append(got)
        for state in getattr(got, "pages", []):
            self.pages[state.page] = state
            if state.epochs:
                self.epochs[state.page] = state.epochs
        if isinstance(got, fr.Fetched):
            self.cursors[got.cursor].put(got, body)
            self.order.append((got.cursor, len(body)))
        if isinstance(got, fr.CursorFailed):
            self.cursors[got.cursor].failed = got

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.came if isinstance(message, kind)]


class Reading:
    """A cursor at the client: what came, in order, and the credit that is left."""

    def __init__(self, offset: int, credit: int, epoch: int) -> None:
        self.offset = offset
        self.epoch = epoch  # of the log up to there
        self.credit = credit
        self.records: list[Any] = []
        self.aborted = 0
        self.owed: list[int] = []
        self.failed: fr.CursorFailed | None = None
        self.messages = 0

    def put(self, message: fr.Fetched, payload: bytes) -> None:
        assert self.failed is None
        assert message.start == self.offset
        assert message.next_offset > message.start
        self.messages += 1
        self.aborted += message.aborted
        assert (self.credit > 0) or not payload, "sent without credit"
        for at, head in heads_of(payload):
            columns = decode(memoryview(payload), at, head)
            start = columns.first_at(self.offset)
            rows = zip(
                columns.offsets[start:].tolist(), columns.values[start:].to_list(), strict=True
            )
            self.records += [row for row in rows if row[0] < message.next_offset]
        if payload:
            last = head.length
            self.credit -= len(payload)
            assert self.credit > -last, "over the credit by more than a batch"
            self.owed.append(len(payload))
        self.offset, self.epoch = message.next_offset, message.leader_epoch

    def take(self) -> int:
        """All that came is consumed; what More is to say."""
        owed = sum(self.owed)
        self.owed.clear()
        self.credit += owed
        return owed


class Gateway:
    """Fetching for the clients of one partition world, on a clock of its own."""

    def __init__(
        self, at: Partition, limits: FetchLimits | None = None,
        membership: Membership | None = None, **hooks: Any,
    ) -> None:  # fmt: skip
        self.at = at
        self.now = 100.0
        fd, self.clients = memory(lo.client_table_bytes(SLOTS))
        os.close(fd)
        client_table.format_table(self.clients, SLOTS)
        assert at.folder == folder_in(os.path.dirname(at.folder))
        self.counts = GatewayCounts()
        self.known = Known(os.path.dirname(at.folder), at.storage, membership)
        self.names = {TOPIC: "t"}
        hooks = {
            "allow": lambda *_: 0.0,
            "may_read": lambda *_: None,
            "may_know": lambda *_: True,
            "failed": self._failed,
        } | hooks
        self.fetching = FetchHandler(self.known, self.names.get, self.counts, limits, **hooks)
        self.count = 0
        self.ended: list[tuple[Client, str]] = []

    def _failed(self, endpoint: Any, why: str) -> None:
        self.fetching.gone(endpoint)
        self.ended.append((endpoint, why))

    def client(
        self, peer: Peer | None = None, kind: int = lo.KIND_CONSUMER, *, slot: bool = True,
        state: Region | None = None,
    ) -> Client:  # fmt: skip
        place = None
        if slot:
            place = ClientSlot(self.clients, self.count)
            place.assign(1, 1, kind)
        self.count += 1
        state = state or self.at.region
        session = Session(state, place)
        states = PageStates(state, self.known, wide=kind == lo.KIND_ADMIN)
        return Client(self.count, peer or Peer(), session, kind, states)

    def fetch(
        self, client: Client, offset: int = 0, *, cursor: int = 1, credit: int = 1 << 20,
        committed: bool = False, leader_epoch: int = -1, page: int | None = None,
        topic_id: bytes = TOPIC,
    ) -> Reading:  # fmt: skip
        client.cursors[cursor] = reading = Reading(offset, credit, leader_epoch)
        index = self.at.page.index if page is None else page
        message = fr.Fetch(
            client.number, cursor, index, topic_id, 0, offset, leader_epoch, committed, credit
        )
        decoded, _ = codec.from_client([codec.encode(message)])
        assert isinstance(decoded, fr.Fetch)
        self.fetching.fetch(client, decoded)
        return reading

    def more(self, client: Client, cursor: int = 1, credit: int | None = None) -> None:
        if credit is None:
            credit = client.cursors[cursor].take()
        else:
            client.cursors[cursor].credit += credit
        if credit:
            self.fetching.more(client, fr.More(client.number, cursor, credit))

    def turn(self, after: float = 0.0) -> float | None:
        self.now += after
        return self.fetching.turn(self.now)

    def settle(self, *clients: Client) -> None:
        """Rounds until nothing is left to send; what came is consumed."""
        for _ in range(10_000):
            wants = self.turn()
            owed = False
            for client in clients:
                for number, reading in client.cursors.items():
                    if reading.owed and reading.failed is None:
                        self.more(client, number)
                        owed = True
            if wants != 0.0 and not owed:
                return
        raise AssertionError("it sends for ever")
