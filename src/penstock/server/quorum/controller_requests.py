"""The requests of brokers to the active controller, or to the quorum that it leads: a struct each.

The type gives the question and the type of the answer. A link carries a name of the table (`NAMES`)
with the fields; time is the controller's own. Requests that are not in the table cannot be made.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, TypeVar, get_args

import msgspec

from penstock.cluster.controller import Controller, Heard, Registered
from penstock.cluster.decisions import Decision
from penstock.cluster.replica.messages import IsrChange, IsrChanged, LogEnd
from penstock.core import errors
from penstock.core.errors import ConfigError, PenstockError
from penstock.server.quorum.messages import TEXT_MAX, Answer, NodeId

NAME_MAX: Final = 249
URL_MAX: Final = 300
CONFIG_BYTES_MAX: Final = 4 << 20
ENDPOINTS_MAX: Final = 8
PLACES_MAX: Final = 100_000
REPLICAS_MAX: Final = 64

Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Url = Annotated[str, msgspec.Meta(max_length=URL_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Epoch = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]
TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Token = Annotated[bytes, msgspec.Meta(max_length=64)]
Config = Annotated[bytes, msgspec.Meta(max_length=CONFIG_BYTES_MAX)]
Place = tuple[TopicId, Count]
Places = Annotated[tuple[Place, ...], msgspec.Meta(max_length=PLACES_MAX)]


R = TypeVar("R")


class QuorumRequest(msgspec.Struct, Generic[R], frozen=True, array_like=True):
    """A request to the leader of the quorum, which answers with an `R`."""


class ControllerRequest(QuorumRequest[R], frozen=True):
    """A request that the controller decides."""

    def decide(self, controller: Controller, now: float) -> Decision[R]:
        """Raises what that method of the controller raises."""
        raise NotImplementedError


class Register(ControllerRequest[Registered], frozen=True):
    broker: NodeId
    incarnation: Token
    folder: Token
    endpoints: Annotated[tuple[Url, ...], msgspec.Meta(max_length=ENDPOINTS_MAX)]
    rack: Name
    was_clean: bool
    after: Epoch | None = None
    lost: Places = ()
    offline: Places = ()
    keeps_count: bool = False
    instead_of: Epoch | None = None

    def decide(self, controller: Controller, now: float) -> Decision[Registered]:
        return controller.register(
            now, self.broker, self.incarnation, self.folder, self.endpoints, self.rack,
            was_clean=self.was_clean, after=self.after, lost=self.lost, offline=self.offline,
            keeps_count=self.keeps_count, instead_of=self.instead_of,
        )  # fmt: skip


class Heartbeat(ControllerRequest[Heard], frozen=True):
    broker: NodeId
    epoch: Epoch
    is_current: bool
    is_leaving: bool

    def decide(self, controller: Controller, now: float) -> Decision[Heard]:
        return controller.heartbeat(
            now, self.broker, self.epoch, is_current=self.is_current, is_leaving=self.is_leaving
        )


class Logs(ControllerRequest[None], frozen=True):
    broker: NodeId
    epoch: Epoch
    offline: Places = ()
    online: Places = ()

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.logs(self.broker, self.epoch, self.offline, self.online)


class ReportLogEnds(ControllerRequest[None], frozen=True):
    broker: NodeId
    epoch: Epoch
    ends: Annotated[tuple[tuple[Place, LogEnd], ...], msgspec.Meta(max_length=PLACES_MAX)]

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.log_ends(self.broker, self.epoch, self.ends)


class ForgetBroker(ControllerRequest[None], frozen=True):
    broker: NodeId

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.forget(self.broker)


class Drain(ControllerRequest[None], frozen=True):
    broker: NodeId
    undo: bool = False
    before: Epoch | None = None

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.drain(self.broker, undo=self.undo, before=self.before)


class CreateTopic(ControllerRequest[bytes], frozen=True):
    """The asker gives the id, so that asking again is known by it."""

    name: Name
    topic_id: TopicId
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]
    replication_factor: Count
    min_insync: Count
    config: Config
    is_synced: bool = False

    def decide(self, controller: Controller, now: float) -> Decision[bytes]:
        return controller.create_topic(
            self.name, self.topic_id, self.partitions, self.replication_factor, self.min_insync,
            self.config, is_synced=self.is_synced,
        )  # fmt: skip


class AddPartitions(ControllerRequest[None], frozen=True):
    name: Name
    total: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.add_partitions(self.name, self.total)


class ConfigureTopic(ControllerRequest[None], frozen=True):
    name: Name
    min_insync: Count
    config: Config
    was: Config | None = None

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.configure_topic(self.name, self.min_insync, self.config, was=self.was)


class DeleteTopic(ControllerRequest[None], frozen=True):
    name: Name

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.delete_topic(self.name)


class ChangeIsr(ControllerRequest[IsrChanged], frozen=True):
    at: Place
    asked: IsrChange

    def decide(self, controller: Controller, now: float) -> Decision[IsrChanged]:
        return controller.change_isr(self.at, self.asked)


class Elect(ControllerRequest[int], frozen=True):
    places: Places
    is_unclean: bool = False

    def decide(self, controller: Controller, now: float) -> Decision[int]:
        return controller.elect(self.places, is_unclean=self.is_unclean)


class Reassign(ControllerRequest[None], frozen=True):
    places: Annotated[tuple[Place, ...], msgspec.Meta(max_length=PLACES_MAX)]
    target: Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=REPLICAS_MAX)] = ()
    replication_factor: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] = 0

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.reassign(
            self.places, self.target, replication_factor=self.replication_factor
        )


class Set(ControllerRequest[None], frozen=True):
    kind: Name
    name: Name
    value: Config | None
    was: Config | None = None
    is_checked: bool = False

    def decide(self, controller: Controller, now: float) -> Decision[None]:
        return controller.set(
            self.kind, self.name, self.value, was=self.was, is_checked=self.is_checked
        )


class Pages(ControllerRequest[int], frozen=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]

    def decide(self, controller: Controller, now: float) -> Decision[int]:
        return controller.pages(self.count)


class CoordinatorEpoch(ControllerRequest[int], frozen=True):
    def decide(self, controller: Controller, now: float) -> Decision[int]:
        return controller.coordinator_epoch()


class RemoveMember(QuorumRequest[None], frozen=True):
    """That node has no vote and no log any more."""

    node: NodeId


class Describe(QuorumRequest[dict[str, Any]], frozen=True):
    """Asks for the leader's view of the quorum."""


