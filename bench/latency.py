"""A latency run: one record after the other at a steady rate, timed from producer to consumer.

Times count from the moment a record was *due* by the schedule. So a stall shows in every record
that it held up, and not only in the one that was under way (no coordinated omission). They are
given from the actual send as well. Both clocks are CLOCK_MONOTONIC of one host.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock.bench import floor, payload
from penstock.bench.crew import Crew, Station
from penstock.bench.door import Door
from penstock.bench.ground import MeasuredNode, ground
from penstock.bench.options import LATENCY_HEAD, LatencyOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.usage import Usage, cpu_seconds_of, differences
from penstock.client.producer.delivery import Delivery

_HEAD: Final = struct.Struct("<QQQ")  # number, due, sent
assert _HEAD.size == LATENCY_HEAD
HEAD_FIELDS: Final = np.dtype([("number", "<u8"), ("due", "<u8"), ("sent", "<u8")])
_PR_SET_TIMERSLACK: Final = 29
FLUSH_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class LatencyTask:
    """The task of a member of the run."""

    options: LatencyOptions
    door: Door
    topic: str


@dataclass(frozen=True, slots=True)
class Sent:
    """`acknowledged`: nanoseconds from send to acknowledgement, by record; None: not asked for."""

    cpu_seconds: float
    durability: str
    acknowledged: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Taken:
    """`heads` in the order of arrival; `received`: CLOCK_MONOTONIC in nanoseconds."""

    cpu_seconds: float
    heads: bytes
    received: list[int]


# --- the two processes --------------------------------------------------------------------------
def produce(task: LatencyTask, station: Station) -> None:
    """Runs the role of the producer: sends a record whenever one is due."""
    options = task.options
    sharpen_timers()
    with task.door.connect() as client, client.producer(
        linger=options.linger,
        batch_bytes=options.batch_bytes,
        compression=options.codec,
        acks=options.acks,
    ) as producer:  # fmt: skip
        producer.send_batch(task.topic, [None]).result(FLUSH_TIMEOUT)  # opens the lane
        station.report()
        station.await_order()
        gc.freeze()
        acknowledged: dict[int, int] | None = {} if options.acks_latency else None
        before = Usage.now()
        send_on_schedule(producer, task.topic, options, acknowledged)
        used = Usage.now().since(before).cpu_seconds
        receipt = producer.send_batch(task.topic, [None]).result(FLUSH_TIMEOUT)[0]
        producer.flush(FLUSH_TIMEOUT)
        times = None
        if acknowledged is not None:
            measured = range(options.warmup_records, options.warmup_records + options.records)
            times = np.array([acknowledged[n] for n in measured if n in acknowledged], np.int64)
        station.report(Sent(used, receipt.durability, times))
        station.await_order()


class SendsOne(Protocol):
    """A producer, or a client of another server."""

    def send(self, topic: str, value: bytes, /) -> Any: ...


def send_on_schedule(
    producer: SendsOne,
    topic: str,
    options: LatencyOptions,
    acknowledged: dict[int, int] | None,
) -> None:
    """Sends warm-up and measured records alike; a record that is late is sent at once."""
    clock = time.monotonic_ns
    tail = payload.event_text(0, options.size - LATENCY_HEAD)
    period = 1e9 / options.rate
    spin = int(options.spin_seconds * 1e9)
    begun = clock() + 1_000_000
    for number in range(options.warmup_records + options.records):
        due = begun + int(number * period)
        rest = due - clock()
        if rest > spin:
            time.sleep((rest - spin) / 1e9)
        while (now := clock()) < due:
            pass
        delivery = producer.send(topic, _HEAD.pack(number, due, now) + tail)
        if acknowledged is not None:
            delivery.add_done_callback(_stopwatch(acknowledged, number, now))


def _stopwatch(acknowledged: dict[int, int], number: int, begun: int) -> Any:
    def stop(_: Delivery) -> None:
        acknowledged[number] = time.monotonic_ns() - begun

    return stop


def consume(task: LatencyTask, station: Station) -> None:
    """Runs the role of the consumer: iterates, and notes when each record came."""
    clock = time.monotonic_ns
    sharpen_timers()
    with (
        task.door.connect() as client,
        client.consumer(task.topic, spin=task.options.poll_spin) as consumer,
    ):
        station.report()
        station.await_order()
        gc.freeze()
        values: list[bytes] = []
        received: list[int] = []
        before = Usage.now()
        for record in consumer:
            now = clock()
            if record.value is None:
                if values:
                    break
                continue  # the one that opened the lane
            received.append(now)
            values.append(record.value)
        used = Usage.now().since(before).cpu_seconds
        heads = b"".join(value[:LATENCY_HEAD] for value in values)
        station.report(Taken(used, heads, received))
        station.await_order()


def sharpen_timers() -> None:
    """Lets this process's sleeps end on time instead of up to 50 us later, as Linux has it."""
    with suppress(OSError, AttributeError):  # or its sleeps are only coarser
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


