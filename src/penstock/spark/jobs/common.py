"""Shared parts of the jobs: reading topics, following a streaming query, short errors, locks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.core.errors import ConfigError, PenstockError, PenstockTimeout
from penstock.spark.clients import NodeAddress
from penstock.spark.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Say = Callable[[str], object]
"""Takes one line about how far a job is."""

LOCK: Final = "_lock"
"""Names with `_` in front are no data to readers of a folder."""
LOCK_TIMEOUT: Final = 60.0
"""Seconds that the Java of a killed job has to end."""
POLL: Final = 0.3
FOLLOW_POLL: Final = 1
_RAISED: Final = re.compile(r"^\s*(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Timeout|Exception)): (.+)$")


class SparkJobError(PenstockError):
    """Spark gave a job up. Says what was raised first, wherever that was."""


def silent(_: str) -> None:
    """Ignores progress messages."""


def checked_topics(topics: Sequence[str]) -> str:
    """Returns topics as the option `subscribe` has them."""
    if isinstance(topics, str):
        raise ConfigError(f"topics={topics!r}: a list of names is wanted")
    if not topics:
        raise ConfigError("no topic given: name one or more")
    return ",".join(topics)


def read_topics(
    spark: SparkSession,
    node: NodeAddress,
    topics: Sequence[str],
    schema: str | None = None,
    options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Reads the records that are in topics now, with each column or those of `schema`."""
    reader = spark.read.format(FORMAT)
    if schema is not None:
        reader = reader.schema(schema)
    settings = {**node.options(), "subscribe": checked_topics(topics), **(options or {})}
    for name, value in settings.items():
        reader = reader.option(name, str(value))
    return reader.load()


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turns an error of Spark into a `SparkJobError` of one sentence."""
    try:
        yield
    except PySparkException as error:
        raise SparkJobError(f"{doing}: {explained(str(error))}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise SparkJobError(f"{doing}: {explained(str(error))}") from error


def explained(text: str) -> str:
    """Returns the last line of a Python traceback within Spark's message, else its first line."""
    raised = [found for line in text.splitlines() if (found := _RAISED.match(line))]
    for found in reversed(raised):
        if not found[1].startswith(("PySpark", "PythonException", "Py4J", "SparkException")):
            return f"{found[2]} ({found[1]})"
    first = next(filter(None, map(str.strip, text.splitlines())), "Spark did not say why")
    return first[:500]


def follow(query: StreamingQuery, say: Say) -> tuple[int, int]:
    """Waits until a query ends, and reports each batch: (batches, records). If the wait ends in any
    other way, the query ends too."""
    seen: dict[int, int] = {}

    def tell() -> None:
        for event in query.recentProgress:
            number, rows = int(event["batchId"]), int(event["numInputRows"])
            if rows and number not in seen:
                seen[number] = rows
                rate = float(event["processedRowsPerSecond"] or 0)
                say(f"batch {number}: {rows:,} records, {rate:,.0f} a second")

    try:
        while not query.awaitTermination(FOLLOW_POLL):
            tell()
        tell()
    finally:
        query.stop()
    return len(seen), sum(seen.values())


def local_path(place: str) -> Path | None:
    """Returns the folder or file on this host that Spark means by `place`; None for one
    elsewhere."""
    parts = urlsplit(place)
    if not parts.scheme:
        return Path(place).absolute()
    if parts.scheme != "file":
        return None
    return Path(unquote(parts.path))


@contextmanager
def alone_in(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Locks `folder` against other writers. The JVM holds the lock, because it writes: it may live
    a little longer than a Python that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    jvm: Any = spark._jvm
    file = jvm.java.io.RandomAccessFile(str(folder / LOCK), "rw")
    try:
        until = time.monotonic() + LOCK_TIMEOUT
        while _try_lock(file) is None:
            if time.monotonic() >= until:
                raise PenstockTimeout(
                    f"another job has been writing to {folder} for {LOCK_TIMEOUT:g} s: wait for "
                    "it, or choose another folder"
                )
            time.sleep(POLL)
        yield
    finally:
        file.close()


def _try_lock(file: Any) -> Any:
    try:
        return file.getChannel().tryLock()
    except Exception as error:
        if "OverlappingFileLockException" in str(error):  # another thread of this very program
            return None
        raise


def replace_parquet(spark: SparkSession, frame: DataFrame, out: str) -> None:
    """Writes a table as one folder in place of the present one, which stays until the new one is
    whole. A run that was killed leaves the old one, or (between two renames) the new one beside its
    place. The next run does not need that one."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    target = jvm.org.apache.hadoop.fs.Path(out)
    files = target.getFileSystem(conf)
    fresh, old = (target.suffix(ending) for ending in (".new", ".old"))
    frame.write.mode("overwrite").parquet(fresh.toString())
    files.delete(old, True)
    if files.exists(target):
        files.rename(target, old)
    if not files.rename(fresh, target):
        raise SparkJobError(f"{fresh.toString()} is whole, but cannot be renamed to {out}")
    files.delete(old, True)
