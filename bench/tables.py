"""The loops of a throughput run by Arrow: tables in by `send_arrow`, tables out by `to_arrow`.

Imported only for `--api arrow`, because it needs pyarrow (the extra `arrow`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.bench.ledger import Ledger, Stamps, stamps_in_place
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.producer.producer import Producer

POLL_TIMEOUT: Final = 1.0


def tables_of(pool: list[bytes], keys: list[bytes], length: int) -> list[Any]:
    """Returns the pool as tables of `length` rows, each of one chunk."""
    columns = {"value": pa.array(pool, pa.binary())}
    if keys:
        columns["key"] = pa.array(list(islice(cycle(keys), len(pool))), pa.binary())
    whole = pa.table(columns)
    return [whole.slice(start, length) for start in range(0, len(pool), length)]


def send_tables(
    producer: Producer, topic: str, records: int, *, tables: list[Any], keyed: bool
) -> None:
    """Sends with one `send_arrow` a table, going round the pool."""
    key_column = "key" if keyed else None
    for table in cycle(tables):
        producer.send_arrow(topic, table.slice(0, records), key_column=key_column)
        records -= len(table)
        if records <= 0:
            return


def take_tables(
    consumer: Consumer | GroupConsumer, ledger: Ledger, ends: int, most: int | None = None
) -> None:
    """Takes polled batches as tables; what is checked is the data of their columns. `most` records
    with the ends, if that is known."""
    while ends:
        table = consumer.poll(most, timeout=POLL_TIMEOUT).to_arrow()
        most = None if most is None else most - len(table)
        for partition, values in _runs(table):
            ends -= values.null_count
            found = stamps_of_array(values)
            if len(found):
                ledger.add(partition, found)


def _runs(table: Any) -> Iterator[tuple[int, Any]]:
    """Yields (partition, values) of each record batch, which is of one partition."""
    partitions, values = table.column("partition"), table.column("value")
    for numbers, column in zip(partitions.iterchunks(), values.iterchunks(), strict=True):
        yield numbers[0].as_py(), column


def stamps_of_array(values: Any) -> Stamps:
    """Returns the stamps of a column of values of one width, in place."""
    if values.null_count:
        values = values.drop_null()
    if not len(values):
        return np.empty(0, np.uint64)
    _, bounds, data = values.buffers()
    offsets = np.frombuffer(bounds, np.int32)[values.offset : values.offset + len(values) + 1]
    return stamps_in_place(data, offsets)
