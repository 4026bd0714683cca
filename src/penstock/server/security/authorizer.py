"""The guard: what a request needs, whether its principal has it, and the audit.

One table says what each request of a client needs (`needs_of`); a request that is not in it is for
local users only. Local principals (`user:UID`) are super-users (rule 28): what they do is noted,
and not judged. A refusal says the same whether what it names is there or not, and lists show only
what the principal may describe. Owns the table and the audit; decides by `cluster.access`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from penstock.cluster.access import CLUSTER, LOCAL_PREFIX, Kind, Operation, literal_prefix
from penstock.cluster.quotas import Bucket
from penstock.core.errors import AccessDeniedError, PenstockError, UnknownTopicError
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh
from penstock.ipc.names import is_internal
from penstock.server.security.access_store import Access
from penstock.server.security.audit import ACTIONS_PER_SECOND, NAME_SHOWN, AuditLog

LOOKS_PER_SECOND: Final = 10
"""Looks at the files because of refusals."""

READ, WRITE, CREATE = Operation.read, Operation.write, Operation.create
ALTER, DESCRIBE, DELETE = Operation.alter, Operation.describe, Operation.delete
TOPIC, GROUP = Kind.topic, Kind.group
TRANSACTIONAL_ID = Kind.transactional_id


class Need(NamedTuple):
    """`topic_id` in the place of a name: of the topic with this id. `all_from`: of every name that
    begins with `name`."""

    operation: Operation
    kind: Kind
    name: str
    topic_id: bytes = b""
    all_from: bool = False


def local_principal(uid: int) -> str:
    return f"{LOCAL_PREFIX}{uid}"


def is_local(principal: str) -> bool:
    return principal.startswith(LOCAL_PREFIX)


# The right that a request needs for the thing it names: (operation, kind, attribute with the name).
_NAMED: Final[dict[type, tuple[Operation, Kind, str]]] = {
    ms.FindTopic: (DESCRIBE, TOPIC, "name"),
    ms.CreateTopic: (CREATE, TOPIC, "name"),
    ms.AlterTopic: (ALTER, TOPIC, "name"),
    ms.DeleteTopic: (DELETE, TOPIC, "name"),
    ms.TrimPartition: (DELETE, TOPIC, "name"),
    cg.DescribePartitions: (DESCRIBE, TOPIC, "name"),
    co.JoinGroup: (READ, GROUP, "group"),
    co.SyncGroup: (READ, GROUP, "group"),
    co.LeaveGroup: (READ, GROUP, "group"),
    co.CommitOffsets: (READ, GROUP, "group"),
    co.ClaimOffsets: (READ, GROUP, "group"),
    sh.AcquireRecords: (READ, GROUP, "group"),
    sh.BuryRecords: (READ, GROUP, "group"),
    sh.DescribeShare: (DESCRIBE, GROUP, "group"),
    sh.PeekShare: (DESCRIBE, GROUP, "group"),
    sh.SeekShare: (ALTER, GROUP, "group"),
    sh.PauseShare: (ALTER, GROUP, "group"),
    sh.ResumeShare: (ALTER, GROUP, "group"),
    co.DescribeGroup: (DESCRIBE, GROUP, "group"),
    co.DeleteGroup: (DELETE, GROUP, "group"),
    co.InitTransactions: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
    co.AddPartitions: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
    co.EndTransaction: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
    co.BeginStage: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
    co.EndStages: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
    co.CommitTransaction: (WRITE, TRANSACTIONAL_ID, "transactional_id"),
}
# The right that each request needs for the cluster.
_OF_CLUSTER: Final[dict[type, Operation]] = {
    ms.DescribeNode: DESCRIBE,
    ac.ListAccess: READ,
    ac.AddAccess: ALTER,
    ac.RemoveAccess: ALTER,
    ac.SetQuota: ALTER,
    ac.SetLimits: ALTER,
    cg.DescribeCluster: DESCRIBE,
    cg.ElectLeaders: ALTER,
    cg.ReassignPartition: ALTER,
    cg.RemoveBroker: ALTER,
    cg.DrainBroker: ALTER,
    cg.DescribeDrain: DESCRIBE,
    op.ListClients: DESCRIBE,
    op.KickClient: ALTER,
    op.DescribeSettings: DESCRIBE,
    op.ChangeSettings: ALTER,
}
# Requests that need no right. Lists and positions show only what the principal may describe.
FREE: Final = (
    ms.Hello, ms.Bye, ms.OpenLane, ms.ListTopics, co.ListGroups, co.ListTransactions,
    lk.LookUpPages, lk.LookUpPositions,
)  # fmt: skip
LOCAL_ONLY: Final = (ms.SwapSegments, ms.FindFloor)


ACTIONS: Final = frozenset(
    {
        *(kind for kind, need in _NAMED.items() if need[0] in (CREATE, ALTER, DELETE)),
        *(kind for kind, operation in _OF_CLUSTER.items() if operation == ALTER),
        co.SeekGroup,
    }
)
"""Requests that change things of others; the audit notes them also where they are allowed."""


def needs_of(message: ms.ClientMessage) -> Iterator[Need] | None:
    """All that a request needs; None: it is for local users only."""
    kind = type(message)
    if kind in _NAMED or kind in _OF_CLUSTER or isinstance(message, (*FREE, *_BY_CONTENT)):
        return _needs(message)
    return None


_BY_CONTENT: Final = (lk.LookUpTime, lk.LookUpAppends, lk.LookUpSegments, co.SeekGroup)


def _needs(message: ms.ClientMessage) -> Iterator[Need]:
    kind = type(message)
    if named := _NAMED.get(kind):
        yield Need(named[0], named[1], getattr(message, named[2]))
    elif operation := _OF_CLUSTER.get(kind):
        yield Need(operation, Kind.cluster, CLUSTER)
    match message:
        case co.JoinGroup():
            for topic in message.topics:
                yield Need(READ, TOPIC, topic)
            if message.pattern is not None:
                yield Need(READ, TOPIC, literal_prefix(message.pattern), all_from=True)
        case co.AddPartitions():
            for topic_id in {topic_id for topic_id, _ in message.partitions}:
                yield Need(WRITE, TOPIC, "", topic_id)
        case co.EndTransaction():
            for consumed in message.offsets:
                yield Need(READ, GROUP, consumed.group)
            for done in message.done:
                yield Need(READ, GROUP, done.group)
        case co.SeekGroup():
            yield Need(READ if message.is_report else ALTER, GROUP, message.group)
            of_topic = READ if message.is_report else DESCRIBE
            for topic_id in {offset.topic_id for offset in message.offsets}:
                yield Need(of_topic, TOPIC, "", topic_id)
        case co.DeleteGroup():
            for topic_id in {topic_id for topic_id, _ in message.offsets}:
                yield Need(DESCRIBE, TOPIC, "", topic_id)
        case sh.SeekShare():
            yield Need(DESCRIBE, TOPIC, "", message.topic_id)
        case lk.LookUpTime():
            yield Need(READ, TOPIC, "", message.topic_id)
        case lk.LookUpAppends():
            for topic_id in {place.topic_id for place in message.places}:
                yield Need(DESCRIBE, TOPIC, "", topic_id)
        case lk.LookUpSegments():
            yield Need(DESCRIBE, TOPIC, "", message.place.topic_id)
        case _:
            pass


class Guard:
    """Asked for each request of a client. `name_of`: the name of the topic with an id."""

    def __init__(self, access: Access, name_of: Callable[[bytes], str | None]) -> None:
        self.access = access
        self.audit = AuditLog()
        self.actions = AuditLog(logging.INFO, ACTIONS_PER_SECOND)
        self._looks = Bucket(time.monotonic(), LOOKS_PER_SECOND)
        self._name_of = name_of

    def counts(self) -> dict[str, int]:
        """Returns the counts for `node describe`. The gateway's refusals are in its metrics."""
        document = self.access.document
        return {
            "version": document.version,
            "entries": len(document.entries),
            "quotas": len(document.quotas),
            "keys": len(self.access.keys.by_public),
            "refused": self.audit.count,
            "actions": self.actions.count,
        }

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Whether it may, without a trace in the audit."""
        if is_local(principal):
            return True
        self.access.look(time.monotonic())
        if kind == TOPIC and operation != READ and operation != DESCRIBE and is_internal(name):
            return False  # nobody does this to the node's own topics, whatever entries say
        return self.access.policy.allows(principal, operation, kind, name)

    def _really_denied(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Whether it is denied by the files as they are, which may have changed just now. So what
        an administrator allowed holds at once in every process."""
        now = time.monotonic()
        if self._looks.delay(now):
            return True
        self._looks.take(now, 1)
        self.access.look(now, 0.0)
        return not self.allows(principal, operation, kind, name)

    def sees(self, principal: str, kind: str, name: str) -> bool:
        """Whether lists show it to this principal."""
        return self.allows(principal, DESCRIBE, kind, name)

    def check(
        self, principal: str, operation: str, kind: str, name: str, purpose: str | None = None
    ) -> None:
        """Raise AccessDeniedError, and audit it, unless the principal may do this. `purpose`: the
        operation that this one is for, which a refusal names, so that one entry is enough."""
        asked = (principal, operation, kind, name)
        if not self.allows(*asked) and self._really_denied(*asked):
            raise self._refused(principal, purpose or operation, kind, name)

    def check_topic(self, principal: str, operation: str, topic_id: bytes) -> str:
        """The same for a topic that is known by its id; its name. One that is not there and one
        that the principal may not describe are alike: UnknownTopicError."""
        name = self._name_of(topic_id)
        if name is not None:
            asked = (principal, operation, TOPIC, name)
            if self.allows(*asked) or not self._really_denied(*asked):
                return name
            refused = self._refused(principal, operation, TOPIC, name)
            if self.sees(principal, TOPIC, name):
                raise refused
        raise _unknown(topic_id)

    def denied(self, principal: str, operation: str, topic_id: bytes) -> PenstockError | None:
        """Returns the error that refuses this, with the topic's name; None where it is allowed."""
        name = self._name_of(topic_id)
        if name is None:
            return _unknown(topic_id)
        try:
            self.check(principal, operation, TOPIC, name)
        except AccessDeniedError as error:
            return error
        return None

    def check_request(self, principal: str, message: ms.ClientMessage) -> None:
        """Raise unless the principal may have this answered."""
        if is_local(principal):
            return
        needs = needs_of(message)
        if needs is None:
            raise self._refused(principal, ALTER, Kind.cluster, CLUSTER)
        purpose = message.purpose if isinstance(message, ms.FindTopic) else None
        for need in needs:
            if need.topic_id:
                self.check_topic(principal, need.operation, need.topic_id)
            elif need.all_from:
                self._check_all(principal, need)
            else:
                self.check(principal, need.operation, need.kind, need.name, purpose)

    def allowed(self, principal: str, message: ms.ClientMessage) -> None:
        """Note what an administrator, a super-user too, is about to do."""
        if type(message) not in ACTIONS:
            return
        for need in needs_of(message) or ():
            if need.operation in (CREATE, ALTER, DELETE):
                self.actions.allowed(
                    time.monotonic(), principal, need.operation, need.kind, need.name,
                    type(message).__name__, _details(message) if need.kind == Kind.cluster else "",
                )  # fmt: skip

    def _check_all(self, principal: str, need: Need) -> None:
        self.access.look(time.monotonic())
        if not self.access.policy.allows_all(principal, need.operation, need.kind, need.name):
            raise self._refused(principal, need.operation, need.kind, f"{need.name}*")

    def _refused(self, principal: str, operation: str, kind: str, name: str) -> AccessDeniedError:
        self.audit.refused(time.monotonic(), principal, operation, kind, name)
        what = f"the {kind}" if kind == Kind.cluster else f"{kind} {name[:NAME_SHOWN]!r}"
        named = "'*'" if kind == Kind.cluster else "..."
        return AccessDeniedError(
            f"principal {principal!r} may not {operation} {what}: ask the node's operator for "
            f"access (`penstock acl add {principal} {operation} {kind} {named}`)"
        )


def _details(message: ms.ClientMessage) -> str:
    """Returns the targets of a request: its fields, without those that have their defaults."""
    given = (
        (field.name, getattr(message, field.name), field.default)
        for field in msgspec.structs.fields(message)
    )
    return ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)


def _unknown(topic_id: bytes) -> UnknownTopicError:
    return UnknownTopicError(
        f"there is no topic with the id {topic_id.hex()} (any more): look the topic up again"
    )
