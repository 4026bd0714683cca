"""One session of a relay: from its lock on until something fails.

    rows that wait ──> one transaction of Penstock: the records, and which rows they are
                   ──> one of the database: the rows go, the batch has its number

    it dies between the two    the next session reads in the topic which rows are sent
    two relays                 one has the database's lock; one that lost it is fenced

Key order: one relay reads by one snapshot, in order of ids, and settles each batch before the next.
It passes over no row that another transaction has locked: several relays with `SKIP LOCKED` would,
and so send later rows of the same key first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.client.admin.topic_config import TopicConfig
from penstock.client.client import Client
from penstock.client.producer.delivery import Delivery
from penstock.client.transactions.progress_topic import check_progress_topic, fenced, is_made
from penstock.core import errors as er
from penstock.outbox.config import RelayConfig
from penstock.outbox.progress import SentBatch
from penstock.outbox.rows import OutboxRow, headers_of, options_of
from penstock.outbox.store import DeadLetterRow, OutboxStore, Position

logger = logging.getLogger("penstock.outbox")

REASON_MAX: Final = 500
"""Characters of a reason in the database."""
OF_TOPIC: Final = (er.AccessDeniedError, er.UnknownTopicError)
"""Errors that all rows of the same topic would meet."""
OF_ROW: Final = (ValueError, TypeError, RecursionError)
"""Errors of one row alone; RecursionError: its JSON is too deep."""
PROGRESS_CONFIG: Final = TopicConfig(cleanup="compact", segment_bytes=4 << 20)
"""Small segments, since each start reads what is not compacted yet."""
COUNTERS: Final = ("sent", "batches", "dead", "recovered", "refused_batches")


class RelaySession:
    """`counts`: the relay's counters, which this adds to."""

    def __init__(
        self, config: RelayConfig, store: OutboxStore, client: Client, counts: dict[str, int]
    ) -> None:
        self._config = config
        self._store = store
        self._counts = counts
        self._most = config.batch_rows
        place = store.position()
        self._outbox_id = place.outbox_id
        with client.admin() as admin:
            is_made(admin, config.progress_topic, PROGRESS_CONFIG)
            check_progress_topic(
                admin, config.progress_topic, "give another name by progress_topic"
            )
        self._producer = client.producer(
            transactional_id=f"outbox.{place.outbox_id}",
            transaction_durability=config.durability,
        )
        self._batch = self._recover(client)

    # --- where it goes on ------------------------------------------------------------------------
    def _recover(self, client: Client) -> int:
        """Returns the last batch, once both sides have settled it. The position is read again:
        a relay that was fenced just now may have settled its last batch meanwhile."""
        last = self._last_sent(client)
        place = self._store.position()
        if last.batch == place.batch:
            return place.batch
        if last.batch != place.batch + 1:
            return self._beyond_gap(last, place)
        ids = list(last.ids())
        if last.digest != SentBatch.of(last.batch, self._store.created_of(ids)).digest:
            return self._beyond_gap(last, place)  # other rows have these ids, or none
        if not self._store.settle(last.batch, ids, ()):
            raise _taken_over(self._config.table)
        self._counts["recovered"] += len(ids)
        logger.info("%d rows of %r were sent before, and are settled", len(ids), self._config.table)
        return last.batch

    def _last_sent(self, client: Client) -> SentBatch:
        last, key = SentBatch(), self._outbox_id.encode()
        topic = self._config.progress_topic
        with client.consumer(
            topic, isolation="read_committed", on_out_of_range="earliest"
        ) as consumer:
            for name, value in fenced(self._producer, consumer, topic):
                if name == key and value is not None:
                    try:
                        last = SentBatch.decoded(value)
                    except msgspec.MsgspecError as error:
                        raise er.ConfigError(
                            f"topic {topic!r} has a record under this outbox's id that no relay "
                            f"wrote ({error}): let nobody else write there"
                        ) from error
        return last

    def _beyond_gap(self, last: SentBatch, place: Position) -> int:
        """Returns the later batch of both. No row is settled by it: a database that is an older
        copy gives the same ids again, to other rows."""
        table, topic = self._config.table, self._config.progress_topic
        if not self._config.accept_gap:
            older, harm = (
                ("the database", "rows that came back would be sent twice")
                if last.batch > place.batch
                else (f"topic {topic!r}", "records of settled rows are missing")
            )
            raise er.ConfigError(
                f"outbox {table!r} has settled batch {place.batch}, but topic {topic!r} says "
                f"{last.batch}: {older} is an older copy, or is new, and {harm}. Compare them, "
                "then go on once with accept_gap (--accept-gap)"
            )
        logger.warning(
            "outbox %r has settled batch %d and topic %r has %d: going on all the same",
            *(table, place.batch, topic, last.batch),
        )
        batch = max(last.batch, place.batch)
        self._store.force(batch)
        return batch

    # --- its work --------------------------------------------------------------------------------
    def step(self, wake: int) -> None:
        """Sends a batch, or waits for rows. Raises `ProducerFencedError` once another relay has
        begun, and what database and node raise."""
        rows = self._store.pending(self._most)
        if not rows:
            self._store.wait(self._config.pause, wake)
            return
        dead: list[DeadLetterRow] = []
        taken: list[tuple[OutboxRow, Delivery]] = []
        try:
            with self._producer.transaction():
                self._hand_over(rows, taken, dead)
        except er.ProducerFencedError:
            raise
        except er.TransactionError:
            causes = {row.topic: cause for row, each in taken if (cause := _refusal(each))}
            if not causes:
                raise  # no row is at fault: the next session tries the same ones
            self._refused(rows, causes)
            return
        sent = [row.id for row, _ in taken]
        if not sent:
            self._store.bury(dead)
        elif self._store.settle(self._batch + 1, sent, dead):
            self._batch += 1
        else:
            raise _taken_over(self._config.table)
        self._count(len(sent), dead)
        self._most = min(self._config.batch_rows, self._most * 2)

    def _hand_over(
        self,
        rows: Sequence[OutboxRow],
        taken: list[tuple[OutboxRow, Delivery]],
        dead: list[DeadLetterRow],
    ) -> None:
        """Sends these rows, within a transaction; `dead` gets those that `send` refuses."""
        failed: dict[str, str] = {}
        for row in rows:
            reason = failed.get(row.topic)
            if reason is None:
                try:
                    delivery = self._producer.send(
                        row.topic, row.value, key=row.key, headers=headers_of(row),
                        **options_of(row),
                    )  # fmt: skip
                    taken.append((row, delivery))
                    continue
                except OF_TOPIC as error:
                    reason = _reason(error)
                    if "partition" not in (row.options or ""):  # else others may be well
                        failed[row.topic] = reason
                except OF_ROW as error:
                    reason = _reason(error)
            dead.append(DeadLetterRow(row.id, reason))
        if taken:
            progress = SentBatch.of(self._batch + 1, [(row.id, row.created) for row, _ in taken])
            self._producer.send(
                self._config.progress_topic, progress.encoded(),
                key=self._outbox_id.encode(), partition=0,
            )  # fmt: skip

    def _refused(self, rows: Sequence[OutboxRow], causes: Mapping[str, Exception]) -> None:
        """After an abort nothing of the batch counts. A topic that is closed to the relay gets its
        rows dead; else half of the batch is tried, down to the one row that cannot be sent."""
        self._counts["refused_batches"] += 1
        closed = {topic: cause for topic, cause in causes.items() if isinstance(cause, OF_TOPIC)}
        if closed:
            self._bury([(row, closed[row.topic]) for row in rows if row.topic in closed])
        elif len(rows) > 1:
            self._most = len(rows) // 2
        else:
            self._bury([(rows[0], causes[rows[0].topic])])

    def _bury(self, rows: Sequence[tuple[OutboxRow, Exception]]) -> None:
        dead = [DeadLetterRow(row.id, _reason(error)) for row, error in rows]
        self._store.bury(dead)
        self._count(0, dead)

    def _count(self, sent: int, dead: Sequence[DeadLetterRow]) -> None:
        self._counts["sent"] += sent
        self._counts["batches"] += sent > 0
        self._counts["dead"] += len(dead)
        if dead:
            logger.warning(
                "%d rows of %r are dead, row %d by: %s",
                *(len(dead), self._config.table, *dead[0]),
            )

    def close(self) -> None:
        """Ends the producer without waiting for the node longer than a request takes."""
        with suppress(er.PenstockError):
            self._producer.close(timeout=5.0)


def _refusal(delivery: Delivery) -> Exception | None:
    """Returns why this record was refused for good. None: it was not, or only its log is ill."""
    error = delivery.exception() if delivery.done() else None
    passing = (er.TransactionError, er.StorageError)
    if error is None or isinstance(error, passing) or getattr(error, "retriable", False):
        return None
    return error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_MAX]


def _taken_over(table: str) -> er.ProducerFencedError:
    return er.ProducerFencedError(f"another relay has taken the outbox {table!r} over")
