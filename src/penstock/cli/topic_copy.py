"""`penstock topic copy`: the records of a topic into another one, each once, however it ends.

    committed batch of FROM ──> one transaction: its records into TO, how far it is into progress

A compacted topic beside TO holds the progress of a copy, as records of the same transactions. So
the copied records and their progress count together or not, whatever ends the copy, and wherever
FROM is. A copy that runs again fences the one before, writes a record of its own there and reads
until it sees that: all progress that counted is before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode
from penstock.cli.consume import OnOutOfRange
from penstock.cli.progress import ProgressBar
from penstock.core import errors as er
from penstock.operations import wording

if TYPE_CHECKING:
    from penstock.cli.stopping import Stopper
    from penstock.client.client import Client
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.records import RecordBatch
    from penstock.client.transactions.producer import TransactionalProducer

PROGRESS: Final = ".copy"
"""Behind the name of the topic that is copied to: the topic with how far copies to it are."""
_KeyFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Key for that node. Default: $PENSTOCK_KEY.")
]


class _Place(msgspec.Struct, frozen=True):
    """The progress of a copy in a partition: its next offset, the leader epoch of the records
    before it."""

    offset: int
    leader_epoch: int


_place: Final = msgspec.json.Decoder(_Place)


def copy(
    env: Env,
    source: Annotated[str, typer.Argument(metavar="FROM")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Made like FROM if it is not there.")],
    from_url: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Where FROM is. Default: as -b.")
    ] = None,
    to_url: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Where TO is. Default: as -b.")
    ] = None,
    from_key: _KeyFile = None,
    to_key: _KeyFile = None,
    by_key: Annotated[
        bool,
        typer.Option("--by-key", help="Choose partitions by keys, instead of keeping them."),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the copy: the topic with how far it is, and its transactional id. Default: "
            f"TO{PROGRESS}",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most records of a transaction.")
    ] = 5000,
    on_out_of_range: Annotated[
        OnOutOfRange,
        typer.Option(help="Where to go on when retention took the next record; or fail."),
    ] = OnOutOfRange.error,
) -> int:
    """Copy records with keys, headers and timestamps, up to the end that FROM has now. Run again,
    it goes on where it was; each record is copied once."""
    from penstock.cli.stopping import Stopper
    from penstock.client.client import connect

    timeout = env.given_timeout
    begun = time.monotonic()
    with (
        Stopper() as stopper,
        connect(from_url or env.url, client_id="penstock-cli", timeout=timeout, keys=from_key) as a,
        connect(to_url or env.url, client_id="penstock-cli", timeout=timeout, keys=to_key) as b,
    ):
        the_name = name or f"{target}{PROGRESS}"
        pair = _prepare(env, a, b, source, target, the_name, by_key=by_key)
        with b.producer(transactional_id=the_name, compression="lz4") as producer:
            it = TopicCopy(producer, source, target, pair, the_name, keeps=not by_key)
            reader = a.consumer(
                source, start="earliest", follow=False, isolation="read-committed",
                on_out_of_range=on_out_of_range.value,
            )  # fmt: skip
            it.go_on(b, reader)
            is_whole = _run(env, it, reader, stopper, batch)
    told = {"from": source, "to": target, "name": the_name, "records": it.records,
            "seconds": round(time.monotonic() - begun, 6), "is_whole": is_whole}  # fmt: skip
    if env.is_json:
        output.write_json(told)
    env.say(
        f"{it.records:,} records copied from {source} to {target} in "
        f"{wording.human_seconds(time.monotonic() - begun)}"
        + ("" if is_whole else "; stopped by a signal: the same command goes on there")
    )
    return ExitCode.DONE if is_whole else ExitCode.PARTLY


def _run(env: Env, it: TopicCopy, reader: Consumer, stopper: Stopper, batch: int) -> bool:
    """Returns whether all is copied; else a signal came."""
    from penstock.cli.stopping import StoppedBySignal

    total = sum(reader.lag().values())
    batches = reader.batches(batch)
    with ProgressBar(env, "offsets", total) as progress:
        while True:
            try:
                with stopper.interruptible():
                    found = next(batches, None)
            except StoppedBySignal:
                return False
            if found is None:
                return True
            it.take(found)
            progress.at(total - sum(reader.known_lag().values()))


def _prepare(
    env: Env, a: Client, b: Client, source: str, target: str, name: str, *, by_key: bool
) -> str:
    """Prepares the topics; returns their two ids, in one word."""
    from penstock.client.admin.topic_config import TopicConfig
    from penstock.client.transactions.progress_topic import check_progress_topic, is_made

    with a.admin(timeout=env.timeout) as here, b.admin(timeout=env.timeout) as there:
        known = here.describe_topic(source)
        number = wording.counted(len(known.partitions), "partition")
        settings: dict[str, Any] = {**known.settings, "replication_factor": None}
        config = TopicConfig(**{**settings, "min_insync_replicas": None})
        if is_made(there, target, config):
            env.say(f"created topic {target} with {number}, like {source}")
        found = there.describe_topic(target)
        if found.topic_id == known.topic_id:
            raise er.ConfigError(f"{source} would be copied to itself: name another topic for TO")
        if name in (source, target):
            raise er.ConfigError(f"--name {name} is a topic that is copied: choose another name")
        if not by_key and len(found.partitions) != len(known.partitions):
            raise er.ConfigError(
                f"{source} has {number} and {target} has {len(found.partitions)}: they are kept "
                "one by one only where they are equally many; --by-key chooses partitions by keys"
            )
        is_made(there, name)
        check_progress_topic(there, name, "create it again, or choose another --name")
    return f"{known.topic_id}-{found.topic_id}"


@dataclass(slots=True)
class TopicCopy:
    """One run of a copy. `pair`: ids of both topics, since a topic that is made again under its
    name is another one. `keeps`: each record stays in the partition of its number."""

    producer: TransactionalProducer
    source: str
    target: str
    pair: str
    name: str
    keeps: bool
    records: int = 0

    def go_on(self, there: Client, reader: Consumer) -> None:
        """Moves the reader to the place where the copy was ended."""
        for number, place in self._places(there).items():
            if (self.source, number) in reader.assignment():
                epoch = place.leader_epoch if place.leader_epoch >= 0 else None
                reader.seek(self.source, number, place.offset, leader_epoch=epoch)

    def take(self, batch: RecordBatch) -> None:
        """Copies a batch, or none of it where that raises."""
        send, target = self.producer.send, self.target
        with self.producer.transaction():
            for record in batch:
                send(
                    target, record.value, key=record.key, headers=record.headers,
                    timestamp=record.timestamp, work=record.work,
                    partition=record.partition if self.keeps else None,
                )  # fmt: skip
            ends = {chunk.partition: chunk for chunk in batch.chunks}
            for number, chunk in ends.items():
                place = _Place(chunk.next_offset, chunk.leader_epoch)
                send(self.name, msgspec.json.encode(place), key=self._key(number))
        self.records += len(batch)

    def _key(self, partition: int) -> bytes:
        return f"{self.pair}-{partition}".encode()

    def _places(self, there: Client) -> dict[int, _Place]:
        """Returns the progress of the copy by partition."""
        from penstock.client.transactions.progress_topic import fenced

        found: dict[int, _Place] = {}
        with there.consumer(self.name, isolation="read-committed") as consumer:
            for key, value in fenced(self.producer, consumer, self.name):
                pair, _, number = key.decode("ascii", "replace").rpartition("-")
                if pair == self.pair and number.isdecimal() and value is not None:
                    found[int(number)] = self._read(value)
        return found

    def _read(self, value: bytes) -> _Place:
        try:
            return _place.decode(value)
        except msgspec.MsgspecError as error:
            raise er.ConfigError(
                f"topic {self.name!r} does not say how far a copy is ({error}): choose another "
                "--name"
            ) from error
