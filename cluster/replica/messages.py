"""The messages between brokers about a partition, and the controller's about it.

Structs are array-like: their fields travel in this order (see `penstock.cluster.frames`). Decoded
messages of other brokers are within the bounds of their types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
LeaderEpoch = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
BrokerId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class ReplicaRefusal(IntEnum):
    """Why a follower gets nothing, or an ISR does not change. Frozen."""

    NOT_LEADER = 1
    OLD_EPOCH = 2
    """The asker's leader epoch is over: it waits for the controller's news."""
    NEW_EPOCH = 3
    """The asked one has not heard of that leader epoch yet: ask again soon."""
    OLD_BROKER = 4
    """An earlier life of that broker asks, or is named."""
    NOT_A_REPLICA = 5
    OLD_PARTITION_EPOCH = 6
    """The partition was changed in between: look at what it is now."""
    NOT_ELIGIBLE = 7
    """A broker that is fenced or shutting down joins no ISR, nor does one whose log is offline."""


class PartitionAssignment(msgspec.Struct, frozen=True, array_like=True):
    """The controller's decision on a partition. `leader` is None while it has none. Epochs only
    grow: `leader_epoch` with each election, `partition_epoch` with each change of any field.
    `replicas`, `isr`: brokers; the first replica is the preferred leader. `offline`: replicas whose
    log takes nothing."""

    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_insync: int = 1
    offline: tuple[int, ...] = ()


class FetchRequest(msgspec.Struct, frozen=True, array_like=True):
    """A follower asks for what follows its log, and says by that what it has.

    `number`: of its requests, echoed by the answer, so that late and doubled ones are known.
    `offset`: its log end; `last_epoch`: the leader epoch of its last record, None where none is
    known. `stored`: what it answers for: its log end, or how far it is on stable storage where the
    topic wants that."""

    number: Number
    broker: BrokerId
    broker_epoch: Number
    leader_epoch: LeaderEpoch
    offset: Offset
    last_epoch: LeaderEpoch | None
    stored: Offset


class Fetched(msgspec.Struct, frozen=True, array_like=True):
    """Send what is in the log from `offset` on, with these. Where `offset` is `log_start` and not
    what was asked for, the follower's log lies elsewhere: it begins again there."""

    number: Number
    leader_epoch: LeaderEpoch
    offset: Offset
    high_watermark: Offset
    log_start: Offset


class Diverged(msgspec.Struct, frozen=True, array_like=True):
    """The follower's last epoch ends elsewhere here: `epoch`, the newest one here at or below it,
    ends at `end`."""

    number: Number
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end: Offset


class FetchRefused(msgspec.Struct, frozen=True, array_like=True):
    number: Number
    why: ReplicaRefusal
    leader_epoch: LeaderEpoch


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """A leader asks the controller. `isr`: (broker, its epoch as it fetched)."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class IsrChanged(msgspec.Struct, frozen=True, array_like=True):
    """The controller's answer. `refused` is None where it is so now, at that partition epoch.

    A change that is refused for its members gives the partition a new epoch, too. So the same
    request, late or doubled, cannot be granted afterwards, and the leader may forget it.
    """

    partition_epoch: int
    isr: tuple[int, ...]
    refused: ReplicaRefusal | None = None


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """A replica tells the controller what it has while nobody leads. `leader_epoch`: of the
    controller's word that nobody does; `last_epoch`: of its last record, None for an empty log.
    `high_watermark`: what it knows to have been committed, also where the log ends before that."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch | None
    log_end: Offset
    high_watermark: Offset = 0


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Seconds.

    Args:
        lag_time: a follower that did not reach the leader's log end for that long leaves the ISR.
        retry: seconds between repeated requests for a change of the ISR without an answer.
    """

    lag_time: float = 10.0
    retry: float = 1.0
