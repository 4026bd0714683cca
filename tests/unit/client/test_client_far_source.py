"""Reading from another host: whatever is under way, stepped back over, broken or lost, a consumer
gets what a reader of the files would get, within its credit."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from reader_fixture import TOPIC, World
from seeds import seed_of
from store_crash import memory

from penstock.client.consumer.latest import LatestOnly
from penstock.client.consumer.partition_cursor import EPOCH_UNKNOWN
from penstock.client.remote.cursors import FarCursor
from penstock.client.remote.partition import FarPartition
from penstock.client.remote.source import CREDIT_MIN
from penstock.cluster.frames import messages as fr
from penstock.core.errors import (
    CorruptBatchError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from penstock.core.reader import LogReader
from penstock.ipc import layout as lo
from penstock.ipc.state import StatePage, format_table

PAGE = 2


class Under(FarCursor):
    """A cursor, and the other side of it: how much the gateway may send, and where it is."""

    def __init__(self, far: Far, offset: int, epoch: int, credit: int) -> None:
        super().__init__(credit, self.give, self.drop)
        self.reader = LogReader(far.world.storage, far.world.folder, offset)
        self.epoch, self.left, self.is_dropped, self.sent = epoch, credit, False, 0

    @property
    def is_failed(self) -> bool:
        return self._failed is not None

    def give(self, nbytes: int) -> None:
        assert not self.is_dropped
        assert nbytes > 0
        self.left += nbytes
        assert self.left <= self.credit, "more was given back than was sent"

    def drop(self) -> None:
        assert not self.is_dropped
        self.is_dropped = True


class Far:
    """A log, the page that mirrors it, and what carries its batches here when it is told to."""

    waits_for = ""

    def __init__(self, world: World) -> None:
        fd, region = memory(lo.state_table_bytes(4))
        os.close(fd)
        format_table(region, bytes(16), 4)
        self.world = world
        self.page = StatePage(region, PAGE)
        self.page.claim(TOPIC, 0, 1)
        self.cursors: list[Under] = []
        self.log_epochs = [(1, 0)]
        self.page.publish_epoch(1)
        self.tell()

    def tell(self) -> None:
        """The page says how far the log is."""
        end = self.world.log.log_end
        self.page.publish_ends(end, end, end)

    def open(
        self, page: int, topic_id: bytes, partition: int, offset: int, leader_epoch: int,
        committed: bool, credit: int,
    ) -> FarCursor:  # fmt: skip
        assert (page, topic_id, partition) == (PAGE, TOPIC, 0)
        is_over = (cursor.is_dropped or cursor.is_failed for cursor in self.cursors)
        assert all(is_over), "two cursors of one partition"
        self.cursors.append(Under(self, offset, leader_epoch, credit))
        return self.cursors[-1]

    def epochs(self, page: int) -> list[tuple[int, int]]:
        return self.log_epochs

    @property
    def cursor(self) -> Under:
        return self.cursors[-1]

    def carry(self, bytes_max: int = 600, mangle: int | None = None) -> bool:
        """One piece comes, if there is one and credit for it."""
        if not self.cursors or self.cursor.is_dropped or self.cursor.left <= 0:
            return False
        cursor, start = self.cursor, self.cursor.reader.offset
        found = cursor.reader.fetch(self.world.limit, bytes_max)
        if not found and cursor.reader.offset == start:
            return False
        payload = bytearray(b"".join(view[at : at + head.length] for head, view, at in found))
        if mangle is not None:
            payload[mangle] ^= 1
        cursor.left -= len(payload)
        cursor.sent += len(payload)
        self.tell()
        cursor.put(fr.Fetched(1, 1, start, cursor.reader.offset, 0), payload or None)
        return True

    def partition(self, latest: LatestOnly | None = None, credit: int = CREDIT_MIN) -> FarPartition:
        made = FarPartition(("t", 0), TOPIC, self.page, self, credit, latest)
        made.jump(0)
        return made


def rows(chunks: list[Any]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for chunk in chunks:
        part = slice(chunk.start, chunk.stop)
        offsets = chunk.columns.offsets[part].tolist()
        found += zip(offsets, chunk.columns.values[part].to_list(), strict=True)
    return found


def drained(partition: FarPartition) -> list[tuple[int, bytes]]:
    """All that is here now."""
    found: list[tuple[int, bytes]] = []
    while partition.has_more:
        before = partition.offset
        taken = partition.take(None)
        assert taken or partition.offset > before, "it says that there is more, and brings nothing"
        found += rows(taken)
    return found


@pytest.fixture
def far(tmp_path: Path) -> Far:
    return Far(World(tmp_path / "log", segment_bytes=4096))


def fill(far: Far, batches: int = 20, each: int = 3) -> None:
    for _ in range(batches):
        first = len(far.world.values)
        far.world.append([b"v%d" % (first + i) * 5 for i in range(each)])
    far.tell()


def test_whatever_happens_under_way_every_record_comes_once_in_order(tmp_path: Path) -> None:
    seed = seed_of("far source")
    for number in range(30):
        some_life(Far(World(tmp_path / str(number), segment_bytes=4096)), seed + number)


def some_life(far: Far, seed: int) -> None:
    rng = random.Random(seed)
    partition = far.partition()
    read: list[tuple[int, bytes]] = []
    for _ in range(rng.randrange(50, 250)):
        match rng.randrange(12):
            case 0 | 1:
                fill(far, rng.randrange(1, 4), rng.randrange(1, 9))
            case 2 | 3 | 4 | 5:
                far.carry(rng.choice([1, 300, 2000]))
            case 6:  # an iteration that is left: what was taken and not handed out comes again
                back = rng.randrange(min(len(read), 6) + 1)
                del read[len(read) - back :]
                partition.jump(read[-1][0] + 1 if read else 0)
            case 7:
                partition.pause()
                assert not partition.has_more
                partition.paused = False
            case 8:
                partition.moved(_Session(far), PAGE)  # type: ignore[arg-type]
            case 9 if (chunk := partition.take_alone()) is not None:
                read += rows([chunk])
            case _ if partition.has_more:
                read += rows(partition.take(rng.choice([None, 1, 5]), rng.choice([1, 400, 9999])))
    while far.carry() or partition.has_more or far.carry():
        read += drained(partition)
    assert read == list(enumerate(far.world.values)), f"seed {seed}"
    assert not partition.is_awaited


class _Session:
    """What `moved` needs of one."""

    def __init__(self, far: Far) -> None:
        self.far = far

    def page(self, index: int) -> StatePage:
        return self.far.page


def test_the_gateway_never_sends_beyond_the_credit_and_gets_all_of_it_back(far: Far) -> None:
    fill(far, 3000)
    partition = far.partition()
    assert not partition.has_more
    assert partition.is_awaited
    while far.carry():
        pass
    assert far.cursor.left <= 0
    assert far.cursor.sent < CREDIT_MIN + 2000
    seen = 0
    while far.carry() or partition.has_more:
        seen += len(drained(partition))
        for _ in range(4):  # a consumer that rests tells of the last bytes, too
            partition.has_more  # noqa: B018
        assert far.cursor.left == CREDIT_MIN
    assert seen == len(far.world.values)


def test_less_credit_is_taken_back_as_bytes_are_consumed_and_more_is_given_at_once(
    far: Far,
) -> None:
    fill(far, 3000)
    partition = far.partition(credit=4 * CREDIT_MIN)
    assert not partition.has_more
    far.carry(1 << 30)
    partition.allow(CREDIT_MIN)
    cursor = far.cursor
    assert cursor.left == 4 * CREDIT_MIN - cursor.sent
    drained(partition)
    for _ in range(4):
        partition.has_more  # noqa: B018
    assert cursor.left == CREDIT_MIN
    partition.allow(3 * CREDIT_MIN)
    assert cursor.left == 3 * CREDIT_MIN


def test_for_a_single_record_the_gateway_sends_little_and_all_again_for_who_reads_on(
    far: Far,
) -> None:
    fill(far, 3000)
    partition = far.partition(credit=4 * CREDIT_MIN)
    for place, wanted, credit in (
        (700, 100, CREDIT_MIN), (5, 2 * CREDIT_MIN, 2 * CREDIT_MIN), (0, 1 << 40, 4 * CREDIT_MIN),
    ):  # fmt: skip
        partition.look(place, wanted)
        assert not partition.has_more
        assert (far.cursor.credit, far.cursor.reader.offset) == (credit, place)
        if place:
            far.carry()
            assert rows(partition.take(1))[0][0] == place
    far.carry()
    partition.look(0, 1)
    assert far.cursor.credit == CREDIT_MIN
    partition.look(0)
    assert far.cursor.credit == 4 * CREDIT_MIN


def test_a_step_back_over_what_the_last_fetch_brought_asks_nobody(far: Far) -> None:
    fill(far, 10)
    partition = far.partition()
    assert not partition.has_more
    while far.carry(200):
        pass
    partition.take(None, 200)
    taken = rows(partition.take(None, 1000))
    assert len(taken) > 3
    assert taken[-1][0] < len(far.world.values) - 1
    for place in (2, 3):
        partition.jump(taken[place][0])
        again = rows(partition.take(None, 1000))
        assert again[0] == taken[place]
    assert len(far.cursors) == 1
    partition.jump(0)
    assert far.cursor.is_dropped
    assert not partition.has_more
    assert len(far.cursors) == 2


def test_what_stood_without_records_moves_the_position(far: Far) -> None:
    fill(far, 1)
    partition = far.partition()
    assert not partition.has_more
    far.carry()
    far.cursor.put(fr.Fetched(1, 1, 3, 7, 4), None)
    assert len(drained(partition)) == 3
    assert (partition.offset, partition.aborted) == (7, 4)
    assert not partition.has_more


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("OffsetOutOfRangeError", OffsetOutOfRangeError),
        ("LogTruncatedError", LogTruncatedError),
        ("CorruptBatchError", CorruptBatchError),
        ("UnknownTopicError", UnknownTopicError),
    ],
)
def test_a_cursor_that_failed_raises_what_a_reader_would_behind_what_came(
    far: Far, name: str, kind: type[Exception]
) -> None:
    fill(far, 4)
    partition = far.partition()
    for _ in range(2):
        assert partition.has_more == (kind is UnknownTopicError and partition.offset > 0)
        offset = partition.offset
        came = far.carry(1 << 20)
        far.cursor.fail(fr.CursorFailed(1, 1, 12, name, "why", divergence=5))
        if came:
            assert rows(partition.take(None))
        with pytest.raises(kind, match="why") as caught:
            drained(partition)
        if kind is LogTruncatedError:
            assert caught.value.divergence == 5  # type: ignore[attr-defined]
        assert partition.offset == (12 if came else offset)
    if kind is UnknownTopicError:
        assert len(far.cursors) == 1, "it stands for good"
    else:
        assert len(far.cursors) == 2, "it is asked for again each time"


@pytest.mark.parametrize("at", [20, 60, 130])
def test_a_batch_that_breaks_under_way_is_found_and_comes_whole_the_next_time(
    far: Far, at: int
) -> None:
    fill(far, 2)
    partition = far.partition()
    assert not partition.has_more
    far.carry(1, mangle=at)
    with pytest.raises(CorruptBatchError):
        drained(partition)
    assert partition.offset == 0
    assert not partition.has_more
    while far.carry():
        pass
    assert drained(partition) == list(enumerate(far.world.values))


def test_a_batch_of_another_partition_is_refused(far: Far) -> None:
    fill(far, 1)
    partition = far.partition()
    assert not partition.has_more
    partition._source._topic_id = bytes(16)
    far.carry()
    with pytest.raises(CorruptBatchError, match="of partition 0 of topic"):
        partition.take(None)


def test_a_log_that_was_cut_is_noticed_by_its_epochs(far: Far) -> None:
    fill(far, 2)
    partition = far.partition()
    assert not partition.has_more
    while far.carry():
        pass
    assert len(drained(partition)) == 6
    far.page.publish_epoch(2)
    far.log_epochs = [(1, 0), (2, 4)]
    assert partition.is_suspect
    with pytest.raises(LogTruncatedError) as caught:
        partition.check()
    assert caught.value.divergence == 4


def test_the_epoch_of_what_was_read_goes_with_each_cursor(far: Far) -> None:
    fill(far, 2)
    partition = far.partition()
    assert not partition.has_more
    assert far.cursor.epoch == EPOCH_UNKNOWN
    far.carry()
    drained(partition)
    partition.moved(_Session(far), PAGE)  # type: ignore[arg-type]
    assert not partition.has_more
    assert far.cursor.epoch == 1


@pytest.mark.parametrize("latest", ["key", "partition"])
def test_only_the_newest_waits_for_all_that_stood_there(far: Far, latest: LatestOnly) -> None:
    fill(far, 30)
    partition = far.partition(latest)
    handed: list[tuple[int, bytes]] = []
    for _ in range(1000):
        if partition.has_more:
            taken = rows(partition.take(None, 1 << 20))
            assert partition.offset in (0, 90) or taken
            handed += taken
        if partition.offset == 90:
            break
        far.carry(200)
    everything = list(enumerate(far.world.values))
    # Records without a key are all kept.
    assert handed == (everything if latest == "key" else everything[-1:])
    assert partition.skipped == (0 if latest == "key" else 89)
    fill(far, 1, each=2)
    while far.carry() or partition.has_more or far.carry():
        if partition.has_more:
            handed += rows(partition.take(None, 1 << 20))
    assert handed[-1] == (91, far.world.values[-1])


# --- what a gateway must not send -----------------------------------------------------------------
def put(far: Far, payload: bytes, start: int, next_offset: int) -> None:
    """A piece comes as the gateway tells it."""
    end = far.world.log.log_end
    far.page.publish_ends(end, end, end)
    far.cursor.put(fr.Fetched(1, 1, start, next_offset, 0), payload)


@pytest.mark.parametrize("what", ["topic", "partition", "offsets", "length"])
def test_a_piece_that_is_not_of_the_partition_or_not_what_it_says_is_damaged(
    far: Far, what: str
) -> None:
    fill(far, 1)
    partition = far.partition()
    assert not partition.has_more
    ((head, view, at),) = far.world.reader().fetch(far.world.limit, 1 << 20)
    payload = bytearray(view[at : at + head.length])
    told = head.next_offset
    if what == "topic":
        payload[104:105] = b"x"
    elif what == "partition":
        payload[100:104] = (5).to_bytes(4, "little")
    elif what == "offsets":
        told -= 1
    stamp(payload)
    if what == "length":
        del payload[-64:]
    put(far, bytes(payload), 0, told)
    with pytest.raises(CorruptBatchError, match="what the gateway sent"):
        partition.take(None)


def stamp(payload: bytearray) -> None:
    """The header's checksum is right again."""
    payload[8:12] = bytes(4)
    payload[8:12] = crc32c(bytes(payload[:128])).to_bytes(4, "little")


def test_a_lone_record_below_the_log_start_does_not_come_the_short_way(far: Far) -> None:
    fill(far, 1, each=1)
    partition = far.partition()
    assert not partition.has_more
    assert far.carry()
    assert len(drained(partition)) == 1
    fill(far, 1, each=1)
    assert far.carry()
    far.page.publish_log_start(2)
    assert partition.take_alone() is None
    with pytest.raises(OffsetOutOfRangeError):
        partition.take(None)


def test_what_was_fetched_before_the_node_came_back_is_not_read_on(far: Far) -> None:
    """It may be of a log that was cut meanwhile."""
    fill(far, 4)
    partition = far.partition()
    assert not partition.has_more
    assert far.carry(10_000)
    old = far.cursor
    partition.moved(_Session(far), PAGE)  # type: ignore[arg-type]
    assert old.is_dropped
    assert not partition.has_more
    assert far.cursor is not old
    assert far.cursor.reader.offset == 0
    far.carry(10_000)
    assert [offset for offset, _ in drained(partition)] == list(range(12))
