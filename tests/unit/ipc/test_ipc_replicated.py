"""The role of a replicated partition, between a real log, its page and its replication lane."""

from __future__ import annotations

import errno
import logging

import pytest
from replica_fixture import ReplicaPartition
from unit.core.compacting import compact, keyed
from unit.core.log_helpers import (
    FOLDER,
    TOPIC,
    Crash,
    MemoryStorage,
    abort,
    begin,
    commit,
    crash_at,
    fail_at,
    make_batch,
    numbered,
    refuse,
    within,
)

from penstock.core import header as hd
from penstock.core.committed import AbortedTransactions
from penstock.core.errors import ErrorCode, StorageError
from penstock.core.storage import storage_error
from penstock.core.swapping import CleanedSource, Prepared
from penstock.ipc import layout as lo
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.roles import BeginAnew, Follow, HighWatermark, Lead, Trim, Truncate
from penstock.server.node.parked_partitions import ParkedRole

NONE, STALE, BEYOND = ErrorCode.NONE, ErrorCode.STALE_LEADER_EPOCH, ErrorCode.BEYOND_LOG_END


@pytest.fixture
def leader():
    made = ReplicaPartition()
    assert made.obey(Lead(5)) == [NONE]
    return made


@pytest.fixture
def replica():
    made = ReplicaPartition()
    assert made.obey(Follow(5)) == [NONE]
    return made


# --- roles ----------------------------------------------------------------------------------------
@pytest.mark.rule(24)
def test_a_replica_begins_idle_and_refuses_producers():
    made = ReplicaPartition()
    assert made.page.status == lo.STATUS_FOLLOWING
    assert made.ends() == (0, 0, 0, 0)
    assert made.append(*numbered(3)) == [ErrorCode.NOT_LEADER] * 3
    assert (made.role.log_end, made.page.leader_epoch) == (0, 0)
    made.role.count(numbered(3), made.role.append(numbered(3), 1))
    assert made.page.counters()["refusals"] == 3


def test_a_leader_appends_in_its_epoch_and_shows_no_more_than_is_committed(leader):
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_ONLINE, 5)
    assert leader.append(*numbered(4)) == [NONE] * 4
    assert leader.ends() == (0, 0, 0, 4)
    assert [head.leader_epoch for head, _ in leader.role._log.read(0, 1 << 20)] == [5] * 4
    assert leader.obey(HighWatermark(5, 3)) == [NONE]
    assert leader.ends() == (0, 3, 3, 4)
    assert leader.obey(HighWatermark(5, 90), HighWatermark(5, 2)) == [NONE, NONE]
    assert leader.ends() == (0, 4, 4, 4), "never above the log's end, and it only rises"


@pytest.mark.rule(24)
def test_a_refusal_for_want_of_the_lead_poisons_nobody(leader):
    leader.append(*numbered(2))
    leader.obey(Follow(6))
    assert leader.append(*numbered(2, 2)) == [ErrorCode.NOT_LEADER] * 2
    leader.obey(Lead(7))
    assert leader.append(*numbered(4)) == [NONE] * 4
    assert leader.role.log_end == 4


def test_who_takes_a_role_shows_it_with_its_epoch(leader):
    leader.append(*numbered(2))
    assert leader.obey(Follow(6)) == [NONE]
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_FOLLOWING, 6)
    assert leader.obey(Follow(6), Lead(9), Lead(9)) == [NONE] * 3
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_ONLINE, 9)
    assert leader.ends() == (0, 0, 0, 2)
    assert leader.role._log.epochs.entries == ((5, 0), (9, 2))


@pytest.mark.rule(22)
def test_what_was_said_in_an_epoch_that_is_over_changes_nothing(leader):
    leader.append(*numbered(4))
    leader.obey(Follow(8))
    said = (Lead(7), Follow(7), HighWatermark(7, 3), Truncate(7, 0), BeginAnew(7, 9), Trim(7, 2))
    assert leader.obey(*said) == [STALE] * 6
    assert leader.follow(7, *numbered(1)) == [STALE]
    assert leader.ends() == (0, 0, 0, 4)
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_FOLLOWING, 8)
    later = (HighWatermark(9, 3), Truncate(9, 0), BeginAnew(9, 9), Trim(9, 2))
    assert leader.obey(*later) == [STALE] * 4, "nor of one that was not begun here"


