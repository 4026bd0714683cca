"""`backfill`: Parquet, NDJSON or CSV files into a topic, each record exactly once.

The files, in the order of their paths, are cut into slices; a slice is one transaction. The
transactional id is derived from what is read (paths, sizes, times of change) and how it is mapped,
the slice's number is the epoch. So a run that was killed goes on with the first slice that nobody
decided, and one that is repeated finds all of them decided. Other files, or one that changed, are
another backfill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.client.client import Client
from penstock.core.errors import ConfigError, PenstockError, StageDecidedError
from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.common import Say, silent, told
from penstock.spark.sessions import register
from penstock.spark.source import FORMAT

Format = Literal["parquet", "ndjson", "csv"]
Encoding = Literal["json", "csv"]
FORMATS: Final[tuple[Format, ...]] = ("parquet", "ndjson", "csv")
ENDINGS: Final[dict[str, Format]] = {
    ".parquet": "parquet", ".json": "ndjson", ".jsonl": "ndjson", ".ndjson": "ndjson",
    ".csv": "csv",
}  # fmt: skip
PACKED: Final = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
LINE: Final = "value"
"""The one column of a file that is read as lines."""
SLICE_BYTES: Final = 1 << 30
"""Of files, as far as they can be cut: a transaction ends within minutes, and its records are held
back from readers until then."""
WHOLE: Final = 1 << 40
"""No file is larger: it is read by one task, in its order."""
QUOTE: Final = '"'
"""A doubled one means the character itself, as in RFC 4180."""
CSV_OUT: Final = {
    "escape": QUOTE, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
}  # fmt: skip
JSON_OUT: Final = {"ignoreNullFields": "false"}
OPEN_COST: Final = "spark.sql.files.openCostInBytes"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was found. `changed` in milliseconds."""

    path: str
    size: int
    changed: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """The mapping from a row to a record.

    Columns by name; None: no key, every column together as the value (encoded), the partition by
    key or in turn. Lines of NDJSON are values as they are.
    """

    format: Format
    key: str | None = None
    value: str | None = None
    encoding: Encoding = "json"
    partition: str | None = None
    headers: str | None = None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """The result of one run. `slices` of them `done_before`; `records` sent in the others."""

    topic: str
    txn_id: str
    files: int
    slices: int
    done_before: int
    records: int


def backfill(
    spark: SparkSession,
    bootstrap: str,
    paths: Sequence[str],
    topic: str,
    *,
    format: Format | None = None,
    key: str | None = None,
    value: str | None = None,
    encoding: Encoding = "json",
    partition: str | None = None,
    headers: str | None = None,
    ordered: bool = True,
    slice_bytes: int = SLICE_BYTES,
    keys: str | None = None,
    say: Say = silent,
) -> Backfilled:
    """Sends each row of files (or folders, or patterns) to `topic`, once however often it is run.

    Args:
        format: of the files; None tells by their endings. CSV files begin with a line of names.
        key, value, partition, headers: the columns that become these. Without `value` the value is
            the column of that name if a Parquet or CSV file has it, the line of an NDJSON file,
            else the whole row as `encoding` says. An archive's key and headers are taken too.
        encoding: "json" or "csv" (a line without names).
        ordered: each partition gets its records in the order of a file; one task reads it. False:
            large files are read by many.
        keys: the client's key file, which is to be found at that path on every host.

    Raises `ConfigError`, `SparkJobError`.
    """
    if not paths or isinstance(paths, str):
        raise ConfigError(f"paths={paths!r}: a list of files or folders is wanted")
    with told(f"listing {', '.join(paths)}"):
        files = found_files(spark, paths)
    if not files:
        raise ConfigError(f"no file to read in {', '.join(paths)}")
    mapping = Mapping(format or format_of(files), key, value, encoding, partition, headers)
    slices = cut(files, slice_bytes)
    txn_id = txn_id_of(topic, mapping, files, slices)
    done_before = records = 0
    own = reading_session(spark, ordered=ordered)
    node = NodeAddress(bootstrap, keys=keys)
    with node.connect("penstock-backfill") as client:
        for epoch, part in enumerate(slices):
            name = f"slice {epoch + 1} of {len(slices)} ({len(part)} files)"
            if is_decided(client, txn_id, epoch):
                done_before += 1
                say(f"{name}: was sent before")
                continue
            with told(f"sending {name} to {topic}"):
                rows = to_records(read_files(own, part, mapping), mapping)
                sent = send(rows, node, topic, txn_id, epoch)
            records += sent
            say(f"{name}: {sent:,} records")
    return Backfilled(topic, txn_id, len(files), len(slices), done_before, records)


