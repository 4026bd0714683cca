"""The records of the controller's log: the newest value of each key is the state.

| key | value |
|---|---|
| `("broker", id)` | `BrokerRegistration` |
| `("topic", topic id)` | `Topic` |
| `("partition", topic id, number)` | `Partition` |
| `("setting", kind, name)` | bytes, whose meaning the kind decides (access, limits, `DRAINED`) |
| `("counter", name)` | the next number of that kind that nobody has |

Keys and values are msgpack; structs are array-like, and fields are only ever added at their ends. A
reader that meets a record of an unknown kind must stop: its snapshots would lack that record.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.decisions import Record
from penstock.core.errors import UnsupportedVersionError

METADATA_VERSION: Final = 1
"""Of all that is here: one more with each kind of record, and with each field that is added."""
BROKER: Final = "broker"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
SETTING: Final = "setting"
COUNTER: Final = "counter"
DRAINED: Final = "drained"
"""The kind of a setting, of a broker by its number: it leads nothing that another one could. The
value is the broker epoch in which that was asked."""
BROKER_EPOCHS: Final = "broker epochs"
PRODUCER_IDS: Final = "producer ids"
"""Blocks of them: a block is the upper 24 bits of 2**40 ids, and 0 is none."""
ID_BLOCKS: Final = 1 << 24
COORDINATOR_EPOCHS: Final = "coordinator epochs"
PAGES: Final = "pages"


class BrokerRegistration(msgspec.Struct, frozen=True, array_like=True):
    """One registration. `epoch` is new with each life of the broker (`incarnation`); `folder` is
    its data folder's uuid. A fenced broker leads nothing. `kept`: the newest life of which this one
    was in touch with others, so that its folder has to know of it. `id_block`: what the producer
    ids that it gives are of; nobody gets a block again."""

    epoch: int
    incarnation: bytes
    folder: bytes
    endpoints: tuple[str, ...]
    rack: str = ""
    is_fenced: bool = True
    is_leaving: bool = False
    kept: int = 0
    id_block: int = 0


class Topic(msgspec.Struct, frozen=True, array_like=True):
    """`config` is the topic's own, which the controller does not read. `is_synced`: its records
    count only on stable storage (`durability="fsync"`), and so outlive power cuts."""

    name: str
    partitions: int
    min_insync: int
    config: bytes
    is_synced: bool = False


class UncleanRecovery(msgspec.Struct, frozen=True, array_like=True):
    """The last election in which nobody of the last ISR was clean. `leader` was elected in
    `leader_epoch`, with a log that ended at `first` (None: it has not told). Committed records from
    there on may be missing; offsets below `known_end` are known to have been used. `at`: seconds
    since 1970."""

    leader: int
    leader_epoch: int
    first: int | None
    known_end: int
    at: float


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition; see `PartitionAssignment` of `penstock.cluster.replica`. `target`:
    the replicas at the end of a reassignment, empty without one. `last_isr`: brokers that left the
    ISR since a leader was last known to live, the latest first. With the ISR, they are all that may
    have every committed record. `offline`: replicas whose log takes nothing, as their brokers
    report. `blank`: replicas without any data, or with the data of an older copy of their folder.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int = 0
    partition_epoch: int = 0
    target: tuple[int, ...] = ()
    last_isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()
    unclean: UncleanRecovery | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_key: Final = msgspec.msgpack.Decoder(tuple)
VALUES: Final[dict[str, msgspec.msgpack.Decoder[object]]] = {
    BROKER: msgspec.msgpack.Decoder(BrokerRegistration),
    TOPIC: msgspec.msgpack.Decoder(Topic),
    PARTITION: msgspec.msgpack.Decoder(Partition),
    SETTING: msgspec.msgpack.Decoder(bytes),
    COUNTER: msgspec.msgpack.Decoder(int),
}
_entry: Final = msgspec.msgpack.Decoder(list[Record])


def record(kind: str, *name: object, value: object) -> Record:
    """`value` None: the key is gone."""
    return Record(_encode((kind, *name)), None if value is None else _encode(value))


def parsed(record: Record) -> tuple[str, tuple[object, ...], object]:
    """Kind, the rest of the key, and the value. Raises `UnsupportedVersionError` for what a newer
    version wrote."""
    kind, *name = _key.decode(record.key)
    decoder = VALUES.get(kind)
    if decoder is None:
        raise UnsupportedVersionError(f"a record of type {kind!r}, which is not known here")
    try:
        value = None if record.value is None else decoder.decode(record.value)
    except msgspec.ValidationError as error:
        raise UnsupportedVersionError(
            f"a record of type {kind!r} of another form: {error}"
        ) from error
    return kind, tuple(name), value


def pack(records: tuple[Record, ...]) -> bytes:
    """The data of one entry of the log: what was decided together."""
    return _encode(records)


def unpack(data: bytes) -> list[Record]:
    return _entry.decode(data)