@pytest.mark.rule(22)
def test_a_leader_is_not_cut_and_takes_no_batches_of_another(leader):
    leader.append(*numbered(4))
    assert leader.obey(Truncate(5, 0), BeginAnew(5, 9), Trim(5, 2)) == [STALE] * 3
    assert leader.follow(5, *numbered(1)) == [STALE]
    assert leader.ends() == (0, 0, 0, 4)


def test_nobody_leads_in_the_epoch_in_which_it_followed(replica):
    assert replica.obey(Lead(5)) == [STALE]
    assert replica.obey(Lead(6)) == [NONE]


def test_bytes_that_are_no_control_frame_are_refused(replica):
    assert replica.sender.try_write(2, [b"\xff" * 9], 9, kind=lo.KIND_ROLE) is not None
    assert replica.sender.try_write(2, [bytes(64)], 64) is not None
    results = replica.drain()
    assert [result.error for result in results] == [ErrorCode.CORRUPT_BATCH] * 2
    assert [result.base_offset for result in results] == [0, 0]


# --- following ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("topic_id", "partition"), [(bytes(16), 0), (TOPIC, 1)])
def test_what_was_said_to_another_partition_that_had_the_page_is_refused_and_counted(
    leader, replica, topic_id, partition
):
    leader.append(*numbered(3))
    replica.follow(5, *leader.batches())
    before = replica.ends()
    other = {"topic_id": topic_id, "partition": partition}
    replica.say(HighWatermark(5, 2), Truncate(5, 0), BeginAnew(5, 9), Lead(6), Follow(7), **other)
    assert [result.error for result in replica.drain()] == [ErrorCode.CORRUPT_BATCH] * 5
    assert (replica.ends(), replica.page.leader_epoch) == (before, 5)
    assert replica.page.counters()["refusals"] == 5
    assert replica.obey(HighWatermark(5, 2)) == [NONE]
    assert replica.page.counters()["refusals"] == 5


def test_a_reason_to_refuse_frames_is_logged_once_in_a_role_and_all_are_counted(leader, caplog):
    def warnings() -> int:
        found = [record for record in caplog.records if record.levelno == logging.WARNING]
        caplog.clear()
        return len(found)

    leader.append(*numbered(1))
    batch = leader.batches()[0]
    caplog.set_level(logging.DEBUG, "penstock.writer")
    assert leader.follow(5, *[batch] * 30) == [STALE] * 30
    assert leader.obey(Truncate(5, 0), HighWatermark(4, 0)) == [STALE] * 2
    assert warnings() == 1
    leader.say(Lead(6), topic_id=bytes(16))
    leader.say(Lead(7), partition=1)
    leader.drain()
    assert warnings() == 1, "another reason"
    assert leader.obey(Lead(6), Truncate(6, 0), Truncate(6, 0)) == [NONE, STALE, STALE]
    assert warnings() == 1, "another role"
    assert leader.page.counters()["refusals"] == 36


@pytest.mark.rule(22)
def test_a_follower_copies_its_leader(leader, replica):
    leader.append(*numbered(6, records=1))
    leader.append(begin(producer=2), within(0, producer=2), *numbered(3, 6))
    batches = leader.batches()
    assert replica.follow(5, *batches[:4]) == [NONE] * 4
    assert replica.ends() == (0, 0, 0, 4)
    assert replica.follow(5, *batches[2:]) == [NONE] * (len(batches) - 2)
    assert replica.obey(HighWatermark(5, 11)) == [NONE]
    leader.obey(HighWatermark(5, 11))
    assert replica.ends() == leader.ends() == (0, 11, 6, 11)
    assert replica.page.oldest_open == leader.page.oldest_open
    assert replica.batches() == batches
    assert replica.page.segment() == (0, sum(map(len, batches)))


