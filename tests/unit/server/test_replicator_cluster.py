"""Replicators between real logs: what is appended where a partition is led is on every replica, and
counts when it is; whoever comes back agrees with who leads."""

from __future__ import annotations

import time
from functools import partial

import pytest
from node_helpers import eventually
from replicator_fixture import TOPIC, Broker, Producer, World
from unit.core.compacting import keyed

from penstock.core.columns import decode
from penstock.core.compaction import Compaction, plan_compaction
from penstock.core.errors import ErrorCode
from penstock.core.header import parse
from penstock.core.segment import list_segments
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import replicated
from penstock.server.replicator import leader_fetch


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as made:
        yield made


def filled(world: World, count: int, first: int = 0, page: int = 0, **how: int) -> Producer:
    """So many batches, committed everywhere."""
    producer = Producer(world.leader(page))
    for sequence in range(first, first + count):
        producer.send(sequence, page, **how)
    assert not any(ack.error for ack in producer.settle())
    world.wait_committed(first + count, page)
    return producer


def test_what_the_leader_appends_is_committed_on_all_replicas(world):
    world.topic()
    filled(world, 300)
    world.check_equal()
    leader = world.leader()
    statuses = {n: each.page().status for n, each in world.brokers.items()}
    assert statuses.pop(leader.number) == lo.STATUS_ONLINE
    assert set(statuses.values()) == {lo.STATUS_FOLLOWING}


def test_a_followers_writer_takes_nothing_of_producers(world):
    world.topic()
    filled(world, 3)
    follower = next(each for each in world.brokers.values() if each is not world.leader())
    producer = Producer(follower, 8)
    producer.send(0)
    assert [ack.error for ack in producer.settle()] == [ErrorCode.NOT_LEADER]


def test_many_partitions_with_their_leaders_spread(world):
    world.topic(partitions=6)
    assert len({world.leader(page).number for page in range(6)}) == 3
    for page in range(6):
        filled(world, 40, page=page)
    for page in range(6):
        world.check_equal(page)


def is_at_rest(broker: Broker) -> bool:
    """Whether a sweep of its replicator visits no partition and no request."""
    it = broker.replicator
    hosting, copying, serving = it._hosting, it._copying, it._serving
    lists = hosting._turning, hosting._uneven, copying._silent, serving._restless
    return not any(lists)


def test_partitions_at_rest_are_not_looked_at(world):
    world.topic(partitions=6, factor=2, min_insync=1)
    for page in range(6):
        filled(world, 3, page=page)
    for broker in world.brokers.values():
        eventually(partial(is_at_rest, broker), "all is at rest")
    leader, members = world.leader(), world.partition().replicas
    late = next(world.brokers[n] for n in members if n != leader.number)
    late.pause()
    assert late.stands.wait(15), "it was in the middle of a turn"
    producer = Producer(leader, 9)
    producer.send(0)
    world.wait_isr(leader.number)
    assert not is_at_rest(leader), "a follower lacks a record"
    late.go_on()
    world.wait_isr(*members)
    producer.settle()
    for broker in world.brokers.values():
        eventually(partial(is_at_rest, broker), "all is at rest again")


@pytest.mark.rule(23)
def test_replicas_that_all_lost_power_tell_where_they_end_and_one_of_them_leads(world):
    world.topic()
    filled(world, 300)
    epoch = world.partition().leader_epoch
    for number in world.brokers:
        world.kill(number)
    for number in world.brokers:
        world.start(number, was_clean=False)
    leader = world.leader()
    told = {number: (end.last_epoch, end.log_end) for number, end in world.ends}
    assert told == dict.fromkeys(world.brokers, (epoch, 300))
    assert world.partition().unclean.first == 300
    world.wait_isr(*world.brokers)
    producer = Producer(leader, 9)
    producer.send(0)
    assert not any(ack.error for ack in producer.settle())
    world.wait_committed(301)
    world.check_equal()


def send_keyed(producer: Producer, sequence: int, key: bytes, value: bytes | None) -> None:
    """One record; a few of those with a value fill a segment."""
    value = value and value + bytes(1500)
    batch = keyed([(key, value)], sequence, producer.producer, topic_id=TOPIC)
    producer.send_batch(batch, 0)


def newest(broker: Broker) -> dict[bytes | None, bytes]:
    """Of each key, as a reader of the whole log has it in the end."""
    found: dict[bytes | None, bytes | None] = {}
    for _, _, batch in broker.batches():
        head = parse(memoryview(batch))
        if head.record_count:
            columns = decode(memoryview(batch), 0, head)
            found.update(zip(columns.keys, columns.values, strict=True))
    return {key: value[:1] for key, value in found.items() if value is not None}


