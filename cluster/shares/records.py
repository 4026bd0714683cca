"""Records of the machine: each delta changes the state that the one before it left, in log order.

A delta is a msgpack array with its tag first. Runs are packed (`shares.runs`). A delta may get
further fields with defaults at its end.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All from the frontier to `end` may be delivered, but `skipped`: markers, aborted records,
    and what a compaction took. `keys`, `tenants`: their hashes, 8 bytes each, where the group is
    arranged by them, and nothing is skipped."""

    end: int
    skipped: list[int] = []
    keys: bytes = b""
    tenants: bytes = b""


class Leased(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Ready records went to a member: `at_us` is a time of the leader's clock. `is_alone`: one that
    may have ended a worker."""

    lease: int
    member: str
    at_us: int
    runs: list[int]
    is_alone: bool = False


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Records of a lease (`lease`; 0: condemned records) get this state of the window.
    `uncounted`: its last delivery counts for nothing."""

    lease: int
    state: int
    runs: list[int]
    uncounted: bool = False


class Postponed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Leased records wait. `dues`: until when, in microseconds: one time for all, or one for each
    record, and then each but the first as the difference to the one before. `uncounted`: their last
    delivery counts for nothing."""

    lease: int
    dues: list[int]
    runs: list[int]
    uncounted: bool = False


class DeliveryFailed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The reason and the time of a failed delivery of these records."""

    member: str
    at_us: int
    reason: str
    runs: list[int]


class Woken(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """So many records that wait are ready, the soonest first."""

    records: int


class Sought(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """All before is over, leases too: the group begins with this offset."""

    start: int


class Extended(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A lease of these records does not end before `until_us`, however old it is."""

    lease: int
    until_us: int
    runs: list[int]


class Arranged(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Records from the frontier on are given in this order, and by turns of these tenants; "": not.
    Those that were begun before have no order and no tenants."""

    order: str
    fair: str


class IdsClaimed(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """These records are the first ones of their dedup ids: 16 bytes of digests and 8 of timestamps
    for each. Before that ids with timestamps below `forget_below` are forgotten."""

    runs: list[int]
    digests: bytes
    stamps: bytes
    forget_below: int | None = None


Delta: TypeAlias = (
    Begun
    | Leased
    | Settled
    | Postponed
    | DeliveryFailed
    | Woken
    | Sought
    | Extended
    | Arranged
    | IdsClaimed
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Delta])


def encode(deltas: tuple[Delta, ...]) -> bytes:
    return _ENCODER.encode(deltas)


def decode(data: bytes | memoryview) -> list[Delta]:
    """Raises `msgspec.MsgspecError` for what `encode` did not make."""
    return _DECODER.decode(data)
