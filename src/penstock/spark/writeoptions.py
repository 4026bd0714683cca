"""The options of `df.write` and `df.writeStream`, checked, and the columns.

Spark hands all names of options over in lower case and all values as text. Pure: the tasks find out
whether a topic is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal, NoReturn, cast

from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.readoptions import NAMES, SINK

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPARKS_OWN: Final = ("checkpointlocation", "queryname", "path")
"""Spark's own options for writers, which it hands on to formats."""

KAFKAS: Final = {"transactionalid": "txnid"}
"""Options that people know by Kafka's words, in lower case, and ours."""

PASSED_OVER: Final = ("offset", "timestamp", "timestampType")
"""Columns of the source that say where a record was: what is read can be written as it is."""
_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (
        "array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>",
        "map<string,binary>", "map<string,string>",
    ),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
}  # fmt: skip

Durability = Literal["fsynced", "appended"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The checked options of the sink; docs/guide/spark.md explains each option.

    `topic`: where all rows go; None: each to the topic in its column `topic`. `columns`: those that
    are there, of value, key, headers, topic and partition."""

    address: NodeAddress
    topic: str | None
    txn_id: str | None
    txn_epoch: int | None
    compression: str
    durability: Durability
    columns: frozenset[str]

    @classmethod
    def of(
        cls, options: Mapping[str, str], schema: StructType, *, streaming: bool, overwrite: bool
    ) -> WriteOptions:
        """Raises `ConfigError` naming the option or the column."""
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given)
        if overwrite and not streaming:  # a stream's complete mode appends, as to Kafka
            raise ConfigError(
                "a topic is a log, which cannot be overwritten: write with mode('append'), to "
                "another topic if what is there is not wanted"
            )
        topic = given.get("topic") or None
        txn_id = given.get("txnid") or None
        if streaming and "txnepoch" in given:
            raise ConfigError("option txnEpoch is not for streams: their batches are the epochs")
        if "txnepoch" in given and txn_id is None:
            raise ConfigError("option txnEpoch needs txnId: the transaction whose epoch it is")
        durability = given.get("transactiondurability", "fsynced")
        if durability not in ("fsynced", "appended"):
            raise ConfigError(
                f"option transactionDurability is {durability!r}: it is 'fsynced' or 'appended'"
            )
        return cls(
            address=NodeAddress.of(given),
            topic=topic,
            txn_id=txn_id,
            txn_epoch=_epoch(given["txnepoch"]) if "txnepoch" in given else None,
            compression=given.get("compression", "none"),
            durability=cast(Durability, durability),
            columns=_columns(schema, topic),
        )


def _check_names(given: Mapping[str, str]) -> None:
    """Options of the source are let be: programs keep one set for both."""
    for name in given:
        if name not in NAMES and name not in SPARKS_OWN and "." not in name:
            near = [KAFKAS[name]] if name in KAFKAS else get_close_matches(name, NAMES, 1)
            hint = f"did you mean {NAMES[near[0]]}?" if near else f"it has {', '.join(SINK)}"
            raise ConfigError(f"the sink of penstock has no option {name!r}: {hint}")


def _epoch(text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 2**63:
        raise ConfigError(
            f"option txnEpoch is {text!r}: it is a number from 0 on that grows with each write of "
            "the txnId; in foreachBatch that is the batch id"
        )
    return int(text)


def _columns(schema: StructType, topic: str | None) -> frozenset[str]:
    found = set()
    for field in schema.fields:
        name, type_ = field.name, field.dataType.simpleString().lower()
        if name in PASSED_OVER:
            continue
        if name not in _TYPES:
            near = get_close_matches(name.lower(), _TYPES, 1, 0.75)
            hint = f"rename it to {near[0]!r}" if near else "put it into value, or drop it"
            raise ConfigError(
                f"penstock cannot write a column {name!r}: records have {', '.join(_TYPES)}; {hint}"
            )
        plain = type_.split(" collate ")[0] if " " in type_ else type_
        if plain not in _TYPES[name]:
            _wrong_type(name, type_)
        if name in found:
            raise ConfigError(f"there are two columns {name!r}: drop one of them")
        found.add(name)
    if "value" not in found:
        raise ConfigError(
            "there is no column 'value' to write: select(... .alias('value')), such as "
            "to_json(struct('*'))"
        )
    if topic is None and "topic" not in found:
        raise ConfigError(
            "nothing says where to write: set the option 'topic', or have a column 'topic'"
        )
    return frozenset(found)


def _wrong_type(name: str, type_: str) -> NoReturn:
    wanted = " or ".join(t.upper() for t in _TYPES[name][:2])
    how = "to_json(...) of it, or a cast" if name == "value" else "a cast"
    raise ConfigError(f"column {name!r} is {type_.upper()} and must be {wanted}: write {how}")
