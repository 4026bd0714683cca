"""Spark as the sink sees it, without a JVM: a writer is made on the driver for each attempt and
goes to the tasks pickled; a stream is committed by another writer object, a batch by its own.

As a program it is one task in a process of its own, which dies (`kill -9`) after its first batch.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pyarrow as pa
from node_helpers import ROOT, environment
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.sink import BATCH_ID, QUERY_ID, StageMessage
from penstock.spark.source import PenstockDataSource

Rows = Iterable[pa.RecordBatch]
VALUES = pa.schema([("value", pa.binary())])


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=VALUES)


@contextmanager
def task(properties: Mapping[str, str]) -> Iterator[None]:
    """As if this process ran a task of a job with these local properties."""
    TaskContext._setTaskContext(None)
    TaskContext._setTaskContext(TaskContext(localProperties=dict(properties)))
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


class Job:
    """A `df.write`, or one attempt at a batch of a stream: what Spark keeps of it on the driver."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: pa.Schema = VALUES,
        *,
        query: str | None = None,
        batch: int | None = None,
        streaming: bool | None = None,
    ) -> None:
        self._source = PenstockDataSource(CaseInsensitiveDict(options))
        self._schema = from_arrow_schema(schema)
        self.streaming = query is not None if streaming is None else streaming
        self.batch = batch
        self.properties = {} if query is None else {QUERY_ID: query, BATCH_ID: str(batch)}
        self._writer = pickle.dumps(self._made())
        self.messages: list[StageMessage | None] = []

    def _made(self) -> Any:
        make = self._source.streamWriter if self.streaming else self._source.writer
        return make(self._schema, False)

    def task(self, batches: Rows) -> StageMessage:
        """What a task tells the driver; Spark keeps it only if that task was the one to count."""
        with task(self.properties):
            message = pickle.loads(self._writer).write(iter(batches))
        return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]

    def run(self, *tasks: Rows) -> Job:
        self.messages += [self.task(batches) for batches in tasks]
        return self

    def killed(self, batches: Rows) -> None:
        """A task in a process that is killed when its first batch is staged."""
        said = pickle.dumps((self._writer, self.properties, list(batches)))
        paths = f"{environment()['PYTHONPATH']}{os.pathsep}{ROOT / 'tests'}"
        done = subprocess.run(
            [sys.executable, __file__],
            input=said,
            env={**environment(), "PYTHONPATH": paths},
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL

    def commit(self) -> None:
        self._end("commit")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, verb: str) -> None:
        if self.streaming:
            getattr(self._made(), verb)(self.messages, self.batch)
        else:
            getattr(pickle.loads(self._writer), verb)(self.messages)


class Query:
    """A streaming query: its id lives in its checkpoint."""

    def __init__(self, options: Mapping[str, str], schema: pa.Schema = VALUES) -> None:
        self.id = str(uuid4())
        self._options, self._schema = options, schema

    def attempt(self, batch: int) -> Job:
        """The driver begins (or after a crash begins again) a batch."""
        return Job(self._options, self._schema, query=self.id, batch=batch)


def _main() -> None:
    writer, properties, batches = pickle.loads(sys.stdin.buffer.read())

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches
        os.kill(os.getpid(), signal.SIGKILL)

    with task(properties):
        pickle.loads(writer).write(dying())


if __name__ == "__main__":
    _main()
