"""The wire protocol between a remote client and a gateway, message by message.

A connection (one DEALER at the client, one ROUTER at the gateway) carries many *endpoints*. An
endpoint, such as a producer, would be an attachment of its own on the node's host. The client
numbers them. Every message is one msgpack map with its tag under `type`. Payload frames may follow
it: record batches in the form of lanes and segments. Times are seconds, sizes bytes.

    client                              gateway
      Hello(versions)               ->
                                    <-  Welcome(versions, bounds)
                                    <-  Leaders(brokers, leaders), of a broker, and at each change
      Attach(endpoint, kind)        ->
                                    <-  Attached(endpoint) | Refused(endpoint)
      Ask(endpoint, request, body)  ->  ... <- Answer(endpoint, request, body, pages)
      Produce(endpoint, ...) + batch->  ... <- Acks(endpoint, writer, acks, pages)
      Fetch(endpoint, cursor, ...)  ->  ... <- Fetched(endpoint, cursor, next_offset) + batches
      More(endpoint, cursor, bytes) ->
                                    <-  Pages(endpoint, pages), Notice(endpoint), Throttled(...)
      Positions(endpoint)           ->
      Detach(endpoint)              ->
      Ping(stamp)                   ->  ... <- Pong(stamp)
                                    <-  Ended(endpoint, reason)
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

PROTOCOL_VERSION: Final = 1
APIS: Final = {
    "connection": (1, 1),
    "ask": (1, 1),
    "produce": (1, 2),
    "fetch": (1, 1),
    "cluster": (1, 1),
}
"""The versions of this build: the lowest and the highest version of each group of messages. Version
2 of `produce` has proofs, without which a gateway takes no transactional batch."""

ENDPOINTS_MAX: Final = 1024
"""Endpoints of one connection."""
POSITIONS_MAX: Final = 384
"""Partitions whose positions one endpoint may report."""
CURSORS_MAX: Final = 4096
"""Partitions that one endpoint fetches at a time."""
CLIENT_HEADER_MAX: Final = 128 << 10
GATEWAY_HEADER_MAX: Final = 1 << 20
"""Bytes of a message's first frame."""
PAYLOADS_MAX: Final = 1
NAME_BYTES_MAX: Final = 100
EPOCHS_MAX: Final = 1000
"""Leader epochs that a `PageState` tells of: the latest ones."""
CREDIT_MAX: Final = 1 << 30
NOBODY: Final = -1
"""In the place of a broker: there is none now."""

EndpointNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]
"""Offsets, sequences, stamps."""
ProducerId = Annotated[int, msgspec.Meta(ge=0)]
"""All 64 bits of it."""
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""Writers, pages, partitions, kinds, flags."""
Credit = Annotated[int, msgspec.Meta(ge=0, le=CREDIT_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]
TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Incarnation = TopicId
Token = Annotated[bytes, msgspec.Meta(max_length=64)]
Proof = Token | msgspec.UnsetType
"""Shows that a principal may write as the producer of a transaction. Unset: it is left out."""


class PageState(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition may be read, as `ipc.state.StatePage` has it. `epochs`: (leader epoch,
    its first offset), ascending; empty where the reader has been told already in this endpoint's
    life. `counters` and `cleaning` as the page has them, empty where nobody asked."""

    page: int
    topic_id: bytes
    partition: int
    status: int
    errno: int
    generation: int
    leader_epoch: int
    log_start: int
    durable: int
    last_stable: int
    high_watermark: int
    log_end: int
    epochs: list[tuple[int, int]] = []
    counters: list[int] = []
    cleaning: list[int] = []


