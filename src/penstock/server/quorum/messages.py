"""The messages between brokers on the control link: the structs, their bounds, their bytes.

A connection is one DEALER's, at the broker that made it, to a ROUTER. Messages go both ways on it.

    connecting broker                listening broker
      Hello(who I am)           ->
                                <-   Welcome(who I am) | Refused(why), and nothing more
      Consensus(raft message)  <->   Consensus(raft message)
      Ask(method of Controller) <->  ... Answer(its decision, once that is committed)
      Request(kind, body)      <->   ... Response(body)
      Ping                     <->   ... Pong

Each is one msgpack array: its tag, then its fields in their order; new ones are added at the ends.
Nothing is resent here, and the order is not certain: raft and the askers do without both.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.cluster.raft.messages import MEMBERS, Append, Install, Members, RaftMessage
from penstock.core.errors import PenstockError

LINK_VERSION: Final = 1
METADATA_FIRST: Final = 1
"""Of a broker that does not tell."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Of one message: a snapshot is one."""
BODY_BYTES_MAX: Final = 8 << 20
"""The bytes that one ask, request or answer may carry."""
TEXT_MAX: Final = 2_000
ENTRIES_MAX: Final = 100_000
"""Entries of one `Append`."""

NodeId = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]
ClusterId = Annotated[bytes, msgspec.Meta(max_length=16)]
Uuid = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Url = Annotated[str, msgspec.Meta(max_length=300)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=100)]
Body = Annotated[bytes, msgspec.Meta(max_length=BODY_BYTES_MAX)]


class LinkError(PenstockError):
    """The received frames are no message of a control link."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a connection. `version`: of the link, which both ends need to have in
    common. `cluster` is empty while the sender does not know it; `folder` is its data folder's
    uuid, `url` where its own ROUTER is, `life` new with each start of its process. `metadata`: the
    newest records of the controller's log that it knows (`METADATA_VERSION`); `release`: of
    Penstock, for people. The fields before these two stay in all versions of the link."""

    version: int
    node: NodeId
    cluster: ClusterId
    folder: Uuid
    url: Url
    life: Uuid
    metadata: Number = METADATA_FIRST
    release: Name = ""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    version: int
    node: NodeId
    cluster: ClusterId
    folder: Uuid
    life: Uuid
    metadata: Number = METADATA_FIRST
    release: Name = ""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The end of the connection."""

    error: Name
    message: Text


class Consensus(msgspec.Struct, frozen=True, array_like=True, tag="raft"):
    message: RaftMessage


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """For the active controller. (`life`, `number`) is the asker's name for it: asked again, it is
    not decided again. `name` and `body`: see `controller_requests`."""

    life: Uuid
    number: Number
    name: Name
    body: Body


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """`error` is empty where `body` is the answer."""

    number: Number
    body: Body = b""
    error: Name = ""
    message: Text = ""


class Request(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """A request to that broker itself, for the server of `kind` there."""

    number: Number
    kind: Name
    body: Body


class Response(msgspec.Struct, frozen=True, array_like=True, tag="response"):
    number: Number
    body: Body = b""
    error: Name = ""
    message: Text = ""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    stamp: Number


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    stamp: Number


LinkMessage = (
    Hello | Welcome | Refused | Consensus | Ask | Answer | Request | Response | Ping | Pong
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(LinkMessage)
_members: Final = msgspec.msgpack.Decoder(Members)


def encode(message: LinkMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> LinkMessage:
    """Whatever bytes come: a message within its bounds, or `LinkError`."""
    try:
        message: LinkMessage = _decoder.decode(data)
        if isinstance(message, Consensus):
            _check(message.message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LinkError(f"{len(data)} bytes are no message of a control link: {error}") from error
    return message


def _check(message: RaftMessage) -> None:
    """Checks the properties that raft takes for granted of each message. Raises ValueError."""
    if isinstance(message, Append):
        if len(message.entries) > ENTRIES_MAX:
            raise ValueError(f"{len(message.entries)} entries in one message")
        term = message.index_term
        for index, entry in enumerate(message.entries, message.index + 1):
            if entry.index != index or not term <= entry.term <= message.term:
                raise ValueError(f"entry {entry.index} of term {entry.term} where {index} is due")
            term = entry.term
            if entry.kind == MEMBERS:
                _members.decode(entry.data)
    elif isinstance(message, Install) and message.snapshot.term > message.term:
        raise ValueError("a snapshot of a later term than its sender's")
