"""`penstock produce TOPIC`: records from stdin."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, code_of, command
from penstock.core import errors as er
from penstock.operations import values, wording

if TYPE_CHECKING:
    from penstock.cli.feeding import Defaults, Given
    from penstock.cli.stopping import Stopper
    from penstock.client.producer.producer import Producer

READ_BYTES: Final = 256 << 10
DELIVERY_TIMEOUT: Final = 30.0
COMPLAINTS_MAX: Final = 5
"""So many refused records are named; the rest are counted."""
PROGRESS_EVERY: Final = 0.5


class Compression(StrEnum):
    """Per batch."""

    none = "none"
    lz4 = "lz4"
    zstd = "zstd"


class AckLevel(StrEnum):
    """The durability that a record must reach."""

    ring = "0"
    appended = "1"
    all = "all"


class OnFull(StrEnum):
    """The policy for records that come faster than they are taken."""

    block = "block"
    error = "error"
    drop_newest = "drop-newest"
    drop_oldest = "drop-oldest"


class Durability(StrEnum):
    """A further wait."""

    fsynced = "fsynced"


def add_to(app: typer.Typer) -> None:
    command(app, "produce")(produce)


def produce(
    env: Env,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    lines: Annotated[bool, typer.Option("--lines", help="A record a line (the default).")] = False,
    ndjson: Annotated[
        bool,
        typer.Option(
            "--ndjson",
            help="A JSON object a line: value, and if wanted key, headers, "
            "timestamp (microseconds or ISO 8601), partition, due, expires (microseconds), "
            "priority, dedup_id.",
        ),
    ] = False,
    length_prefixed: Annotated[
        bool, typer.Option("--length-prefixed", help="u32 little-endian, then so many bytes.")
    ] = False,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            metavar="TEXT",
            help=r"The text between key and value, like '\t'. A line without it has no key.",
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option("--null", metavar="TEXT", help="A key or value of a line that is a null."),
    ] = None,
    headers: Annotated[
        list[str], typer.Option("-H", "--header", metavar="NAME=VALUE", help="May be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Default: by key, or in turn.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("-z", "--compression", help="Of each batch.")
    ] = Compression.none,
    acks: Annotated[
        AckLevel,
        typer.Option(
            "--acks",
            parser=lambda text: AckLevel("all" if text == "-1" else text),
            metavar="|".join(AckLevel),
            help="0: in shared memory; 1: appended; all (or -1): on all replicas.",
        ),
    ] = AckLevel.appended,
    durability: Annotated[
        Durability | None, typer.Option("--durability", help="Wait until it is on the device.")
    ] = None,
    on_full: Annotated[
        OnFull,
        typer.Option(
            "--on-full",
            parser=lambda text: OnFull(text.replace("_", "-")),
            metavar="|".join(OnFull),
            help="While 32 MiB are unacknowledged.",
        ),
    ] = OnFull.block,
) -> int:
    """Send records from stdin. Says on stderr how many were acknowledged and how many failed."""
    from penstock.cli import feeding
    from penstock.cli.stopping import Stopper

    if lines + ndjson + length_prefixed > 1:
        raise er.ConfigError("choose one of --lines, --ndjson and --length-prefixed")
    framing = feeding.from_lines
    if ndjson or length_prefixed:
        framing = feeding.from_json if ndjson else feeding.from_lengths
        if key_separator is not None or null is not None:
            raise er.ConfigError("--key-separator and --null belong to --lines")
    if key is not None and key_separator is not None:
        raise er.ConfigError("choose one of --key and --key-separator")
    separator = None if key_separator is None else values.unescape(key_separator)
    if separator == b"":
        raise er.ConfigError("--key-separator is empty")
    defaults = feeding.Defaults(
        key=None if key is None else values.as_bytes(key),
        headers=values.headers(headers) or None,
        partition=partition,
        key_separator=separator,
        null=None if null is None else values.as_bytes(null),
    )
    if sys.stdin is None:
        raise er.PenstockError("standard input is closed: there is nothing to send")
    timeout = DELIVERY_TIMEOUT if env.given_timeout is None else env.given_timeout
    options: dict[str, Any] = {
        "compression": compression.value,
        "acks": "all" if acks is AckLevel.all else int(acks.value),
        "durability": durability.value if durability is not None else None,
        "delivery_timeout": timeout,
        "on_full": on_full.value,
        "block_timeout": timeout,
    }
    with Stopper() as stopper, env.connect() as client:
        with client.admin(timeout=env.timeout) as admin:
            partitions = len(admin.describe_topic(topic).partitions)
        if partition is not None and partition >= partitions:
            raise er.UnknownTopicError(
                f"topic {topic!r} has partitions 0 to {partitions - 1}; {partition} was asked for"
            )
        if output.is_terminal(sys.stdin):
            env.say("reading from the terminal; Ctrl-D ends the input")
        producer = client.producer(**options)
        sending = Sending(env, producer, topic, partitions, stopper)
        sending.run(framing, defaults, timeout)
        return sending.report()


@dataclass(slots=True)
class Sending:
    """One run of the command: what was read, and what became of it."""

    env: Env
    producer: Producer
    topic: str
    partitions: int
    stopper: Stopper
    read: int = 0
    refused: int = 0
    begun: float = field(default_factory=time.monotonic)
    shown: float = 0.0
    failure: er.PenstockError | None = None

    def run(
        self,
        framing: Callable[[Iterator[bytes], Defaults, Callable[[str], None]], Iterator[Given]],
        defaults: Defaults,
        timeout: float,
    ) -> None:
        """Send all of stdin, then wait for what is on its way."""
        from penstock.cli.stopping import StoppedBySignal

        try:
            self._send_all(framing(self._chunks(), defaults, self._refuse))
        except StoppedBySignal:
            pass
        except er.PenstockError as error:
            self.failure = error
        try:
            self.producer.flush(timeout + 5.0)
            self.producer.close()
        except er.PenstockError as error:
            self.failure = self.failure or error

    def _send_all(self, records: Iterator[Given]) -> None:
        send, topic, top = self.producer.send, self.topic, self.partitions
        for value, key, headers, timestamp, partition, work in records:
            self.read += 1
            if partition is not None and not 0 <= partition < top:
                self._refuse(f"partition {partition} is none of 0 to {top - 1}", counted=True)
                continue
            try:
                send(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    timestamp=timestamp,
                    partition=partition,
                    work=work,
                )
            except (er.RecordTooLargeError, ValueError, TypeError) as error:
                self._refuse(str(error), counted=True)

    def _chunks(self) -> Iterator[bytes]:
        """Yields stdin as it comes, until its end or a signal."""
        source = sys.stdin.fileno()
        while True:
            with self.stopper.interruptible():
                chunk = os.read(source, READ_BYTES)
            if not chunk:
                return
            yield chunk
            if self.env.shows_progress and time.monotonic() - self.shown > PROGRESS_EVERY:
                self.shown = time.monotonic()
                print(f"\r{self.read:,} records read", end="", file=sys.stderr, flush=True)

    def _refuse(self, why: str, *, counted: bool = False) -> None:
        self.read += not counted
        self.refused += 1
        if self.refused <= COMPLAINTS_MAX:
            output.narrate(f"penstock: record {self.read}: {why}")

    def report(self) -> int:
        """Reports the counts; returns the exit status."""
        seconds = time.monotonic() - self.begun
        counts = self.producer.metrics()
        sent = counts["acknowledged"]
        dropped = counts["dropped_records"]
        lost = self.read - self.refused - sent - dropped
        summary = {
            "topic": self.topic,
            "read": self.read,
            "acknowledged": sent,
            "refused": self.refused,
            "failed": lost,
            "dropped": dropped,
            "batch_bytes": counts["bytes"],
            "seconds": round(seconds, 6),
        }
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr)
        if self.env.is_json:
            output.write_json(summary)
        told = f", {dropped:,} dropped" if dropped else ""
        self.env.say(
            f"{sent:,} records acknowledged, {self.refused + lost:,} failed{told}, to {self.topic} "
            f"in {wording.human_seconds(seconds)}"
        )
        if self.failure is not None:
            output.narrate(f"penstock: {self.failure}")
        if self.stopper.requested:
            self.env.say("stopped by a signal before the end of the input")
        if not (self.refused or lost or self.failure or self.stopper.requested):
            return ExitCode.DONE
        if sent:
            return ExitCode.PARTLY
        return code_of(_cause(self.failure)) if self.failure is not None else ExitCode.FAILED


def _cause(error: er.PenstockError) -> BaseException:
    """Returns the first delivery's own error, where a flush reports several."""
    if isinstance(error, er.DeliveryError) and error.failed:
        return error.failed[0][2]
    return error