@pytest.mark.rule(22)
def test_what_lies_beyond_is_refused_with_the_log_end(leader, replica):
    leader.append(*numbered(6))
    batches = leader.batches()
    replica.follow(5, batches[0])
    replica.send(5, batches[1], batches[3], batches[4])
    results = replica.drain()
    assert [result.error for result in results] == [NONE, BEYOND, BEYOND]
    assert [result.base_offset for result in results] == [2, 2, 2]
    assert replica.follow(5, *batches[2:]) == [NONE] * 4


@pytest.mark.rule(22)
def test_frames_of_a_lane_are_done_in_their_order(leader, replica):
    leader.append(*numbered(6))
    batches = leader.batches()
    replica.send(5, *batches[:4])
    replica.say(HighWatermark(5, 3), Follow(6), Truncate(6, 3))
    replica.send(5, batches[3])
    replica.send(6, batches[3])
    replica.say(HighWatermark(6, 9))
    assert [r.error for r in replica.drain()] == [NONE] * 7 + [STALE, NONE, NONE]
    assert replica.ends() == (0, 4, 4, 4)


def test_transactions_follow_from_the_log(leader, replica):
    leader.append(begin(producer=2), within(0, producer=2), begin(producer=3))
    leader.append(abort(producer=2), commit(producer=3), *numbered(1))
    replica.follow(5, *leader.batches())
    replica.obey(HighWatermark(5, 2))
    assert replica.ends() == (0, 2, 2, 6), "all is decided in this log"
    replica.obey(HighWatermark(5, 6))
    assert replica.ends() == (0, 6, 6, 6)
    mine, theirs = ([each for each in one.storage.names.items() if each[0].endswith(".txn")]
                    for one in (replica, leader))  # fmt: skip
    assert [bytes(node.content) for _, node in mine] == [bytes(node.content) for _, node in theirs]
    assert mine


def test_a_follower_that_becomes_leader_answers_as_the_one_before(leader, replica):
    leader.append(*numbered(4))
    replica.follow(5, *leader.batches())
    replica.obey(Lead(6))
    assert replica.append(*numbered(6)) == [NONE] * 6
    assert replica.role.log_end == 6
    assert replica.append(make_batch(9)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE]


# --- cuts -----------------------------------------------------------------------------------------
def test_a_truncation_is_shown_and_keeps_what_is_committed_in_view(leader, replica):
    leader.append(*numbered(8))
    replica.follow(5, *leader.batches())
    replica.obey(HighWatermark(5, 3))
    replica.sync()
    assert replica.page.durable == 8
    replica.say(Truncate(5, 6))
    (result,) = replica.drain()
    assert (result.error, result.base_offset) == (NONE, 6)
    assert (replica.ends(), replica.page.durable) == ((0, 3, 3, 6), 6)
    assert replica.follow(5, *leader.batches()[6:]) == [NONE] * 2
    assert replica.obey(Truncate(5, 2)) == [NONE]
    assert replica.ends() == (0, 2, 2, 2), "an unclean election"
    assert replica.page.segment() == (replica.role._log.segment_base, 0)


def test_a_new_beginning_is_shown(leader, replica):
    leader.append(*numbered(8))
    replica.follow(5, *leader.batches())
    replica.say(BeginAnew(5, 100))
    (result,) = replica.drain()
    assert (result.error, result.base_offset) == (NONE, 100)
    assert (replica.ends(), replica.page.durable) == ((100,) * 4, 100)
    assert replica.page.segment() == (100, 0)
    replica.obey(BeginAnew(5, 3))
    assert replica.ends() == (3,) * 4
    assert replica.follow(5, *leader.batches(3)) == [NONE] * 5
    assert replica.ends() == (3, 3, 3, 8)


def test_a_leaders_log_that_starts_within_a_batch_is_followed(leader, replica):
    leader.append(make_batch(0, records=10), make_batch(10, records=10))
    leader.obey(HighWatermark(5, 20))
    leader.role.trim(4, 1)
    assert leader.ends() == (4, 20, 20, 20)
    replica.obey(BeginAnew(5, 4))
    assert replica.follow(5, *leader.batches(4)) == [NONE] * 2
    assert replica.ends() == (4, 4, 4, 20)
    replica.killed()
    assert replica.ends() == (4, 4, 4, 20)


