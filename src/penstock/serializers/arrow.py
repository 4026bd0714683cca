"""Tables of Arrow as values: each record is an IPC stream. The extra `arrow`.

For records that are tables themselves, such as a batch of measurements. For batches of ordinary
records take `RecordBatch.to_arrow` and `send_arrow`, which need no copy.
"""

from __future__ import annotations

from typing import Any

import pyarrow
from pyarrow import ipc

from penstock.serializers.serializer import Decode, Encode, Part, Serializer


class Arrow(Serializer[Any]):
    """Anything with `__arrow_c_stream__`, which comes back as a `pyarrow.Table`, in place of the
    record's bytes. `compression`: "lz4", "zstd" or None, for producers."""

    def __init__(self, compression: str | None = None) -> None:
        self._options = ipc.IpcWriteOptions(compression=compression)

    def encoder(self, topic: str, part: Part) -> Encode[Any]:
        return self._encode

    def decoder(self, topic: str, part: Part) -> Decode[Any]:
        return _decode

    def _encode(self, value: Any) -> bytes:
        reader = pyarrow.RecordBatchReader.from_stream(value)
        out = pyarrow.BufferOutputStream()
        with ipc.new_stream(out, reader.schema, options=self._options) as writer:
            for batch in reader:
                writer.write_batch(batch)
        data: bytes = out.getvalue().to_pybytes()
        return data

    def __repr__(self) -> str:
        return "Arrow()"


def _decode(data: bytes) -> Any:
    with ipc.open_stream(data) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table
