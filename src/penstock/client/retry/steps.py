"""Steps of a run, which a thread or an event loop carries out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from penstock.client.consumer.records import Record
from penstock.ipc.waits import Waits

T = TypeVar("T")


class HandleStep(NamedTuple):
    """Call the handler."""

    record: Record[Any, Any]


class BlockStep(NamedTuple):
    """Do this, which may take its time."""

    work: Callable[[], Any]


class ProducerStep(NamedTuple):
    """ProducerStep this of the caller's producer, which is one of the same kind as the consumer."""

    work: Callable[[], Any]


class WaitStep(NamedTuple):
    """WaitStep these waits out."""

    waits: Waits[Any]


Step: TypeAlias = HandleStep | BlockStep | ProducerStep | WaitStep
Steps: TypeAlias = Generator[Step, Any, T]
