"""A decision of a protocol machine for its shell: records to append, and an answer to give after
that.

A machine *decides records*; only `replay(record)` changes it. The shell replays the records of a
decision at once, appends them as one batch, and keeps the answer back until that is acknowledged.
If it never is, the machine is thrown away and made again from the log.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Record(NamedTuple):
    """The newest of each key is the state. `value` is None where the key is gone: a tombstone."""

    key: bytes
    value: bytes | None


class Decision(NamedTuple, Generic[T_co]):
    """`records` belong into one batch. `notify`: ids of members whose assignment this changes, but
    for the one that asked. `durable`: the answer waits until the records are on the device."""

    records: tuple[Record, ...]
    answer: T_co
    notify: frozenset[str] = frozenset()
    durable: bool = False