def test_a_cut_waits_for_a_sync_and_no_other_page_is_the_worse_for_it(leader, replica):
    leader.append(*numbered(4))
    replica.follow(5, *leader.batches())
    replica.role.request_sync()
    job = replica.role.tick(0.0, 1)
    assert job is not None
    replica.say(HighWatermark(5, 1), Truncate(5, 2), HighWatermark(5, 2))
    assert len(replica.drain()) == 1
    assert replica.ends() == (0, 1, 1, 4)
    job.run()
    replica.role.finish_sync(job)
    assert [result.error for result in replica.drain()] == [NONE, NONE]
    assert replica.ends() == (0, 2, 2, 2)


def test_retention_stays_below_what_is_committed(leader, replica):
    for at in range(0, 40, 4):
        leader.append(*numbered(4, at, body=4000))
    replica.role.configure(replica.settings)
    replica.follow(5, *leader.batches())
    replica.obey(HighWatermark(5, 20), Trim(5, 30))
    replica.role.tick(0.0, replica.clock)
    assert replica.ends()[:2] == (20, 20)
    leader.obey(HighWatermark(5, 12))
    assert leader.role.trim(40, 1).log_start == 12
    assert leader.ends() == (12, 12, 12, 40)
    prepared = Prepared(0, 16, 100, (CleanedSource(0, 0, 0),))
    with pytest.raises(StorageError, match="not all committed"):
        leader.role.swap(prepared, 0, 1)


# --- deaths ---------------------------------------------------------------------------------------
def test_a_writers_successor_is_idle_and_led_in_the_same_epoch_again(leader):
    leader.append(*numbered(4))
    leader.obey(HighWatermark(5, 3))
    leader.killed()
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_FOLLOWING, 5)
    assert leader.ends() == (0, 3, 3, 4)
    assert leader.append(*numbered(1, 4)) == [ErrorCode.NOT_LEADER]
    assert leader.obey(HighWatermark(5, 4), Lead(4), Lead(5)) == [NONE, STALE, NONE]
    assert leader.append(*numbered(5)) == [NONE] * 5
    assert leader.ends() == (0, 4, 4, 5)


def test_a_reboot_loses_the_hw_and_no_epoch(leader):
    leader.append(*numbered(4))
    leader.obey(HighWatermark(5, 3))
    leader.sync()
    leader.power_cut()
    assert leader.ends() == (0, 0, 0, 4)
    assert (leader.page.status, leader.page.leader_epoch) == (lo.STATUS_FOLLOWING, 5)
    assert leader.role._log.epochs.entries == ((5, 0),)


def test_frames_that_are_drained_again_by_a_successor_end_where_they_did():
    """At every storage call of a pass that copies, cuts, copies and begins again."""
    source = ReplicaPartition()
    source.obey(Lead(3))
    source.append(*numbered(12, body=300))
    batches = source.batches()
    number = 0
    while True:
        number += 1
        replica = ReplicaPartition(segment_bytes=1 << 20)
        replica.say(Follow(3), HighWatermark(3, 0))
        replica.send(3, *batches[:6])
        replica.say(HighWatermark(3, 4), Follow(4), Truncate(4, 5))
        replica.send(4, *batches[5:8])
        replica.say(BeginAnew(4, 6))
        replica.send(4, *batches[6:])
        replica.say(HighWatermark(4, 11))
        replica.storage.fault = crash_at(replica.storage.calls + number)
        try:
            replica.drain(answer=False)
        except Crash:
            dead = True
        else:
            dead = False
        replica.killed()
        replica.drain()
        assert replica.ends() == (6, 11, 11, 12), number
        assert replica.batches(6) == batches[6:]
        assert not replica.receiver.has_frames
        if not dead:
            break
    assert number > 30


