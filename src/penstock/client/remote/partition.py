"""A partition on another host as a consumer reads it: what is there is what has come.

Owns when its cursor is open: from the first look at it until it is paused, sought elsewhere or let
go of. Its end is as the gateway last told, so a consumer sleeps while its records are on the way.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.client.consumer.latest import STEP_BACK, LatestOnly, NewestOfKeys
from penstock.client.consumer.partition_cursor import (
    EPOCH_UNKNOWN,
    FETCH_BYTES,
    AssignedPartition,
    Isolation,
    TopicPartition,
)  # fmt: skip
from penstock.client.consumer.records import Chunk
from penstock.client.remote.cursors import Fetcher
from penstock.client.remote.source import FarSource
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc.state import StatePage

Search = Generator[None, None, list[Chunk]]
"""Only the newest of what stood there when it began. It yields where more is on the way."""


class FarPartition(AssignedPartition):
    """An assigned partition that is fetched from a gateway (see `AssignedPartition`). `credit`:
    bytes that it may fetch ahead."""

    __slots__ = ("_search", "_source")

    def __init__(
        self, name: TopicPartition, topic_id: bytes, page: StatePage, fetcher: Fetcher, credit: int,
        latest: LatestOnly | None = None, isolation: Isolation = "read_uncommitted",
    ) -> None:  # fmt: skip
        self._source = FarSource(
            fetcher, f"{name[0]}-{name[1]}", page.index, topic_id, name[1],
            committed=isolation == "read_committed", credit=credit,
        )  # fmt: skip
        self._search: Search | None = None
        super().__init__(name, topic_id, page, self._source, latest, isolation)

    @property
    def has_more(self) -> bool:
        source = self._source
        if self._carry or source.has_more:
            return True
        if self._search is None and source.offset > self.offset:
            return True  # no records stood there: the position is to move
        if not source.is_open and not self.paused:
            if source.offset == self.offset:
                source.epoch = max(source.epoch, self.leader_epoch)
            source.open()
        return self.page.is_gone(self._identity)

    @property
    def is_awaited(self) -> bool:
        """Returns whether records are known to be on the way, while none is here."""
        source = self._source
        return not self._carry and not source.has_more and self.end > source.offset

    def allow(self, credit: int) -> None:
        """Sets how many bytes it fetches ahead."""
        self._source.allow(credit)

    def pause(self) -> None:
        super().pause()
        self._source.let_go()
        self._search = None

    def forget(self) -> None:
        super().forget()
        self._source.let_go()
        self._search = None

    def jump(self, offset: int, leader_epoch: int = EPOCH_UNKNOWN) -> None:
        super().jump(offset, leader_epoch)
        self._search = None

    def moved(self, session: Session, page: int) -> None:
        super().moved(session, page)
        assert session.far is not None, "a client's address is a remote one for good"
        self._source.moved(session.far, page)

    def take(self, room: int | None, bytes_max: int = FETCH_BYTES) -> list[Chunk]:
        before = self.offset
        try:
            taken = super().take(room, bytes_max)
        except er.CorruptBatchError:
            self._source.let_go()  # was it broken on the way here, the next try brings it whole
            raise
        if self._search is not None:
            self.offset = before  # nothing of what was passed is handed out yet
        return taken

    def _fetch_once(self, bytes_max: int) -> list[Chunk]:
        chunks = super()._fetch_once(bytes_max)
        self.aborted += self._source.aborted
        self._source.aborted = 0
        return chunks

    def _check_page(self) -> None:
        page = self.page
        if self.leader_epoch in (EPOCH_UNKNOWN, page.leader_epoch) or self._source.knows(
            page.leader_epoch
        ):
            super()._check_page()
        elif page.is_gone(self._identity):
            raise self._deleted()
        # Else the node came back with another epoch, heard of by another attachment: the gateway
        # compares them when this one begins its cursor again.

    # --- only the newest ---
    def _bring(self, bytes_max: int) -> list[Chunk]:
        if self._latest is None:
            return self._fetch(bytes_max)
        self._check_page()
        if self._search is None:
            self._search = (
                self._newest_of_keys(bytes_max) if self._latest == "key"
                else self._newest_of_all()
            )  # fmt: skip
        try:
            next(self._search)
        except StopIteration as done:
            self._search = None
            found: list[Chunk] = done.value
            return found
        except BaseException:
            self._search = None
            raise
        return []

    def _newest_of_keys(self, bytes_max: int) -> Search:
        """Searches as `penstock.client.consumer.latest.newest_of_keys`."""
        source, end, newest = self._source, self.end, NewestOfKeys()
        while source.offset < end:
            try:
                found = self._fetch(FETCH_BYTES)
            except er.PenstockError:
                if not newest.seen:
                    raise
                break  # what is good goes out first; the next poll raises it
            if not found and source.offset < end:
                yield
            if newest.fills(found, bytes_max):
                break
        newest.thin()
        chunks = newest.chunks()
        self.skipped += newest.seen - sum(map(len, chunks))
        return chunks

    def _newest_of_all(self) -> Search:
        """Searches as `penstock.client.consumer.latest.newest_of_partition`."""
        source, start, end = self._source, self.offset, self.end
        step = 1
        while True:
            at = max(start, end - step)
            source.seek(at)
            last: Chunk | None = None
            while source.offset < end:
                try:
                    found = self._fetch(FETCH_BYTES)
                except er.PenstockError:
                    if last is None and at == start:
                        raise
                    break
                if found:
                    last = found[-1]
                elif source.offset < end:
                    yield
            if last is not None:
                self.skipped += last.row_offset(last.stop - 1) - start
                return [last.cut(last.stop - 1, last.stop)]
            if at == start:
                return []
            step *= STEP_BACK