def compact(broker: Broker, later: float) -> int:
    """One pass over what is closed, so many seconds from now; how many tombstones went."""
    storage, folder, page = Storage(), str(broker.folder / "topic-0"), broker.page()
    bases = list_segments(storage, folder)
    eventually(lambda: page.durable >= bases[-1], "what is closed is synced")
    bound, now_us = min(page.high_watermark, page.durable), int((time.time() + later) * 1e6)
    plan = plan_compaction(storage, folder, bases, log_start=0, bound=bound, now_us=now_us)
    work = Compaction(storage, plan, now_us, 0, segment_bytes=4096)
    for ticket, made in enumerate(work.prepare()):
        sources = [(each.base, each.position, each.header_crc) for each in made.sources]
        segment = ms.CleanedSegment(made.base, made.end, made.length, sources)
        assert broker.cleaned(ms.SwapLog(0, ticket, segment, 1)).done
    return work.stats.tombstones_dropped


def test_a_replica_that_was_away_for_longer_than_tombstones_are_kept_has_no_deleted_key(
    world, monkeypatch
):
    monkeypatch.setattr(replicated, "AWAY_MIN", 0.0)
    monkeypatch.setattr(leader_fetch, "FRESH_FOR", 0.0)
    world.topic(factor=2, min_insync=1, cleanup="compact", delete_retention=0.0, segment_bytes=4096)
    leader = world.leader()
    away = world.brokers[next(n for n in world.partition().replicas if n != leader.number)]
    producer = Producer(leader)
    for sequence, key in enumerate((b"k", b"x", b"y")):
        send_keyed(producer, sequence, key, b"1")
    world.wait_committed(3)
    world.kill(away.number)
    world.wait_isr(leader.number)
    changes = [(b"k", None), (b"x", b"2"), (b"y", b"2"), (b"x", b"3"), (b"y", b"3"), (b"z", b"1")]
    dropped = 0
    for sequence, (key, value) in enumerate(changes, 3):
        send_keyed(producer, sequence, key, value)
        world.wait_committed(sequence + 1, 0, leader)
        dropped += compact(leader, sequence * 10.0)
    assert dropped == 1, "the tombstone of k"
    world.start(away.number)
    world.wait_isr(leader.number, away.number)
    assert newest(away) == newest(leader) == {b"x": b"3", b"y": b"3", b"z": b"1"}


def test_batches_larger_than_an_answer_and_a_lane_that_is_always_full(tmp_path):
    with World(tmp_path, lane_capacity=256 << 10) as world:
        world.topic()
        filled(world, 100, body=60_000)
        world.check_equal()


def test_nothing_counts_while_fewer_than_min_insync_replicas_have_it(world):
    world.topic()
    producer = filled(world, 5)
    leader = world.leader()
    others = [each for each in world.brokers.values() if each is not leader]
    for other in others:
        other.pause()
        assert other.stands.wait(15), "it was in the middle of a turn"
    for sequence in range(5, 10):
        producer.send(sequence)
    assert not any(ack.error for ack in producer.settle())
    assert leader.page().log_end == 10
    assert leader.page().high_watermark == 5
    others[0].go_on()
    world.wait_isr(leader.number, others[0].number)  # the other one lags
    world.wait_committed(10, 0, leader, others[0])
    others[1].go_on()
    world.wait_isr(*world.brokers)
    world.wait_committed(10)
    world.check_equal()


def test_a_new_leader_has_what_counted_and_the_old_one_forgets_what_did_not(world):
    world.topic()
    producer = filled(world, 5)
    old = world.leader()
    others = [each for each in world.brokers.values() if each is not old]
    for other in others:
        other.pause()
        assert other.stands.wait(15), "it was in the middle of a turn"
    producer.send(5)  # which answers the fetches that are under way
    producer.settle()
    old.look()
    for sequence in range(6, 9):  # on the leader alone
        producer.send(sequence)
    producer.settle()
    world.kill(old.number)
    for other in others:
        other.go_on()
    new = world.leader(but=old.number)
    again = Producer(new)
    for sequence in range(5, 12):  # a producer sends what was never committed again
        again.send(sequence, body=256)
    assert not any(ack.error for ack in again.settle())
    world.wait_committed(12, 0, *others)
    world.start(old.number)
    world.wait_isr(*world.brokers)
    world.wait_committed(12)
    world.check_equal()
    assert [epoch for _, epoch, _ in old.batches()][-1] == world.partition().leader_epoch
    eventually(lambda: old.counts.get("truncations"), "it was cut")


def test_a_leader_dies_in_the_middle_of_a_stream_again_and_again(world):
    world.topic()
    sequence = 0
    for _ in range(4):
        leader = world.leader()
        eventually(lambda: len(world.partition().isr) == 3, "all are in sync")
        producer = Producer(leader)
        for _ in range(60):
            producer.send(sequence)
            sequence += 1
        world.kill(leader.number)
        new = world.leader(but=leader.number)
        world.start(leader.number)
        world.wait_isr(*world.brokers)
        end = new.page().log_end
        world.wait_committed(end)
        world.check_equal()
        sequence = end  # what is in the log has its sequence; the rest is sent again