def test_a_replica_that_was_moved_away_and_is_given_back_begins_empty(leader, replica):
    leader.append(*numbered(6))
    assert replica.follow(5, *leader.batches()) == [NONE] * 6
    assert replica.obey(HighWatermark(5, 6)) == [NONE]
    replica.role.close(clean=True)
    replica.page.let_go(deleted=False)
    assert (replica.page.status, replica.ends()) == (lo.STATUS_FOLLOWING, (0, 0, 0, 0))
    replica.storage = MemoryStorage()  # its folder is removed
    replica.start()
    assert replica.obey(Follow(7)) == [NONE]
    assert replica.follow(7, *leader.batches()) == [NONE] * 6
    assert replica.batches() == leader.batches()


# --- storage --------------------------------------------------------------------------------------
def no_room(call):
    if call.name == "pwritev":
        error = OSError(errno.ENOSPC, "no room")
        raise storage_error(error, "write", call.path) from error


def test_a_follower_without_room_says_so_and_goes_on_later(leader, replica):
    leader.append(*numbered(3))
    replica.storage.fault = no_room
    replica.send(5, *leader.batches())
    results = replica.drain()
    assert [result.error for result in results] == [ErrorCode.STORAGE_FULL] * 3
    assert {result.base_offset for result in results} == {0}
    assert (replica.page.status, replica.page.errno) == (lo.STATUS_FOLLOWING, errno.ENOSPC)
    replica.storage.fault = None
    assert replica.follow(5, *leader.batches()) == [NONE] * 3
    assert (replica.page.status, replica.page.errno) == (lo.STATUS_FOLLOWING, 0)


def compacted(batches):
    """They stand in a segment that was compacted, in which each batch may follow a gap."""
    made = []
    for batch in batches:
        head, header = hd.parse(batch), bytearray(batch[: hd.HEADER_BYTES])
        hd.stamp(
            header,
            base_offset=head.base_offset,
            leader_epoch=head.leader_epoch,
            generation=head.generation,
            append_timestamp=head.append_timestamp,
            flags=hd.FLAG_COMPACTED,
        )
        made.append(bytes(header) + batch[hd.HEADER_BYTES :])
    return made


def test_a_gap_is_not_passed_over_behind_a_batch_that_was_refused(leader, replica):
    """A pass over the lane finds no room, the next one does: what it has then would look as if
    compaction had taken the batches between, and they would be lost with this one's election."""
    leader.append(*numbered(6))
    batches = compacted(leader.batches())
    assert replica.follow(5, *batches[:2]) == [NONE] * 2
    replica.storage.fault = no_room
    assert replica.follow(5, *batches[2:4]) == [ErrorCode.STORAGE_FULL] * 2
    replica.storage.fault = None
    assert replica.follow(5, *batches[4:]) == [BEYOND] * 2
    assert replica.ends()[3] == 2
    assert replica.obey(Follow(5)) == [NONE]  # its replicator has heard all that
    assert replica.follow(5, batches[2], *batches[4:]) == [NONE] * 3  # a gap that the leader has
    assert replica.ends()[3] == 6


def test_a_writers_successor_passes_no_gap_over_before_it_is_told_to_follow(leader, replica):
    """The one before may have answered for what is missing, or there was none to take it."""
    leader.append(*numbered(6))
    batches = compacted(leader.batches())
    assert replica.follow(5, *batches[:2]) == [NONE] * 2
    replica.killed()
    assert replica.follow(5, batches[2], batches[4]) == [NONE, BEYOND]
    assert replica.obey(Follow(5)) == [NONE]
    assert replica.follow(5, batches[4]) == [NONE]


def test_a_leader_without_room_keeps_its_producers_waiting(leader):
    leader.storage.fault = fail_at(1, errno.ENOSPC, "pwritev")
    with pytest.raises(StorageError):
        leader.append(*numbered(1))
    assert leader.page.status == lo.STATUS_FULL
    leader.storage.fault = None
    assert leader.append(*numbered(1)) == [NONE]
    assert leader.page.status == lo.STATUS_ONLINE