NAMES: Final[dict[type[QuorumRequest[Any]], str]] = {
    Register: "register",
    Heartbeat: "heartbeat",
    Logs: "logs",
    ReportLogEnds: "log_ends",
    ForgetBroker: "forget",
    Drain: "drain",
    CreateTopic: "create_topic",
    AddPartitions: "add_partitions",
    ConfigureTopic: "configure_topic",
    DeleteTopic: "delete_topic",
    ChangeIsr: "change_isr",
    Elect: "elect",
    Reassign: "reassign",
    Set: "set",
    Pages: "pages",
    CoordinatorEpoch: "coordinator_epoch",
    RemoveMember: "remove_member",
    Describe: "describe",
}
"""How each is called on a link."""


def _answer_of(kind: type[QuorumRequest[Any]]) -> Any:
    """The `R` that it is a request for."""
    return get_args(vars(kind)["__orig_bases__"][0])[0]


_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final = {name: msgspec.msgpack.Decoder(kind) for kind, name in NAMES.items()}
_answers: Final = {kind: msgspec.msgpack.Decoder(_answer_of(kind)) for kind in NAMES}


def encoded(request: QuorumRequest[Any]) -> bytes:
    """Its bytes, checked as the other side will. Raises `ConfigError`."""
    name = NAMES[type(request)]
    try:
        body = _encoder.encode(request)
    except (TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{name} cannot be asked like that: {error}") from error
    decode_ask(name, body)
    return body


def decode_ask(name: str, body: bytes) -> QuorumRequest[Any]:
    """Raises `ConfigError`."""
    try:
        request: QuorumRequest[Any] = _requests[name].decode(body)
    except KeyError:
        raise ConfigError(f"this broker's controller has no {name!r}: it is older") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be asked like that: {error}") from error
    return request


def answered(number: int, answer: object) -> Answer:
    return Answer(number, _encoder.encode(answer))


def refused(number: int, error: PenstockError) -> Answer:
    return Answer(number, error=type(error).__name__, message=str(error)[:TEXT_MAX])


def result(request: QuorumRequest[R], answer: Answer) -> R:
    """The answer, or the error that it is."""
    if answer.error:
        raise errors.named(answer.error, answer.message)
    found: R = _answers[type(request)].decode(answer.body)
    return found
