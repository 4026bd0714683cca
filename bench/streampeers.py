"""The interface that each measured log implements: records in one order, from one sender to one
reader.

A peer is a server, which a run starts for itself or is told of, and a client in Python. Doors to it
go to other processes. The reader takes records until one is empty: that is the last of a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.bench.errors import BenchError
from penstock.bench.peerserver import HOST

END: Final = b""
"""The value behind the last record of a phase."""
WITHIN: Final = 120.0
"""Seconds that a server has for an answer."""

Take = Callable[[bytes], None]


class StreamSender(Protocol):
    def send(self, topic: str, value: bytes, /) -> object:
        """One record, on its way at once."""

    def send_all(self, topic: str, values: Iterable[bytes]) -> None:
        """As fast as it goes, until the server has acknowledged each."""

    def close(self) -> None: ...


class StreamReader(Protocol):
    def read(self, take: Take) -> None:
        """Hand each value to `take`, in order, up to the next empty one, which is not handed out.
        It goes on where the last call ended."""

    def close(self) -> None: ...


class StreamDoor(Protocol):
    """How the processes of a run reach a server. It is pickled."""

    def create(self, topic: str) -> None: ...

    def sender(self, *, quick: bool) -> StreamSender:
        """`quick`: each record is to be at the reader soon; otherwise many of them."""

    def reader(self, topic: str, *, quick: bool) -> StreamReader: ...


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> Address:
        """Raises `BenchError` for what is not HOST:PORT."""
        host, colon, port = text.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise BenchError(f"--{option} {text}: not HOST:PORT")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """folder: of a server's own. address: of one that runs already. jars: where Kafka's are, once
    they are there."""

    folder: Path
    address: Address | None = None
    jars: Path | None = None


@contextmanager
def served(
    place: StreamPlace,
    door: Callable[[Address], StreamDoor],
    server: Callable[[StreamPlace], AbstractContextManager[int]],
) -> Iterator[StreamDoor]:
    """A door to the server that runs already, or to one of this run. `server`: starts it and yields
    its port."""
    if place.address is not None:
        yield door(place.address)
        return
    with server(place) as port:
        yield door(Address(HOST, port))


@dataclass(frozen=True, slots=True)
class StreamPeer:
    """A row of the table.

    server: peers of the same server share one. records: how many there are, as a share of those
    asked for. kept: what is true of an acknowledged record. settings: what is not as it comes."""

    key: str
    name: str
    client: str
    server: str
    serve: Callable[[StreamPlace], AbstractContextManager[StreamDoor]]
    missing: Callable[[StreamPlace], str | None]
    versions: Callable[[StreamPlace], dict[str, str]]
    records: float
    kept: str
    settings: str