class Ack(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the `Produce` of this lane sequence: `error` 0 is appended, else a number of
    `core.errors.ErrorCode`."""

    sequence: int
    base_offset: int
    append_timestamp: int
    error: int
    leader_epoch: int


# --- client -> gateway --------------------------------------------------------------------------
class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a connection. `incarnation`: 16 random bytes that name the client process,
    over reconnects too."""

    protocol: int
    apis: dict[str, tuple[int, int]]
    software: Name
    incarnation: Incarnation


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Begin an endpoint. `kind`: `ipc.layout.KIND_PRODUCER`, `KIND_CONSUMER` or `KIND_ADMIN`.
    `resume`: the producer id to go on with, and the `token` that came with it."""

    endpoint: EndpointNumber
    kind: Small
    client_id: Name
    resume: ProducerId | None = None
    token: Token = b""


class Detach(msgspec.Struct, frozen=True, tag="detach", omit_defaults=True):
    """The endpoint is done: what would be `Bye` on the node's host. `returns`: its client goes on
    by another endpoint, so this one ends as if its connection had."""

    endpoint: EndpointNumber
    returns: bool = False


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A request as the node takes it (`ipc.messages`, `ipc.coordination`), to be answered within
    `deadline` seconds. An endpoint has one request at a time under way."""

    endpoint: EndpointNumber
    request: Number
    deadline: float
    body: msgspec.Raw


class Produce(msgspec.Struct, frozen=True, tag="produce"):
    """One batch for a partition of that writer; payload: the batch. `sequence` counts the batches
    to this writer from 0 (or from the lane's head on, after a reconnect) without gaps. `flags` as
    in a lane's frame: with `FRAME_COMMITTED` it is answered when it is committed, not before.
    `proof`: of a transactional batch, what the answer to its `AddPartitions` had."""

    endpoint: EndpointNumber
    writer: Small
    sequence: Number
    page: Small
    flags: Small = 0
    proof: Proof = msgspec.UNSET


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Send what is in a partition from `offset` on, and what comes later, as far as `credit` bytes
    go. `leader_epoch`: of the record before `offset`, -1 unknown. `committed`: end at the last
    stable offset and leave aborted records out. A cursor that is there already begins again."""

    endpoint: EndpointNumber
    cursor: Number
    page: Small
    topic_id: TopicId
    partition: Small
    offset: Number
    leader_epoch: int
    committed: bool
    credit: Credit


class More(msgspec.Struct, frozen=True, tag="more"):
    """`credit` bytes have been consumed: that many more may be sent for the cursor."""

    endpoint: EndpointNumber
    cursor: Number
    credit: Credit


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Send nothing more for this cursor."""

    endpoint: EndpointNumber
    cursor: Number


class Positions(msgspec.Struct, frozen=True, tag="positions", omit_defaults=True):
    """The client's progress, for observers on the node's host. It has (page, next offset wanted) of
    each partition that it reads, and the records that its own policy gave up so far. `poll_age`:
    microseconds since its last poll (None: not known)."""

    endpoint: EndpointNumber
    positions: Annotated[list[tuple[Small, Number]], msgspec.Meta(max_length=POSITIONS_MAX)]
    dropped: Number = 0
    poll_age: Number | None = None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    stamp: Number


ClientMessage = Hello | Attach | Detach | Ask | Produce | Fetch | More | Drop | Positions | Ping


# --- gateway -> client --------------------------------------------------------------------------
class Welcome(msgspec.Struct, frozen=True, tag="welcome", omit_defaults=True):
    """The gateway's first answer. `local`: the way of a process on the same host to the node: its
    attach socket and the boot id of its host. `heartbeat`: seconds between pings; a side that hears
    nothing for `silence_max` takes the connection for dead. `batch_bytes_max`: of a payload.
    `cluster`, 16 bytes, and `broker`: the node's cluster, and its broker number there; empty
    outside a cluster."""

    protocol: int
    apis: dict[str, tuple[int, int]]
    software: str
    node_uuid: bytes
    boot_id: str
    local: str
    heartbeat: float
    silence_max: float
    batch_bytes_max: int
    cluster: bytes = b""
    broker: int = NOBODY


class Leaders(msgspec.Struct, frozen=True, tag="leaders"):
    """The brokers and leaders of the cluster, as this broker knows them: whole, and sent again
    after each change. `version` grows with every change in the cluster: of two brokers' messages
    the larger one counts. `brokers`: the living ones with their client addresses. `leaders`: for
    each page the broker that leads its partition; pages without one are left out. `coordinator`:
    the broker that answers for groups and transactions, `NOBODY` while none does."""

    version: int
    brokers: list[tuple[int, str]]
    leaders: list[tuple[int, int]]
    coordinator: int


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """The endpoint is attached. `window`: bytes of batches without an answer that it may have under
    way per writer. `notice`: the value in the client slot."""

    endpoint: int
    writers: int
    lane_capacity: int
    producer_id: int
    token: bytes
    window: int
    notice: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """No such endpoint comes to be (or no connection, where `endpoint` is -1). `error`: a class of
    `core.errors`."""

    endpoint: int
    error: str
    message: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The node's answer, with the state of the partitions that it names. `proof`: with the answer
    to an `AddPartitions`, for the batches of that producer and epoch."""

    endpoint: int
    request: int
    body: msgspec.Raw
    pages: list[PageState] = []
    proof: Proof = msgspec.UNSET


class Acks(msgspec.Struct, frozen=True, tag="acks"):
    """Answers of one writer, in the order of their sequences, and the pages they moved."""

    endpoint: int
    writer: int
    acks: list[Ack]
    pages: list[PageState] = []


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """Batches one after the other (payload; none: only the position moves). `start` is the cursor's
    requested offset or the `next_offset` before; `aborted` records were left out. `leader_epoch`:
    that of the log up to `next_offset`; the next request sends it along (batches may be of earlier
    ones)."""

    endpoint: int
    cursor: int
    start: int
    next_offset: int
    aborted: int
    pages: list[PageState] = []
    leader_epoch: int = -1


class CursorFailed(msgspec.Struct, frozen=True, tag="cursor_failed"):
    """The cursor ended at `offset` with an error of `core.errors`."""

    endpoint: int
    cursor: int
    offset: int
    error: str
    message: str
    divergence: int | None = None


class Pages(msgspec.Struct, frozen=True, tag="pages"):
    """Partitions that this endpoint fetches, or waits for to be durable, have moved."""

    endpoint: int
    pages: list[PageState]


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """The coordinator has something to say: the notice word of the client slot is this now."""

    endpoint: int
    notice: int


class Throttled(msgspec.Struct, frozen=True, tag="throttled"):
    """A quota holds this endpoint back for `seconds` more. `what`: "produce" or "consume"."""

    endpoint: int
    what: str
    seconds: float


GOODBYE: Final = "the node is stopping or restarts its gateway"
"""Why all endpoints of a connection end where nothing is wrong."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The endpoint is over (all, where it is -1): attach again."""

    endpoint: int
    reason: str


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    stamp: int


GatewayMessage = (
    Welcome | Leaders | Attached | Refused | Answer | Acks | Fetched | CursorFailed | Pages
    | Notice | Throttled | Ended | Pong
)  # fmt: skip
