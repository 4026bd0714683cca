"""To which partition each row of an Arrow column goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.client.arrow.send import choose
from penstock.client.producer.partitioner import partition_of
from penstock.core.columns import BinaryColumn

KEYS = [b"21", b"foobar", b"", b"a-little-bit-long-string", b"1", b"kafka"]


def column(keys: list[bytes | None]) -> BinaryColumn:
    lengths = [0, *(len(key or b"") for key in keys)]
    data = b"".join(key or b"" for key in keys)
    valid = np.array([key is not None for key in keys])
    return BinaryColumn(np.cumsum(lengths).astype(np.int32), memoryview(data), valid)


def topic(partitions: int, sticky: int) -> Any:
    return SimpleNamespace(routes=[None] * partitions, next_sticky=lambda: sticky, spread=None)


def test_rows_go_where_their_keys_say_and_those_without_to_the_sticky_partition():
    keys: list[bytes | None] = [*KEYS, None, b"21", None]
    for partitions in (2, 3, 7, 12):
        for sticky in range(partitions):
            chosen = choose(column(keys), topic(partitions, sticky)).tolist()
            assert chosen == [
                sticky if key is None else partition_of(key, partitions) for key in keys
            ]


def test_a_slice_of_a_column_goes_where_the_whole_does():
    whole = column([*KEYS, None])
    chosen = choose(whole, topic(7, 3)).tolist()
    for start in range(len(whole)):
        part = whole[start:]
        assert isinstance(part, BinaryColumn)
        assert choose(part, topic(7, 3)).tolist() == chosen[start:]
