"""`to_numpy`: shapes and types as documented, and views where the bytes allow them."""

from __future__ import annotations

import numpy as np
import pytest
from chunk_builder import chunk_of

from penstock.client.consumer.records import RecordBatch


def test_every_column_has_its_type_and_length():
    batch = RecordBatch(
        [chunk_of([b"abcd"] * 3, partition=2, base_offset=7), chunk_of([b"efgh"], partition=1)]
    )
    found = batch.to_numpy()
    assert {name: (array.dtype.str, array.shape) for name, array in found.items()} == {
        "partitions": ("<i4", (4,)),
        "offsets": ("<i8", (4,)),
        "timestamps": ("<M8[us]", (4,)),
        "values": ("|u1", (4, 4)),
    }
    assert found["offsets"].tolist() == [7, 8, 9, 0]
    assert found["partitions"].tolist() == [2, 2, 2, 1]
    assert found["timestamps"][0] == np.datetime64(1000, "us")
    assert found["values"].tobytes() == b"abcd" * 3 + b"efgh"


@pytest.mark.parametrize(("start", "stop"), [(0, None), (1, 3)])
def test_one_chunk_of_one_width_is_a_view(start, stop):
    chunk = chunk_of([b"%08d" % n for n in range(4)], start=start, stop=stop)
    source = np.frombuffer(chunk.values.data, np.uint8)
    for dtype in (None, "<u8", "S8", "<u2", [("a", "<u4"), ("b", "<u4")]):
        values = RecordBatch([chunk]).to_numpy(dtype)["values"]
        assert np.shares_memory(values, source)
        assert [row.tobytes() for row in values] == chunk.values.to_list()
        assert not values.flags.writeable


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(None, (3, 8)), ("<u8", (3,)), ("<f4", (3, 2)), ("u1", (3, 8)), ([("a", "<i8")], (3,))],
)
def test_a_dtype_divides_the_values(dtype, shape):
    batch = RecordBatch([chunk_of([bytes(8)] * 2), chunk_of([bytes(8)])])
    assert batch.to_numpy(dtype)["values"].shape == shape


def test_an_empty_batch_has_empty_columns():
    assert RecordBatch().to_numpy()["values"].shape == (0, 0)
    assert RecordBatch().to_numpy("<i8")["values"].shape == (0,)
    assert len(RecordBatch().to_numpy()["offsets"]) == 0


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([b"a", b"bb"], None, "1 to 2 bytes"),
        ([b"a", None], None, "1 of 2 values are null"),
        ([b"abc"], "<u2", "3 bytes are no whole number of uint16"),
        ([b""], "<u2", "0 bytes"),
        ([b"abcdefgh"], object, "object"),
    ],
)
def test_what_fits_no_array_is_said(values, dtype, message):
    with pytest.raises(ValueError, match=message):
        RecordBatch([chunk_of(values)]).to_numpy(dtype)


def test_chunks_of_different_widths_are_told():
    batch = RecordBatch([chunk_of([b"a"]), chunk_of([b"bbb"])])
    with pytest.raises(ValueError, match="1 to 3 bytes"):
        batch.to_numpy()
