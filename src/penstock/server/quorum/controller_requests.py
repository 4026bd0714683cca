"""What brokers may ask the active controller: a table of its methods, and their bytes.

A method's arguments travel as one struct whose fields are the parameters of `Controller` by their
names; time is the controller's own. What is not in the table cannot be asked.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

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


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of one method."""


class Register(Asked, frozen=True):
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


class Heartbeat(Asked, frozen=True):
    broker: NodeId
    epoch: Epoch
    is_current: bool
    is_leaving: bool


class Logs(Asked, frozen=True):
    broker: NodeId
    epoch: Epoch
    offline: Places = ()
    online: Places = ()


class LogEnds(Asked, frozen=True):
    broker: NodeId
    epoch: Epoch
    ends: Annotated[tuple[tuple[Place, LogEnd], ...], msgspec.Meta(max_length=PLACES_MAX)]


class Forget(Asked, frozen=True):
    broker: NodeId


class CreateTopic(Asked, frozen=True):
    """The asker gives the id, so that asking again is known by it."""

    name: Name
    topic_id: TopicId
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]
    replication_factor: Count
    min_insync: Count
    config: Config
    is_synced: bool = False


class AddPartitions(Asked, frozen=True):
    name: Name
    total: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]


class ConfigureTopic(Asked, frozen=True):
    name: Name
    min_insync: Count
    config: Config
    was: Config | None = None


class DeleteTopic(Asked, frozen=True):
    name: Name


class ChangeIsr(Asked, frozen=True):
    at: Place
    asked: IsrChange


class Elect(Asked, frozen=True):
    places: Places
    is_unclean: bool = False


class Reassign(Asked, frozen=True):
    places: Annotated[tuple[Place, ...], msgspec.Meta(max_length=PLACES_MAX)]
    target: Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=REPLICAS_MAX)] = ()
    replication_factor: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] = 0


class Set(Asked, frozen=True):
    kind: Name
    name: Name
    value: Config | None
    was: Config | None = None
    is_checked: bool = False


class Pages(Asked, frozen=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)]


class CoordinatorEpoch(Asked, frozen=True):
    pass


class RemoveMember(Asked, frozen=True):
    """Of the quorum itself, not of the controller: that node has no vote and no log any more."""

    node: NodeId


class Describe(Asked, frozen=True):
    """Likewise: what the leader knows of the quorum."""


class Method(NamedTuple):
    arguments: type[Asked]
    answer: Any
    takes_time: bool = False


METHODS: Final[dict[str, Method]] = {
    "register": Method(Register, Registered, takes_time=True),
    "heartbeat": Method(Heartbeat, Heard, takes_time=True),
    "logs": Method(Logs, None),
    "log_ends": Method(LogEnds, None),
    "forget": Method(Forget, None),
    "create_topic": Method(CreateTopic, bytes),
    "add_partitions": Method(AddPartitions, None),
    "configure_topic": Method(ConfigureTopic, None),
    "delete_topic": Method(DeleteTopic, None),
    "change_isr": Method(ChangeIsr, IsrChanged),
    "elect": Method(Elect, int),
    "reassign": Method(Reassign, None),
    "set": Method(Set, None),
    "pages": Method(Pages, int),
    "coordinator_epoch": Method(CoordinatorEpoch, int),
}
"""Of `Controller`."""
REMOVE_MEMBER: Final = "remove_member"
DESCRIBE: Final = "describe"
OF_THE_QUORUM: Final[dict[str, Method]] = {
    REMOVE_MEMBER: Method(RemoveMember, None),
    DESCRIBE: Method(Describe, dict[str, Any]),
}

_ALL: Final = METHODS | OF_THE_QUORUM
_encoder: Final = msgspec.msgpack.Encoder()
_arguments: Final = {
    name: msgspec.msgpack.Decoder(method.arguments) for name, method in _ALL.items()
}
_answers: Final = {name: msgspec.msgpack.Decoder(method.answer) for name, method in _ALL.items()}


def made(name: str, *args: object, **kw: object) -> tuple[Asked, bytes]:
    """The arguments, and their bytes, checked as the other side will. Raises `ConfigError` for a
    name or arguments that are not in the table."""
    if name not in _ALL:
        raise ConfigError(f"{name!r} cannot be asked of the controller: {', '.join(_ALL)} can")
    try:
        body = _encoder.encode(_ALL[name].arguments(*args, **kw))
        return _arguments[name].decode(body), body
    except (TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{name} cannot be asked like that: {error}") from error


def decode_ask(name: str, body: bytes) -> Asked:
    """Raises `ConfigError`."""
    try:
        return _arguments[name].decode(body)
    except KeyError:
        raise ConfigError(f"this broker's controller has no {name!r}: it is older") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be asked like that: {error}") from error


def decided(controller: Controller, name: str, asked: Asked, now: float) -> Decision[Any]:
    """Have the controller decide. Raises what it raises."""
    keywords = {field: getattr(asked, field) for field in asked.__struct_fields__}
    time = (now,) if METHODS[name].takes_time else ()
    decision: Decision[Any] = getattr(controller, name)(*time, **keywords)
    return decision


def answered(number: int, answer: object) -> Answer:
    return Answer(number, _encoder.encode(answer))


def refused(number: int, error: PenstockError) -> Answer:
    return Answer(number, error=type(error).__name__, message=str(error)[:TEXT_MAX])


def result(name: str, answer: Answer) -> Any:
    """The answer, or the error that it is."""
    if answer.error:
        raise error_of(answer.error, answer.message)
    return _answers[name].decode(answer.body)


def error_of(name: str, message: str) -> PenstockError:
    """The error that another process raised; a plain one where it is not known here."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        try:
            return kind(message)
        except TypeError:
            pass  # it wants more than a message
    return PenstockError(f"{name}: {message}")