def test_a_writer_that_dies_gets_its_role_back_from_the_replicator(world):
    world.topic()
    filled(world, 20)
    for broker in world.brokers.values():
        broker.restart_writer()
        filled(world, 20, first=world.leader().page().log_end)
    world.check_equal()


def test_a_follower_that_hung_leaves_the_isr_and_comes_back(world):
    world.topic()
    filled(world, 5)
    leader = world.leader()
    late = next(each for each in world.brokers.values() if each is not leader)
    late.pause()
    producer = Producer(leader, 9)
    for sequence in range(200):
        producer.send(sequence)
    producer.settle()
    world.wait_isr(*(n for n in world.brokers if n != late.number))
    world.wait_committed(205, 0, leader)
    late.go_on()
    world.wait_isr(*world.brokers)
    world.wait_committed(205)
    world.check_equal()
    eventually(lambda: leader.counts.get("isr_shrinks") and leader.counts.get("isr_grows"), "both")


@pytest.mark.setting("node.replica_lag_time")
def test_a_follower_is_in_the_isr_until_it_has_lagged_for_replica_lag_time(tmp_path):
    with World(tmp_path, lag_time=8.0) as world:
        world.topic()
        filled(world, 5)
        leader = world.leader()
        late = next(each for each in world.brokers.values() if each is not leader)
        late.pause()
        begun = time.monotonic()
        producer = Producer(leader, 9)
        producer.send(0)
        world.wait_isr(*(n for n in world.brokers if n != late.number))
        assert time.monotonic() - begun > 7.0
        late.go_on()
        world.wait_isr(*world.brokers)
        producer.settle()


def test_a_follower_begins_anew_where_the_leaders_log_starts(world):
    world.topic(segment_bytes=20_000)
    filled(world, 5)
    leader = world.leader()
    late = next(each for each in world.brokers.values() if each is not leader)
    world.kill(late.number)
    filled_on = Producer(leader)
    for sequence in range(5, 300):
        filled_on.send(sequence)
    filled_on.settle()
    world.wait_isr(*(n for n in world.brokers if n != late.number))
    world.wait_committed(300, 0, leader)
    leader.trim(200)
    eventually(lambda: leader.page().log_start >= 150, "it is trimmed")
    world.start(late.number)
    world.wait_isr(*world.brokers)
    starts = lambda: {each.page().log_start for each in world.brokers.values()}  # noqa: E731
    eventually(lambda: len(starts()) == 1, "all start there")
    world.check_equal()


def test_records_that_count_only_where_they_are_fsynced(world):
    world.topic(durability="fsync")
    filled(world, 30)
    for broker in world.brokers.values():
        assert broker.page().durable >= broker.page().high_watermark == 30
    world.check_equal()


def test_hw_outlive_processes(world):
    world.topic()
    filled(world, 50)
    for number in world.brokers:
        world.kill(number)
    for number in world.brokers:
        world.start(number)
    assert all(each.page().high_watermark >= 50 for each in world.brokers.values())
    world.wait_isr(*world.brokers)
    filled(world, 10, first=50)
    world.check_equal()


def leads_once_elected(world: World, number: int) -> bool:
    world.elect(0, number)  # in vain while it lags
    return world.leader().number == number


def test_a_preferred_leader_takes_over_without_loss(world):
    world.topic()
    filled(world, 20)
    for number in (2, 3, 1):
        eventually(partial(leads_once_elected, world, number), f"broker {number} leads")
        world.wait_isr(*world.brokers)
        filled(world, 10, first=world.leader().page().log_end)
    world.check_equal()


@pytest.mark.parametrize("trimmed_to", [75, 100])
def test_who_was_trimmed_beyond_where_an_unclean_leader_parted_from_it_begins_anew(
    tmp_path, trimmed_to
):
    """What the leader wrote below that counts, too: without it nobody may be in sync."""
    with World(tmp_path, brokers=2) as world:
        world.topic(factor=2, min_insync=1)
        filled(world, 50)
        old = world.leader()
        new = next(each for each in world.brokers.values() if each is not old)
        world.kill(new.number)
        world.wait_isr(old.number)
        producer = Producer(old)
        for sequence in range(50, 100):
            producer.send(sequence)
        producer.settle()
        world.wait_committed(100)
        old.trim(trimmed_to)
        eventually(lambda: old.page().log_start == trimmed_to, "it is trimmed")
        world.kill(old.number)
        eventually(lambda: world.partition().leader is None, "nobody leads")
        world.start(new.number)
        with world.lock:
            world._decide(world.controller.elect([(TOPIC, 0)], is_unclean=True))
        again = Producer(world.leader(), producer=9)
        for sequence in range(0, 70, 7):
            again.send(sequence, records=7)
        assert not any(ack.error for ack in again.settle())
        world.wait_committed(120)
        world.start(old.number)
        world.wait_isr(old.number, new.number)
        world.check_equal()
        assert (old.page().log_start, old.page().log_end) == (0, 120)
