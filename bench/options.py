"""The options of a run: frozen, checked once, with every derived number in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from penstock.bench.errors import BenchError

Api = Literal["send", "batch", "arrow"]
Durability = Literal["os", "interval", "fsync"]
Guarantee = Literal["none", "manual", "at-least-once", "at-most-once"]
Transport = Literal["shm", "tcp", "curve"]

TABLE_BYTES: Final = 1 << 20
"""Of the values in one table of an Arrow run."""
POOL_BYTES: Final = 8 << 20
POOL_VALUES_MAX: Final = 1 << 16
POOL_VALUES_MIN: Final = 1 << 8
WARMUP_MAX: Final = 20_000
SPIN: Final = 0.0001
"""Seconds: Linux ends a sleep up to so much too late."""
LATENCY_HEAD: Final = 24
"""Bytes of a latency record's number, intended and actual time of sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The node that a run measures, and the way to it.

    bootstrap: URL of a node that runs already; None starts one on a new folder in `data` (None: the
    system's folder for temporary files). A URL of TCP means TCP on the node's own host too.
    key_file: the client's key for it. transport: how clients reach a node of the run's own: through
    shared memory, by TCP over loopback, or by the same with keys (CURVE). writers: most writer
    processes of it. brokers: so many of them instead, which are one cluster (0: a node that is
    alone); clients reach a cluster by TCP. replicas: of each partition there; None: 3, or as many
    as there are brokers.
    """

    bootstrap: str | None = None
    key_file: Path | None = None
    transport: Transport = "shm"
    data: Path | None = None
    writers: int | None = None
    brokers: int = 0
    replicas: int | None = None

    def check_place(self) -> None:
        """Raises `BenchError` for options that contradict each other."""
        if self.brokers and self.bootstrap is not None:
            raise BenchError("--brokers is for a cluster of the run's own: drop --bootstrap")
        if self.brokers and self.transport == "curve":
            raise BenchError("--brokers: a cluster of the run's own is reached by TCP without keys")
        if self.replicas is not None and not 1 <= self.replicas <= max(self.brokers, 1):
            raise BenchError(f"--replicas {self.replicas}: from 1 to {self.brokers} (--brokers)")
        if self.bootstrap is None:
            if self.key_file is not None:
                raise BenchError(
                    "--key-file is for a node that runs already: name it by --bootstrap, or take "
                    "--transport curve for a node of the run's own, which makes its keys"
                )
            return
        if self.data is not None or self.writers is not None:
            raise BenchError(
                "--data and --writers are for a node of the run's own: drop --bootstrap"
            )
        if self.transport != type(self)().transport:
            raise BenchError(
                f"--transport {self.transport} is for a node of the run's own: the URL of "
                "--bootstrap says by which way its node is reached"
            )

    def stated(self) -> dict[str, Any]:
        """Returns the options as they are printed with a result."""
        found = asdict(self)
        found.pop("timeout", None)
        for name in Where.__dataclass_fields__:
            unsaid = name == "transport" and (self.bootstrap is not None or self.brokers)
            if found[name] is None or unsaid or (name == "brokers" and not self.brokers):
                del found[name]
        return {name: str(value) if isinstance(value, Path) else value
                for name, value in found.items()}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Where):
    """The options of runs that send records.

    size: bytes of a value. durability: the topic's. linger, batch_bytes, codec, acks: the
    producers'. timeout: seconds until the run is given up.
    """

    size: int = 1024
    partitions: int = 1
    acks: Literal[0, 1, "all"] = 1
    codec: str = "none"
    linger: float = 0.002
    batch_bytes: int = 256 << 10
    durability: Durability = "os"
    timeout: float = 300.0

    def check(self) -> None:
        """Raises `BenchError` for options that cannot be run."""
        if self.size < 8:
            raise BenchError(f"--size {self.size}: a value carries its number, so 8 bytes at least")
        if self.partitions < 1:
            raise BenchError("--partitions: at least one")
        self.check_place()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions(Options):
    """`send`: a Python loop of `producer.send`, and a loop over the consumer's records.
    `batch`: `producer.send_batch` of lists of `list_records` values, and polled columns.
    `arrow`: `producer.send_arrow` of tables of `list_records` rows, and polled tables.

    records: in all, shared among the producers. consumers: processes, each with its own share of
    the partitions. keys: different keys to send with (0: none). list_records: 0 means as many as
    fill a batch, or 1 MiB for a table. guarantee: the consumer is the one member of a group
    ("none": it is assigned its partitions, without a group). transaction_records: records of each
    transaction (0: none), which the consumer reads once they are committed. warmup: records of each
    producer before the clock starts (None: a tenth, bounded). pool: different values that a
    producer has prepared at least (as many as it takes to tell records apart).
    """

    records: int = 3_000_000
    api: Api = "send"
    producers: int = 1
    consumers: int = 1
    keys: int = 0
    list_records: int = 0
    guarantee: Guarantee = "none"
    transaction_records: int = 0
    warmup: int | None = None
    pool: int = 0

    def check(self) -> None:
        Options.check(self)
        if not 1 <= self.producers <= 1 << 15:
            raise BenchError(f"--producers {self.producers}: from 1 to {1 << 15}")
        if self.api == "arrow" and find_spec("pyarrow") is None:
            raise BenchError("--api arrow needs pyarrow: pip install 'penstock[arrow]'")
        if self.records < self.producers:
            raise BenchError(f"--records {self.records}: at least one for each producer")
        if not 1 <= self.consumers <= self.partitions:
            raise BenchError(
                f"--consumers {self.consumers}: every consumer reads its own share of the "
                f"partitions, and there are {self.partitions}; raise --partitions"
            )

        if self.guarantee != "none" and self.consumers > 1:
            raise BenchError("--guarantee: one consumer, which is then given every partition")
        if self.transaction_records and (self.api != "send" or self.keys):
            raise BenchError("--transaction-records is for --api send without keys")

    def records_of(self, producer: int) -> int:
        return self.records // self.producers + (producer < self.records % self.producers)

    def partitions_of(self, consumer: int) -> list[int]:
        return list(range(consumer, self.partitions, self.consumers))

    @property
    def warmup_records(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return min(WARMUP_MAX, max(100, self.records // self.producers // 10))

    @property
    def list_length(self) -> int:
        """Values in one `send_batch`, rows in one `send_arrow`."""
        if self.api == "arrow" and not self.list_records:
            return max(1, TABLE_BYTES // self.size)
        return self.list_records or max(1, self.batch_bytes // (self.size + 4))

    @property
    def pool_values(self) -> int:
        """Returns how many different values a producer has prepared and sends again and again.

        Records are told apart by their place in this cycle, so it is many times longer than what
        several partitions can bring in another order, or as long as the run.
        """
        wanted = min(POOL_VALUES_MAX, POOL_BYTES // self.size)
        span = max(self.list_length, self.batch_bytes // self.size)
        apart = min(8 * self.partitions * span, max(self.records_of(0), self.warmup_records))
        count = max(wanted, POOL_VALUES_MIN, apart, self.pool)
        lists = -(-count // self.list_length)
        return count if self.api == "send" else lists * self.list_length

    @property
    def bytes_needed(self) -> int:
        """Disk bytes of the records, generously."""
        records = self.records + self.warmup_records * self.producers
        return records * (self.size + 16 + (24 if self.keys else 0)) + (64 << 20)

    def stated(self) -> dict[str, Any]:
        found = Where.stated(self)
        found["warmup"] = self.warmup_records
        found["list_records"] = None if self.api == "send" else self.list_length
        found["pool_values"] = self.pool_values
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions(Options):
    """One producer at a steady rate, one consumer that iterates.

    rate: records a second. seconds: measured, after `warmup` seconds that are not. spin: the last
    seconds before each record is due that the producer spends spinning instead of asleep. None: 0.1
    ms through shared memory, none by TCP. There another thread of its process has to send the
    records, and a spinning thread keeps the interpreter from it for 5 ms at a time. poll_spin:
    seconds that writer and consumer look for the next record before they sleep. acks_latency: also
    time each record's acknowledgement.
    """

    rate: float = 1000.0
    seconds: float = 10.0
    linger: float = 0.0
    warmup: float = 1.0
    spin: float | None = None
    poll_spin: float = 0.0
    acks_latency: bool = False

    @property
    def spin_seconds(self) -> float:
        """`spin`, decided."""
        if self.spin is not None:
            return self.spin
        by_tcp = self.brokers or self.transport != "shm" or (self.bootstrap or "").startswith("tcp")
        return 0.0 if by_tcp else SPIN

    def check(self) -> None:
        Options.check(self)
        if self.size < LATENCY_HEAD:
            raise BenchError(
                f"--size {self.size}: a value carries its number and times, so {LATENCY_HEAD} bytes"
            )
        if self.rate <= 0 or self.seconds <= 0 or self.rate * self.seconds < 1:
            raise BenchError(f"--rate {self.rate} --seconds {self.seconds}: not a single record")

    @property
    def warmup_records(self) -> int:
        return int(self.rate * self.warmup)

    def stated(self) -> dict[str, Any]:
        return {**Where.stated(self), "spin": self.spin_seconds}

    @property
    def records(self) -> int:
        """Measured records."""
        return int(self.rate * self.seconds)

    @property
    def bytes_needed(self) -> int:
        return (self.records + self.warmup_records) * (self.size + 512) + (64 << 20)
