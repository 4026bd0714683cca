"""Writes dead letters: full copies of records that are not delivered any more.

    the coordinator names a record        it is read, by a consumer of its own
    its copy is written, acks="all"       to `<topic>.dlq`, which is made where it is missing
    the copy is acknowledged              the coordinator is told (`BuryRecords`), by the poll
    any of that fails                     it is logged and counted, and tried again later

After a crash between the last two a dead letter may be there twice; its headers tell which record
it is of. All of this is done by a thread that lives while there is something to write, so that no
poll waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import Record
from penstock.client.deadletters.story import PREFIX, earlier_story
from penstock.client.producer.producer import PlainProducer, Producer
from penstock.client.remote.address import Place
from penstock.client.validation import HEADERS_MAX
from penstock.core import errors as er
from penstock.ipc.sharing import CondemnedRecord

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin
    from penstock.core.columns import HeaderList

logger = logging.getLogger("penstock.consumer")

RETRY_EVERY: Final = 5.0
"""Seconds until a dead letter that could not be written is tried again."""
READ_TIMEOUT: Final = 5.0
WRITE_TIMEOUT: Final = 30.0
LETTERS_MAX: Final = 10_000
"""Dead letters that one worker has to write; it is told of the others again."""

Key = tuple[bytes, int, int]


class DeadRecord(NamedTuple):
    """A record that is to become one."""

    topic: str
    told: CondemnedRecord

    @property
    def key(self) -> Key:
        """Topic id, partition, offset."""
        return self.told.topic_id, self.told.partition, self.told.offset


class DeadLetters:
    """Writer of dead letters, in a thread of its own.

    `topics`: the dead-letter topic of each topic; None: they are only buried. `wake` is told when
    something was written.
    """

    def __init__(
        self,
        socket: Place,
        group: str,
        topics: Mapping[str, str] | None,
        client_id: str,
        counts: dict[str, int],
        wake: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._group = group
        self._topics = topics
        self._client_id = client_id
        self._counts = counts
        counts.update(dead_letters=0, dead_letter_failures=0, buried=0)
        self._wake = wake
        self._lock = threading.Lock()
        self._todo: dict[Key, DeadRecord] = {}
        self._written: dict[Key, DeadRecord] = {}
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        self._closed = False

    # --- by the thread that polls ---
    def add(self, topic: str, told: CondemnedRecord) -> None:
        """The coordinator has this worker write it. Named again it is written once."""
        letter = DeadRecord(topic, told)
        with self._lock:
            if self._topics is None:
                self._written[letter.key] = letter
            elif letter.key not in self._written and len(self._todo) < LETTERS_MAX:
                self._todo.setdefault(letter.key, letter)

    @property
    def has_written(self) -> bool:
        """Whether some are written, and the coordinator is to be told."""
        return bool(self._written)

    def written(self) -> dict[tuple[bytes, int], list[int]]:
        """Their offsets, by topic id and partition."""
        found: dict[tuple[bytes, int], list[int]] = {}
        with self._lock:
            for topic_id, partition, offset in self._written:
                found.setdefault((topic_id, partition), []).append(offset)
        return found

    def buried(self, topic_id: bytes, partition: int, offsets: list[int]) -> None:
        """The coordinator knows."""
        with self._lock:
            for offset in offsets:
                self._written.pop((topic_id, partition, offset), None)
        self._counts["buried"] += len(offsets)

    def going_on(self, now: float) -> None:
        """Starts the thread that writes the letters there are, unless it runs already."""
        if not self._todo or self._closed or now < self._retry_at:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._work, name="penstock-dead-letters", daemon=True
            )
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Begins no further letter. Another worker is asked for those that are not written."""
        self._closed = True
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(timeout)

    # --- by its own thread ---
    def _work(self) -> None:
        with self._lock:
            letters = [*self._todo.values()]
        try:
            with ExitStack() as stack:
                writer = DeadLetterWriter(self._socket, self._group, self._client_id, stack)
                for letter in letters:
                    if self._closed:
                        return
                    try:
                        self._write(writer, letter)
                    except er.PenstockError as error:
                        if error.retriable:
                            raise
                        self._failed(error, letter)  # others may go all the same
        except Exception as error:
            if not self._closed:
                self._failed(error)

    def _failed(self, error: Exception, letter: DeadRecord | None = None) -> None:
        self._counts["dead_letter_failures"] += 1
        self._retry_at = time.monotonic() + RETRY_EVERY
        what = "dead letters are"
        if letter is not None:
            told = letter.told
            what = f"the dead letter of {letter.topic}-{told.partition} at {told.offset} is"
        logger.error(
            "group %s: %s not written, and what stays condemned is tried again in %g s: %s",
            self._group, what, RETRY_EVERY, error,
        )  # fmt: skip

    def _write(self, writer: DeadLetterWriter, letter: DeadRecord) -> None:
        assert self._topics is not None
        is_written = writer.write(letter, self._topics[letter.topic])
        with self._lock:
            self._todo.pop(letter.key, None)
            self._written[letter.key] = letter
        self._counts["dead_letters"] += is_written
        self._wake()


