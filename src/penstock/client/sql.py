"""`penstock.sql`: DuckDB over live topics.

A topic that a query names becomes a view over a scan: the records of all its partitions between
where it starts and the last stable offsets of the moment of the call, without what transactions
aborted; read in place, streamed batch by batch into DuckDB and never gathered. A relation runs when
its result is asked for, and each run reads the same span again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.client.admin.admin import Admin
from penstock.client.consumer.consumer import Consumer, Start
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk
from penstock.client.consumer.span_scan import Span, scanning
from penstock.client.session import place_of
from penstock.core import errors as er

if TYPE_CHECKING:
    import duckdb

    from penstock.client.remote.address import Place

CLIENT_ID: Final = "penstock-sql"
TOPICS_NAMED: Final = 20
"""So many topics are listed in an error."""


def sql(
    query: str,
    *,
    url: str = "shm://",
    start: Start = "earliest",
    tables: Mapping[str, Any] | None = None,
    timeout: float = 5.0,
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation of a query over topics, each with the columns topic, partition, offset,
    timestamp, key, value and headers (`penstock.client.arrow.export` has their types).

    Args:
        query: in DuckDB's SQL. A topic is named like a table, in double quotes where its name has
            other signs than letters, digits and underscores. `decode(value)` is the text of a
            value. Files can be named too, as DuckDB does.
        start: where scans begin: "earliest", "latest", an offset, a datetime or an `Offset`. They
            end at the high watermarks of now.
        tables: further tables by name: Arrow tables, frames of Polars or pandas, and the like.
        timeout: seconds for each answer of the node, and for each wait of a scan.

    Raises ImportError without DuckDB (`penstock[sql]`), `UnknownTopicError` for a table that is no
    topic, and DuckDB's own errors for what is wrong with the query. A scan that cannot go on
    (retention took what it was to read) fails the run.
    """
    connection = connected(query, url=url, start=start, tables=tables, timeout=timeout)
    try:
        return connection.sql(query)
    except Exception as error:
        raise explained(error, url, timeout) from error


def connected(
    query: str,
    *,
    url: str,
    start: Start = "earliest",
    tables: Mapping[str, Any] | None = None,
    timeout: float = 5.0,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that knows the topics a query may mean, as `sql` does."""
    try:
        import duckdb
        import pytz  # noqa: F401 - DuckDB makes times with zones by it, and fails late without

        import penstock.client.arrow.export  # noqa: F401 - scans are streams of it
    except ImportError as error:
        raise ImportError(
            "SQL over topics needs DuckDB and pyarrow: pip install 'penstock[sql]'"
        ) from error
    socket = place_of(url)
    with Admin(socket, client_id=CLIENT_ID, timeout=timeout) as admin:
        known = admin.list_topics()
    text = query.lower()
    named = [name for name in known if name.lower() in text]
    named.sort(key=lambda name: name in query)  # of names that differ in case, the one as written
    connection = duckdb.connect(config={"python_enable_replacements": False})
    for name, scan in scans(socket, named, start, timeout).items():
        connection.register(name, scan)
    for name, table in (tables or {}).items():
        connection.register(name, table)
    return connection


def explained(error: Exception, url: str, timeout: float = 5.0) -> Exception:
    """The error to raise for what DuckDB said: of a table that is not there, which topics are."""
    first, *_ = str(error).splitlines() or [""]
    if not first.startswith("Catalog Error: Table"):
        return error
    with Admin(place_of(url), client_id=CLIENT_ID, timeout=timeout) as admin:
        topics = admin.list_topics()
    listed = ", ".join(topics[:TOPICS_NAMED]) + (", ..." if len(topics) > TOPICS_NAMED else "")
    return er.UnknownTopicError(
        f"{first.removeprefix('Catalog Error: ')} Topics at {url}: {listed or 'none'}"
    )


def scans(socket: Place, topics: list[str], start: Start, timeout: float) -> dict[str, SqlScan]:
    """A scan of each topic, from `start` to the high watermarks of now."""
    if not topics:
        return {}
    with Consumer(
        socket, topics, client_id=CLIENT_ID, start=start, isolation="read_committed",
        timeout=timeout,
    ) as consumer:  # fmt: skip
        ends = consumer.end_offsets()
        spans = {name: (consumer.position(*name), end) for name, end in ends.items()}
    return {
        topic: SqlScan(
            socket,
            topic,
            {name: span for name, span in spans.items() if name[0] == topic},
            timeout,
        )
        for topic in topics
    }


class SqlScan:
    """Spans of offsets of one topic, as an Arrow stream that can be asked for again and again."""

    def __init__(
        self,
        socket: Place,
        topic: str,
        spans: Mapping[TopicPartition, Span],
        timeout: float,
    ) -> None:
        self._socket = socket
        self._topic = topic
        self._spans = {name: span for name, span in spans.items() if span[0] < span[1]}
        self._timeout = timeout

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream over the spans; it attaches to the node when its first batch is asked for."""
        from penstock.client.arrow.export import reader

        return reader(self.chunks(), [self._topic]).__arrow_c_stream__(requested_schema)

    def chunks(self) -> Iterator[Chunk]:
        """The records, chunk by chunk, partitions taking turns."""
        if not self._spans:
            return
        with Consumer(
            self._socket, client_id=CLIENT_ID, isolation="read_committed", timeout=self._timeout
        ) as consumer:
            for chunks in scanning(consumer, self._spans, self._timeout):
                yield from chunks