# --- the run ------------------------------------------------------------------------------------
def run(options: LatencyOptions, progress: BenchProgress) -> dict[str, Any]:
    """Makes the run; returns the result's fields as they are printed. Raises `BenchError`."""
    return measure(options, progress)[0]


def measure(
    options: LatencyOptions, progress: BenchProgress
) -> tuple[dict[str, Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the same, each measured record's nanoseconds from when it was due, and those of the
    floor."""
    options.check()
    folder = Path(options.data or tempfile.gettempdir())
    bare = floor.measure(folder, options.size, options.rate, options.spin_seconds)
    arguments = ("--writer-spin", str(options.poll_spin)) if options.poll_spin else ()
    with (
        ground(options, options.bytes_needed, arguments) as place,
        place.topic(options.partitions, options.durability) as topic,
    ):
        sent, taken, servers = _measure(options, place, topic, progress)
    heads = np.frombuffer(taken.heads, HEAD_FIELDS)
    received = np.array(taken.received, np.int64)
    measured = measured_of(options, heads)
    result = {
        "benchmark": "latency",
        **summary(options, heads, received),
        "floor": percentiles(bare) if len(bare) else None,
        "cpu_seconds": {
            "producer": round(sent.cpu_seconds, 3),
            "consumer": round(taken.cpu_seconds, 3),
            **servers,
        },
        "durability": sent.durability,
        "started_in": place.started_in and round(place.started_in, 3),
        "filesystem": place.filesystem,
        "gc": "on; gc.freeze() in producer and consumer before the first record",
        "options": options.stated(),
    }
    if sent.acknowledged is not None and len(sent.acknowledged):
        result["send_to_ack"] = percentiles(sent.acknowledged)
    return result, received[measured] - heads["due"][measured].astype(np.int64), bare


def _measure(
    options: LatencyOptions, place: MeasuredNode, topic: str, progress: BenchProgress
) -> tuple[Sent, Taken, dict[str, float]]:
    with Crew(options.timeout) as crew:
        progress.say("attach")
        crew.add("producer", produce, LatencyTask(options, place.door, topic))
        crew.add("consumer", consume, LatencyTask(options, place.door, topic))
        crew.gather("attached")
        before = cpu_seconds_of(servers := place.server_pids())
        progress.begin(options.warmup_records + options.records)
        crew.tell("go", ["consumer", "producer"])
        reports = crew.gather("done", progress.watching(lambda: place.log_of(topic)[0]))
        cpu = differences(before, cpu_seconds_of(servers))
        crew.tell("leave")
        crew.dismiss()
    progress.end()
    return reports["producer"], reports["consumer"], cpu


def summary(
    options: LatencyOptions, heads: npt.NDArray[np.void], received: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """Percentiles of the measured records, and the account of all of them."""
    total = options.warmup_records + options.records
    numbers = heads["number"].astype(np.int64)
    inside = numbers < total
    counts = np.bincount(numbers[inside], minlength=total)
    measured = measured_of(options, heads)
    if not measured.any():
        return {"lost": int(np.count_nonzero(counts == 0))}
    from_due = received[measured] - heads["due"][measured].astype(np.int64)
    from_send = received[measured] - heads["sent"][measured].astype(np.int64)
    late = heads["sent"][measured].astype(np.int64) - heads["due"][measured].astype(np.int64)
    span = int(heads["due"][measured].max() - heads["due"][measured].min())
    return {
        **percentiles(from_due),
        "from_send": percentiles(from_send),
        "sent_late": percentiles(late),
        "records": int(np.count_nonzero(measured)),
        "seconds": round(span / 1e9, 3),
        "records_per_second": round((np.count_nonzero(measured) - 1) / max(span / 1e9, 1e-9), 1),
        "lost": int(np.count_nonzero(counts == 0)),
        "doubled": int((counts[counts > 1] - 1).sum()),
        "out_of_order": int(np.count_nonzero(np.diff(numbers) < 0)),
        "foreign": int(np.count_nonzero(~inside)),
    }


def measured_of(options: LatencyOptions, heads: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Returns which records are of the run and not of its warm-up."""
    numbers = heads["number"].astype(np.int64)
    total = options.warmup_records + options.records
    found: npt.NDArray[np.bool_] = (numbers >= options.warmup_records) & (numbers < total)
    return found


def percentiles(nanoseconds: npt.NDArray[np.int64]) -> dict[str, float]:
    """Returns the usual percentiles, in microseconds."""
    p50, p99, p999 = np.percentile(nanoseconds, (50, 99, 99.9)) / 1000
    return {
        "p50_us": round(float(p50), 1),
        "p99_us": round(float(p99), 1),
        "p999_us": round(float(p999), 1),
        "max_us": round(float(nanoseconds.max()) / 1000, 1),
    }