# --- what is read -------------------------------------------------------------------------------
def found_files(spark: SparkSession, paths: Sequence[str]) -> list[InputFile]:
    """Returns the files that Spark reads for `paths`, sorted. Of an archive those that are on its
    list."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    names: set[str] = set()
    for path in paths:  # one by one: so Spark looks for an archive's list
        names.update(spark.read.format("text").load(path).inputFiles())
    found = []
    for name in sorted(names):
        place = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name))
        status = place.getFileSystem(conf).getFileStatus(place)
        found.append(InputFile(name, status.getLen(), status.getModificationTime()))
    return found


def format_of(files: Sequence[InputFile]) -> Format:
    """Finds the one format of the files by their endings. Raises `ConfigError`."""
    kinds = set()
    for file in files:
        endings = [ending for ending in PurePath(file.path).suffixes if ending not in PACKED]
        kinds.add(ENDINGS.get(endings[-1]) if endings else None)
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise ConfigError(
            f"files like {files[0].path} do not tell one format by their endings: say which of "
            f"{', '.join(FORMATS)} it is"
        )
    return kind


def cut(files: Sequence[InputFile], slice_bytes: int) -> list[list[InputFile]]:
    """Runs of files with at most so many bytes, or of one file."""
    slices: list[list[InputFile]] = []
    size = 0
    for file in files:
        if not slices or size + file.size > slice_bytes:
            slices.append([])
            size = 0
        slices[-1].append(file)
        size += file.size
    return slices


def txn_id_of(
    topic: str, mapping: Mapping, files: Sequence[InputFile], slices: Sequence[Sequence[InputFile]]
) -> str:
    """Returns one id for each set of files, mapping and way of cutting."""
    told_of = [
        topic,
        *(mapping.format, mapping.key, mapping.value, mapping.encoding),
        *(mapping.partition, mapping.headers),
        [(file.path, file.size, file.changed) for file in files],
        [len(part) for part in slices],
    ]
    digest = hashlib.sha256(json.dumps(told_of).encode()).hexdigest()
    return f"backfill-{digest[:40]}"


# --- from rows to records -----------------------------------------------------------------------
def reading_session(spark: SparkSession, *, ordered: bool) -> SparkSession:
    """Makes a session with settings of its own. In order: one task for each file."""
    own = spark.newSession()
    register(own)
    if ordered:
        own.conf.set("spark.sql.files.maxPartitionBytes", WHOLE)
        own.conf.set(OPEN_COST, WHOLE)
    return own


def is_whole(spark: SparkSession) -> bool:
    """Returns whether one task reads all of a file: then a quoted value may have several lines."""
    return spark.conf.get(OPEN_COST) == str(WHOLE)


def read_files(spark: SparkSession, files: Sequence[InputFile], mapping: Mapping) -> DataFrame:
    """Rows of files. NDJSON stays lines: what is looked up in them is, the rest is not parsed."""
    paths = [file.path for file in files]
    if mapping.format == "parquet":
        return spark.read.parquet(*paths)
    if mapping.format == "csv":
        return spark.read.csv(
            paths, header=True, enforceSchema=False, escape=QUOTE, multiLine=is_whole(spark)
        )
    return spark.read.text(paths).where(F.trim(LINE) != "")


def to_records(rows: DataFrame, mapping: Mapping) -> DataFrame:
    """Returns the columns of the sink. Raises `ConfigError` for a column that is not there."""
    if mapping.format == "ndjson":
        return rows.select(*_of_lines(mapping))
    there = rows.columns
    for name in (mapping.key, mapping.value, mapping.partition, mapping.headers):
        if name is not None and name not in there:
            raise ConfigError(f"there is no column {name!r}: the files have {', '.join(there)}")
    is_records = mapping.value is None and "value" in there
    value, key, headers = mapping.value, mapping.key, mapping.headers
    if is_records:  # an archive, or made like one
        value = "value"
        key = key or ("key" if "key" in there else None)
        headers = headers or ("headers" if "headers" in there else None)
    columns = [_whole(there, mapping) if value is None else _bytes(rows, value)]
    if key is not None:
        columns.append(_bytes(rows, key).alias("key"))
    if headers is not None:
        columns.append(_column(headers).alias("headers"))
    if mapping.partition is not None:
        columns.append(_column(mapping.partition).cast("int").alias("partition"))
    return rows.select(columns[0].alias("value"), *columns[1:])


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _whole(names: Iterable[str], mapping: Mapping) -> Column:
    row = F.struct(*map(_column, names))
    return F.to_csv(row, CSV_OUT) if mapping.encoding == "csv" else F.to_json(row, JSON_OUT)


def _bytes(rows: DataFrame, name: str) -> Column:
    """Returns text and bytes unchanged, numbers and the like as text."""
    kind = rows.schema[name].dataType.typeName()
    return _column(name) if kind in ("binary", "string") else _column(name).cast("string")


def _of_lines(mapping: Mapping) -> list[Column]:
    if mapping.headers is not None:
        raise ConfigError("lines of NDJSON have no column of headers: convert them to Parquet")
    columns = [F.col(LINE) if mapping.value is None else _field(mapping.value).alias("value")]
    if mapping.key is not None:
        columns.append(_field(mapping.key).alias("key"))
    if mapping.partition is not None:
        columns.append(_field(mapping.partition).cast("int").alias("partition"))
    return columns


def _field(name: str) -> Column:
    if "'" in name:
        raise ConfigError(f"the field {name!r} of JSON has a quote in its name")
    return F.get_json_object(LINE, f"$['{name}']")


# --- sending ------------------------------------------------------------------------------------
def is_decided(client: Client, txn_id: str, epoch: int) -> bool:
    """Returns whether this slice is in the topic already. Raises `PenstockError` if it was given
    up."""
    try:
        client.stage(txn_id, epoch).give_up()
    except StageDecidedError:
        if not client.commit_transaction(txn_id, epoch, []).committed:
            raise PenstockError(
                f"somebody decided that slice {epoch} of {txn_id} is not to be sent: change the "
                "time of a file (touch) to make another backfill of it"
            ) from None
        return True
    return False


def send(records: DataFrame, node: NodeAddress, topic: str, txn_id: str, epoch: int) -> int:
    """Writes one transaction; returns the number of its records."""
    seen = Observation()
    counted = records.observe(seen, F.count(F.lit(1)).alias("records"))
    writer = counted.write.format(FORMAT).mode("append").options(**node.options())
    writer.option("topic", topic).option("txnId", txn_id).option("txnEpoch", epoch).save()
    return int(seen.get["records"])