def test_a_leader_whose_disk_fails_refuses_producers_as_one_that_does_not_lead(leader):
    leader.append(*numbered(2))
    leader.storage.fault = fail_at(1, errno.EIO, "pwritev")
    assert leader.append(*numbered(2, 2)) == [ErrorCode.NOT_LEADER] * 2
    leader.storage.fault = None
    assert leader.page.status == lo.STATUS_OFFLINE
    assert "is offline until it is recovered" in leader.role.offline
    assert leader.append(*numbered(2, 2)) == [ErrorCode.NOT_LEADER] * 2
    assert leader.obey(Lead(9)) == [ErrorCode.PARTITION_OFFLINE]
    assert leader.page.log_end == 2, "what it has can be read"
    leader.killed()
    assert not leader.role.offline
    assert leader.obey(Lead(9)) == [NONE]


def test_a_replica_whose_device_failed_is_offline(leader, replica):
    leader.append(*numbered(3))
    replica.storage.fault = fail_at(1, errno.EIO, "pwritev")
    assert replica.follow(5, *leader.batches()) == [ErrorCode.PARTITION_OFFLINE] * 3
    replica.storage.fault = None
    assert replica.page.status == lo.STATUS_OFFLINE
    offline = [ErrorCode.PARTITION_OFFLINE] * 3
    assert replica.obey(Lead(6), HighWatermark(5, 1), Truncate(5, 0)) == offline
    assert replica.page.status == lo.STATUS_OFFLINE


def test_a_role_that_cannot_be_written_down_is_told_and_may_be_said_again(replica):
    replica.storage.fault = no_room
    assert replica.obey(Lead(6)) == [ErrorCode.STORAGE_FULL]
    assert (replica.page.status, replica.page.leader_epoch) == (lo.STATUS_FOLLOWING, 5)
    replica.storage.fault = None
    assert replica.obey(Lead(6)) == [NONE]
    assert (replica.page.status, replica.page.errno) == (lo.STATUS_ONLINE, 0)


def test_where_records_count_once_fsynced_nothing_is_shown_before():
    """Whatever syncs when: on the device is what the page says, after a power cut too."""
    leader, replica = (ReplicaPartition(durability="fsync") for _ in range(2))
    leader.obey(Lead(5))
    replica.obey(Follow(5))
    leader.append(*numbered(3))
    assert (leader.page.durable, leader.page.log_end) == (3, 3)
    replica.follow(5, *leader.batches())
    assert (replica.page.durable, replica.page.log_end) == (3, 3)
    leader.append(*numbered(2, 3))
    replica.storage.fault = fail_at(1, errno.ENOSPC, "fdatasync")
    replica.follow(5, *leader.batches(3))
    replica.storage.fault = None
    assert replica.obey(HighWatermark(5, 5)) == [NONE]
    assert replica.page.high_watermark <= replica.page.durable <= replica.page.log_end
    replica.power_cut()
    assert replica.role.log_end >= 3


def test_who_is_parked_for_want_of_room_asks_for_patience():
    made = ReplicaPartition()
    made.obey(Follow(5))
    order = OpenPartition(2, "t", bytes(16), 0, "/data", TopicSettings(), False, "boot-1", True)

    def fails():
        raise StorageError("no room", retriable=True)

    parked = ParkedRole(order, made.page, 2, fails, StorageError("no room", retriable=True))
    made.say(Lead(6))
    (frame,) = made.receiver.frames(9, 1 << 20)
    (result,) = parked.replicate([frame], 1)
    assert (result.error, result.base_offset) == (ErrorCode.STORAGE_FULL, 0)


# --- transactions whose outcome compaction took --------------------------------------------------
def in_transaction(key: bytes, epoch: int = 0) -> memoryview:
    return keyed([(key, b"v")], producer=2, producer_epoch=epoch, attributes=hd.ATTR_TRANSACTIONAL)


def visible(made: ReplicaPartition) -> list[int]:
    """Where the batches stand that readers of committed records get."""
    log, found = made.role._log, []
    aborted = AbortedTransactions(made.storage, FOLDER)
    for head, _ in log.read(0, 1 << 40):
        is_data = head.record_count and not head.attributes & hd.ATTR_CONTROL
        if not is_data or head.base_offset >= log.last_stable:
            continue
        if head.attributes & hd.ATTR_TRANSACTIONAL and aborted.has(head, log.last_stable):
            continue
        found.append(head.base_offset)
    return found