class DeadLetterWriter:
    """Reads records and writes their copies, by a consumer and a producer of its own, which are
    closed with `stack`."""

    def __init__(self, socket: Place, group: str, client_id: str, stack: ExitStack) -> None:
        self._socket = socket
        self._group = group
        self._client_id = client_id
        self._stack = stack
        self._consumer = Consumer(
            socket, client_id=client_id, isolation="read_committed", prefetch_bytes=64 << 10
        )
        stack.callback(self._consumer.close)
        self._producer: Producer | None = None
        self._made: set[str] = set()

    def write(self, letter: DeadRecord, to: str) -> bool:
        """Whether a copy is written now; not so where the record is there no more."""
        told = letter.told
        headers = headers_of(letter, self._group)
        try:
            record = self._read(letter)
        except er.CorruptBatchError as error:
            logger.error("a dead letter has no content, its record is damaged: %s", error)
            record = None
            headers += ((PREFIX + "damaged", str(error).encode()),)
        else:
            if record is None:
                logger.warning(
                    "group %s: %s-%d at %d became no dead letter: it is deleted by now",
                    self._group, letter.topic, told.partition, told.offset,
                )  # fmt: skip
                return False
        self._make(to)
        if self._producer is None:
            self._producer = PlainProducer(
                self._socket, client_id=self._client_id, acks="all", linger=0.0,
                delivery_timeout=WRITE_TIMEOUT,
            )  # fmt: skip
            self._stack.callback(self._producer.close)
        if record is None:
            self._producer.send_and_wait(to, None, headers=headers)
            return True
        told_of = with_story(record.headers, letter, self._group, record.timestamp)
        self._producer.send_and_wait(
            to, record.value, key=record.key, headers=told_of, priority=record.priority
        )
        return True

    def _read(self, letter: DeadRecord) -> Record[Any, Any] | None:
        told, consumer = letter.told, self._consumer
        try:
            consumer.assign([(letter.topic, told.partition)])
            consumer.seek(letter.topic, told.partition, told.offset)
            deadline = time.monotonic() + READ_TIMEOUT
            while (left := deadline - time.monotonic()) > 0:
                batch = consumer.poll(1, timeout=left)
                if batch:
                    return batch[0] if batch[0].offset == told.offset else None
                if consumer.position(letter.topic, told.partition) > told.offset:
                    return None
        except (er.OffsetOutOfRangeError, er.UnknownTopicError):
            return None
        raise er.PenstockTimeout(
            f"{letter.topic}-{told.partition}: the record at offset {told.offset} did not come "
            f"within {READ_TIMEOUT:g} s"
        )

    def _make(self, topic: str) -> None:
        """Creates the topic of dead letters where there is none."""
        if topic in self._made:
            return
        from penstock.client.admin.admin import Admin  # rare

        with Admin(self._socket, client_id=self._client_id) as admin:
            make_dead_letter_topic(admin, topic)
        self._made.add(topic)


def make_dead_letter_topic(admin: Admin, topic: str) -> None:
    """Creates it where there is none. Raises `GroupError`, which says what to do."""
    try:
        if topic not in admin.list_topics():
            admin.create_topic(topic, if_not_exists=True)
    except er.PenstockError as error:
        raise er.GroupError(
            f"the topic {topic!r} for dead letters is not there, and cannot be made: "
            f"{error}; create it, allow this client to, or name another by dead_letters="
        ) from error


def headers_of(letter: DeadRecord, group: str) -> HeaderList:
    """Returns the headers of a dead letter: its record, and why it is one.

    `history` is JSON with the newest failures, oldest first.
    """
    told = letter.told
    history = [
        {"member": one.member_id, "at": one.at_us / 1e6, "reason": one.reason}
        for one in told.failures
    ]
    reason = told.failures[-1].reason if told.failures else ""
    fields = {
        "topic": letter.topic,
        "partition": str(told.partition),
        "offset": str(told.offset),
        "group": group,
        "deliveries": str(told.deliveries),
        "reason": reason,
        "history": json.dumps(history, ensure_ascii=False),
    }
    return tuple((PREFIX + name, text.encode()) for name, text in fields.items())


def with_story(own: HeaderList, letter: DeadRecord, group: str, timestamp: int) -> HeaderList:
    """The headers of a dead letter: the record's own, and what tells of it."""
    added = (*headers_of(letter, group), (PREFIX + "timestamp", b"%d" % timestamp))
    return _joined(own, added)


def _joined(own: HeaderList, added: HeaderList) -> HeaderList:
    """The record's own headers and those that tell of it. Beyond what a record takes its last own
    ones are left out, and counted in a header. Those of an earlier death give way, and are kept in
    one where the record was a dead letter of another topic."""
    added = (*added, *earlier_story(own, added))
    own = tuple(pair for pair in own if not pair[0].startswith(PREFIX))
    room = HEADERS_MAX - len(added)
    if len(own) > room:
        left_out = len(own) - (room - 1)
        own = own[: room - 1]
        added = (*added, (PREFIX + "headers_left_out", b"%d" % left_out))
    return (*own, *added)
