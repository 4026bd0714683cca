"""The records of transactions in a coordinator's log: keys, values, and their bytes.

| key | value | gone when |
|---|---|---|
| `("transaction", id)` | `Transactional` | the id was not used for `idle_max` |
| `("stage", id, name)` | `Stage` | decided, and marked everywhere |
| `("decided", id)` | `Decided` | never by itself (rule 20), unless it was said to be the last |

Every value is the whole state of its key. So compaction, which keeps the newest value of a key,
loses nothing, and replaying a record twice changes nothing. The bytes of a value are an array of
`VERSION` and the value's fields. A field added at the end, with a default, is read from older
records too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from penstock.cluster.decisions import Record
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError

Place: TypeAlias = tuple[bytes, int]
"""A partition: its topic's id and its number."""
Places: TypeAlias = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Partitions by topic, ascending: one way to write each set of them."""

VERSION: Final = 1
TRANSACTION: Final = "transaction"
STAGE: Final = "stage"
DECIDED: Final = "decided"

# Why a transaction ended as it did.
ASKED: Final = ""
STALE: Final = "stale"
TIMEOUT: Final = "timeout"
TAKEN_OVER: Final = "taken over"
GONE: Final = "gone"
FORGOTTEN: Final = "forgotten"


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """A decided transaction and where its marker is still missing."""

    producer_id: int
    epoch: int
    commit: bool
    places: Places


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The decision on the last transaction of an id, and its reason; for answers to repetitions."""

    producer_id: int
    epoch: int
    committed: bool
    why: str


class Transactional(msgspec.Struct, frozen=True, array_like=True):
    """A transactional id. `epoch` is that of the transaction that is open or comes next; it is open
    from its first partition on, and `opened_at` says since when."""

    producer_id: int
    epoch: int
    timeout: float
    used_at: float
    opened_at: float | None = None
    places: Places = ()
    endings: tuple[Ending, ...] = ()
    last: Outcome | None = None


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """One of several producers of a transaction. `commit` is None until it is decided; from then on
    `places` are those where its marker is missing. `attempt`: of which try of the epoch it is."""

    producer_id: int
    producer_epoch: int
    epoch: int
    begun_at: float
    places: Places = ()
    commit: bool | None = None
    attempt: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """The last epoch of staged transactions that is decided. `committed`: runs (first, last) of
    committed epochs; of epochs below `known_from` nothing is known any more. `is_last`: the id is
    not used again, and what was decided is kept for late questions only."""

    epoch: int
    decided_at: float
    committed: tuple[tuple[int, int], ...] = ()
    known_from: int = 0
    is_last: bool = False

    def is_committed(self, epoch: int) -> bool:
        return any(first <= epoch <= last for first, last in self.committed)

    def after(
        self, epoch: int, commit: bool, now: float, ranges_max: int, is_last: bool = False
    ) -> Decided:
        runs, known_from = list(self.committed), self.known_from
        if commit and runs and runs[-1][1] == epoch - 1:
            runs[-1] = (runs[-1][0], epoch)
        elif commit:
            runs.append((epoch, epoch))
        if len(runs) > ranges_max:
            known_from = runs.pop(0)[1] + 1
        return Decided(epoch, now, tuple(runs), known_from, is_last)


Value: TypeAlias = Transactional | Stage | Decided
Key: TypeAlias = tuple[str, ...]

_DECODERS: Final[dict[str, msgspec.msgpack.Decoder[tuple[int, Value]]]] = {
    TRANSACTION: msgspec.msgpack.Decoder(tuple[int, Transactional]),
    STAGE: msgspec.msgpack.Decoder(tuple[int, Stage]),
    DECIDED: msgspec.msgpack.Decoder(tuple[int, Decided]),
}
_ENCODER: Final = msgspec.msgpack.Encoder()


def record_of(key: Key, value: Value | None) -> Record:
    """`None`: the key is to be forgotten."""
    written = None if value is None else _ENCODER.encode((VERSION, value))
    return Record(_ENCODER.encode(key), written)


def parse(record: Record) -> tuple[Key, Value | None] | None:
    """Parses a record of the log; None: it belongs to another machine, not to transactions."""
    key = msgspec.msgpack.decode(record.key)
    if not isinstance(key, list) or not key or not isinstance(key[0], str):
        return None
    if (decoder := _DECODERS.get(key[0])) is None:
        return None
    if record.value is None:
        return tuple(key), None
    try:
        version, value = decoder.decode(record.value)
    except msgspec.MsgspecError as error:
        raise CorruptBatchError(f"the coordinator's record {key}: {error}") from error
    if version != VERSION:
        raise UnsupportedVersionError(
            f"the coordinator's record {key} has version {version}, and this one reads {VERSION}"
        )
    return tuple(key), value


def pack(places: Iterable[Place]) -> Places:
    topics: dict[bytes, set[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, set()).add(partition)
    return tuple((topic_id, tuple(sorted(topics[topic_id]))) for topic_id in sorted(topics))


def unpack(places: Places) -> frozenset[Place]:
    return frozenset((topic, partition) for topic, numbers in places for partition in numbers)


def count_of(places: Places) -> int:
    return sum(len(numbers) for _, numbers in places)


def topics_of(every: Iterable[Places]) -> frozenset[bytes]:
    return frozenset(topic for places in every for topic, _ in places)