def compacted_away(leader: ReplicaPartition, *batches: memoryview) -> None:
    """These are appended, and the log is compacted up to its end."""
    assert leader.append(*batches) == [NONE] * len(batches)
    log = leader.role._log
    log.roll(leader.clock)
    log.sync()
    compact(leader.storage, log)


def caught_up(leader: ReplicaPartition, replica: ReplicaPartition) -> int:
    """How often the replica was told to follow until it had all."""
    for times in range(5):
        replica.obey(Follow(5))
        end = replica.role.log_end
        if end == leader.role.log_end:
            return times
        replica.follow(5, *leader.batches(end))
    raise AssertionError(f"it comes to {end}, and not to {leader.role.log_end}")


@pytest.mark.parametrize("second", [commit, abort])
@pytest.mark.parametrize("first", [commit, abort])
def test_the_outcome_of_a_transaction_that_compaction_took_is_that_of_the_leader(
    leader, replica, first, second
):
    """The replica was away with the first half of it. A later end of the same producer is not its
    outcome: aborted records would be served, or committed ones left out."""
    leader.append(keyed([(b"z", b"v")]), begin(0, producer=2), in_transaction(b"a"))
    assert replica.follow(5, *leader.batches()) == [NONE] * 3
    replica.obey(HighWatermark(5, 2))
    ends = [begin(1, producer=2), in_transaction(b"b", 1), second(1, producer=2)]
    compacted_away(leader, first(0, producer=2), *ends, keyed([(b"y", b"v")], 1))
    caught_up(leader, replica)
    assert visible(replica) == visible(leader) == [
        0, *([2] if first is commit else []), *([5] if second is commit else []), 7,
    ]  # fmt: skip
    assert replica.role._log.last_stable == leader.role._log.last_stable == 8
    assert replica.ends()[1] == 1  # where it was cut
    replica.obey(HighWatermark(5, 8))
    replica.killed()
    assert visible(replica) == visible(leader)


def test_a_log_is_cut_once_for_a_transaction_that_is_open_in_the_leaders_too(leader, replica):
    """Such logs were made before replicas asked for it: what is there is all that there is."""
    leader.append(begin(0, producer=2), in_transaction(b"a"))
    first = leader.batches()
    leader.append(*numbered(3))
    batches = [*first, compacted(leader.batches())[-1]]
    assert replica.follow(5, *batches) == [NONE, NONE, BEYOND]
    assert replica.obey(Follow(5)) == [NONE]
    assert replica.follow(5, *batches[2:]) == [BEYOND]
    assert replica.role.log_end == 0
    replica.obey(Follow(5))
    assert replica.follow(5, *batches[:2]) == [NONE] * 2
    assert replica.follow(5, *batches[2:]) == [NONE]
    assert replica.role.log_end == 5


def test_a_sync_under_way_puts_off_the_cut(leader, replica):
    leader.append(begin(0, producer=2), in_transaction(b"a"))
    replica.follow(5, *leader.batches())
    compacted_away(leader, abort(0, producer=2), keyed([(b"y", b"v")]), keyed([(b"y", b"w")], 1))
    replica.role.request_sync()
    job = replica.role.tick(0.0, replica.clock)
    assert job is not None
    assert replica.follow(5, leader.batches(2)[-1]) == [BEYOND]
    assert replica.role.log_end == 2
    job.run()
    replica.role.finish_sync(job)
    assert caught_up(leader, replica) == 2
    assert visible(replica) == visible(leader) == [4]


