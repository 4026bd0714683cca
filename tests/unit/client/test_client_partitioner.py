"""Keys land where users of Kafka expect them, one by one or by the column."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.client.producer.partitioner import (
    murmur2,
    murmur2_column,
    murmur2_items,
    partition_of,
    partitions_of,
)

BOUNDED = settings(derandomize=True, max_examples=300)

# Kafka's own test vectors (UtilsTest), and others' that were made with Kafka's code.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
    b"kafka": -798503068,
    b"string-f-24-chars-length": 124730809,
    b"string-fo-25-chars-length": 1269511650,
    b"string-foo-26-chars-length": 119165628,
    b"string-last-27-chars-length": 1089971754,
}


@pytest.mark.parametrize("key", KAFKA)
def test_hashes_are_those_of_kafka(key):
    assert murmur2(key) == KAFKA[key]


@pytest.mark.parametrize("times", [1, 2, 30])
def test_columns_of_hashes_are_those_of_kafka(times):
    keys = list(KAFKA) * times
    assert murmur2_column(keys).view("i4").tolist() == list(KAFKA.values()) * times


@pytest.mark.parametrize(("partitions", "expected"), [(1, 0), (12, 6), (50, 16), (1000, 166)])
def test_a_partition_is_the_positive_hash_modulo_the_count(partitions, expected):
    hashed = KAFKA[b"foobar"] & 0x7FFFFFFF
    assert hashed % partitions == expected
    assert partitions_of([b"foobar"], partitions).tolist() == [expected]
    assert partitions_of([b"foobar"] * 40, partitions).tolist() == [expected] * 40


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 12, 1000])
def test_one_key_goes_where_it_does_in_a_column_also_if_its_hash_is_negative(partitions):
    wanted = [(hashed & 0x7FFFFFFF) % partitions for hashed in KAFKA.values()]
    assert [partition_of(key, partitions) for key in KAFKA] == wanted
    assert partitions_of(list(KAFKA), partitions).tolist() == wanted
    assert partitions_of(list(KAFKA) * 3, partitions).tolist() == wanted * 3


@BOUNDED
@given(
    st.lists(st.binary(max_size=40), max_size=60)
    | st.integers(0, 12).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60)
    ),
    st.integers(1, 5000),
)
@example([b""] * 24, 3)
@example([b"", b"x" * 100] * 12, 3)
@example([bytes([0xFF]) * size for size in range(30)], 7)
def test_a_column_is_hashed_as_its_keys_are(keys, partitions):
    assert murmur2_column(keys).view("i4").tolist() == [murmur2(key) for key in keys]
    found = partitions_of(keys, partitions).tolist()
    assert found == [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert all(0 <= partition < partitions for partition in found)


@BOUNDED
@given(st.binary(max_size=300), st.lists(st.integers(0, 40), max_size=40), st.integers(0, 1 << 30))
def test_keys_hash_alike_where_they_stand_in_a_buffer(data, lengths, seed):
    lengths = [min(length, len(data)) for length in lengths]
    starts = [seed % (len(data) - length + 1) for length in lengths]
    hashes = murmur2_items(
        np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(lengths, np.int64)
    )
    wanted = [murmur2(data[at : at + n]) for at, n in zip(starts, lengths, strict=True)]
    assert hashes.view("i4").tolist() == wanted