# --- cuts below what counted: only an unclean election brings them -------------------------------
def test_a_compacted_log_that_is_cut_below_what_counted_is_copied_anew():
    """Compaction has taken records for newer ones that are cut off now: the leader has the old
    ones, which count."""
    replica = ReplicaPartition(cleanup="compact")
    replica.obey(Lead(5))
    before = [keyed([(b"k", b"1")]), keyed([(b"x", b"1")], 1)]
    compacted_away(replica, *before, keyed([(b"k", b"2")], 2), keyed([(b"z", b"1")], 3))
    replica.obey(HighWatermark(5, 4))
    assert visible(replica) == [1, 2, 3]
    leader = ReplicaPartition(cleanup="compact")
    leader.obey(Lead(5))
    assert leader.append(*before) == [NONE] * 2
    assert leader.obey(Lead(6)) == [NONE]  # an unclean election: it has no more
    leader.append(keyed([(b"y", b"1")], 2))
    assert replica.obey(Follow(6), Truncate(6, 2)) == [NONE] * 2
    assert replica.follow(6, *leader.batches(replica.role.log_end)) == [NONE] * 3
    assert visible(replica) == visible(leader) == [0, 1, 2]
    assert replica.ends()[3] == 3


def test_a_trim_that_waits_goes_no_further_than_a_cut(leader, replica):
    leader.append(*numbered(6))
    replica.follow(5, *leader.batches())
    replica.obey(HighWatermark(5, 2), Trim(5, 5))
    assert replica.ends()[0] == 2
    assert replica.obey(Follow(6), Truncate(6, 3)) == [NONE] * 2
    leader.obey(Lead(6))
    replica.follow(6, *leader.batches(3))
    replica.obey(HighWatermark(6, 6))
    replica.role.tick(0.0, replica.clock)
    assert replica.ends() == (3, 6, 6, 6)


def test_transactions_that_overlap_are_copied_again_once_each(leader, replica):
    """What is open in the leader's log where it has gaps would have it cut to and fro for ever."""
    plain = [keyed([(b"p", b"v")], sequence) for sequence in range(4)]
    p, q = in_transaction(b"a"), keyed([(b"b", b"v")], producer=3, attributes=hd.ATTR_TRANSACTIONAL)
    leader.append(begin(0, producer=2), p, begin(0, producer=3), q, *plain[:2])
    leader.append(commit(0, producer=2), *plain[2:], commit(0, producer=3))
    batches = compacted(leader.batches())
    cuts = 0
    for _ in range(40):
        end = replica.role.log_end
        following = next((b for i, b in enumerate(batches) if i >= end and i not in (4, 7)), None)
        if following is None:
            break
        if replica.follow(5, following) != [NONE]:
            replica.obey(Follow(5))
        cuts += replica.role.log_end < end
    assert (replica.role.log_end, cuts) == (10, 1)


# --- what is on the disk --------------------------------------------------------------------------
def no_folder_sync(call):
    if call.name == "fsync_folder":
        refuse(call, errno.EMFILE)


@pytest.mark.rule(15)
def test_rule_15_a_follower_shows_no_hw_above_its_disk(leader):
    leader.append(*numbered(4))
    copy = ReplicaPartition(durability="fsync")
    copy.obey(Follow(5))
    batches = leader.batches()
    assert copy.follow(5, *batches[:2]) == [NONE, NONE]
    copy.role._log.roll(copy.clock)
    copy.storage.fault = no_folder_sync
    copy.follow(5, *batches[2:])
    assert copy.role.log_end == 4
    assert copy.page.durable == 2
    assert copy.obey(HighWatermark(5, 4)) == [NONE]
    assert (copy.page.high_watermark, copy.page.log_end) == (0, 2)
    copy.storage.fault = None
    copy.sync()
    assert copy.obey(HighWatermark(5, 4)) == [NONE]
    assert (copy.page.high_watermark, copy.page.durable) == (4, 4)


def test_invariant_1_a_cut_shows_no_durable_offset_above_the_end_whenever_its_writer_dies(leader):
    leader.append(*numbered(4))
    for step in range(1, 40):
        copy = ReplicaPartition()
        copy.obey(Follow(5))
        copy.follow(5, *leader.batches())
        copy.sync()
        assert copy.page.durable == 4
        copy.storage.fault = crash_at(copy.storage.calls + step)
        try:
            copy.obey(Truncate(5, 2))
        except Crash:
            assert copy.page.durable <= copy.page.log_end, step
        else:
            break
    assert step > 5
    assert (copy.page.durable, copy.page.log_end) == (2, 2)
