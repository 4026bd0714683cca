"""The transaction machine: epochs, decisions, repetitions, timeouts, bounds."""

from __future__ import annotations

import pytest
from transaction_fixture import T, U, World

from penstock.cluster.decisions import Record
from penstock.cluster.transactions import EPOCH_LAST, ConsumedOffsets, TransactionLimits
from penstock.cluster.transactions import records as rec
from penstock.core.errors import (
    ConfigError,
    CorruptBatchError,
    ProducerFencedError,
    ResourceLimitError,
    StaleGenerationError,
    TransactionError,
    UnsupportedVersionError,
)


@pytest.fixture
def world() -> World:
    return World()


def test_each_transaction_has_an_epoch_of_its_own(world):
    who = world.init()
    world.add(who, (T, 0), (T, 1), (U, 0))
    assert world.machine.is_open(*who)
    ended = world.end(who)
    assert (ended.committed, ended.next_epoch) == (True, who[1] + 1)
    [marking] = world.machine.unmarked()
    assert marking == (who[0], who[1], True, frozenset([(T, 0), (T, 1), (U, 0)]))
    assert world.machine.is_open(*who)  # until its markers are there
    world.add((who[0], ended.next_epoch), (T, 0))
    assert world.mark_all() == {who: True}
    assert not world.machine.is_open(*who)
    assert world.machine.is_open(who[0], ended.next_epoch)


def test_what_nobody_knows_of_may_not_stand_open(world):
    assert not world.machine.is_open(4711, 0)
    who = world.init()
    assert not world.machine.is_open(*who), "nothing is registered yet"
    world.add(who, (T, 0))
    assert not world.machine.is_open(who[0], who[1] + 1)
    assert not world.machine.is_open(who[0] + 1, who[1])


def test_what_a_power_cut_made_the_coordinator_forget_is_not_committed(world):
    """A producer on another host lives on; what it wrote to the forgotten partition was swept."""
    who = world.init()
    world.add(who, (T, 0))
    kept = list(world.log)
    world.add(who, (T, 1))
    forgetful = world.replayed(kept)
    decision = forgetful.end(world.now, "a", *who, True, (), 2)
    assert not decision.answer.committed
    assert isinstance(decision.answer.error("a", True), TransactionError)
    assert "lost power" in str(decision.answer.error("a", True))
    assert world.run(world.machine.end(world.now, "a", *who, True, (), 2)).committed


def test_markers_come_off_as_partitions_have_them(world):
    who = world.init()
    world.add(who, (T, 0), (T, 1))
    world.end(who, commit=False)
    world.run(world.machine.marked(*who, [(T, 1)]))
    assert [m.places for m in world.machine.unmarked()] == [frozenset([(T, 0)])]
    assert world.machine.is_marking("a")
    assert world.machine.marked(*who, [(T, 1)]).records == ()
    world.run(world.machine.marked(*who, [(T, 0)]))
    assert list(world.machine.unmarked()) == []
    assert not world.machine.is_marking("a")


def test_a_marker_that_is_written_lets_others_follow_and_is_kept_until_it_is_marked(world):
    who = world.init()
    world.add(who, (T, 0))
    later = (who[0], world.end(who).next_epoch)
    world.add(later, (T, 0))
    world.end(later, commit=False)
    world.machine.wrote(*who, (T, 0))
    assert [m.epoch for m in world.machine.unmarked()] == [later[1]]
    world.machine.wrote(*later, (T, 0))
    assert list(world.machine.unmarked()) == []
    assert not world.machine.is_marking("a")
    assert [each.state for each in world.listed()] == ["ready"]
    assert world.machine.is_open(*who), "a power cut may bring it back: it is not a hung one"
    assert [m.epoch for m in world.replayed(world.log).unmarked()] == [who[1]]
    world.run(world.machine.marked(*who, [(T, 0)]))
    assert not world.machine.is_open(*who)
    assert list(world.machine.unmarked()) == []
    assert [m.epoch for m in world.replayed(world.log).unmarked()] == [later[1]]


def test_markers_of_a_partition_go_out_in_the_order_of_the_decisions(world):
    """An ABORT closes whatever is open there, so it must not come before an older COMMIT."""
    who = world.init()
    world.add(who, (T, 0), (T, 1))
    later = (who[0], world.end(who).next_epoch)
    world.add(later, (T, 1), (T, 2))
    world.end(later, commit=False)
    assert [(m.epoch, m.places) for m in world.machine.unmarked()] == [
        (who[1], frozenset([(T, 0), (T, 1)])),
        (later[1], frozenset([(T, 2)])),
    ]
    world.run(world.machine.marked(*later, [(T, 2)]))
    world.run(world.machine.marked(*who, [(T, 1)]))
    assert [(m.epoch, m.places) for m in world.machine.unmarked()] == [
        (who[1], frozenset([(T, 0)])),
        (later[1], frozenset([(T, 1)])),
    ]
    assert world.mark_all() == {who: True, later: False}
    assert list(world.machine.unmarked()) == []


@pytest.mark.rule(19)
def test_rule_19_a_late_end_never_touches_a_later_transaction(world):
    who = world.init()
    world.add(who, (T, 0))
    later = (who[0], world.end(who).next_epoch)
    world.add(later, (T, 1))
    for commit in (True, False):
        repeated = world.machine.end(world.now, "a", *who, commit)
        assert repeated.records == ()
        assert repeated.answer.committed
        assert repeated.durable  # what it repeats may still be on its way to the device
    assert world.end(later, commit=False).committed is False
    with pytest.raises(ProducerFencedError, match="fenced"):
        world.end(who)
    assert world.mark_all() == {who: True, later: False}


def test_an_end_without_partitions_uses_its_epoch_up(world):
    who = world.init()
    later = (who[0], world.end(who, commit=False).next_epoch)
    assert list(world.machine.unmarked()) == []
    world.add(later, (T, 0))
    assert world.end(who, commit=False).committed is False  # late
    assert world.end(later).committed


def test_who_takes_an_id_over_fences_the_holder_before(world):
    old = world.init()
    world.add(old, (T, 0))
    new = world.init()
    assert new[0] == old[0]
    assert new[1] > old[1] + 1  # also beyond what an end of the old one could be answered
    [marking] = world.machine.unmarked()
    assert marking == (*old, False, frozenset([(T, 0)]))
    with pytest.raises(TransactionError):
        world.add(old, (T, 1))
    ended = world.end(old)
    assert isinstance(ended.error("a", commit=True), ProducerFencedError)
    with pytest.raises(ProducerFencedError):
        world.add((old[0], ended.next_epoch), (T, 1))
    world.add(new, (T, 0))
    assert world.end(new).error("a", commit=True) is None


def test_a_holder_that_lost_its_answer_learns_what_was_decided_before_it_was_fenced(world):
    old = world.init()
    world.add(old, (T, 0))
    world.end(old)
    world.init()
    ended = world.end(old)
    assert ended.committed
    with pytest.raises(ProducerFencedError):
        world.add((old[0], ended.next_epoch), (T, 0))


@pytest.mark.rule(15)
def test_rule_15_epochs_and_decisions_are_on_the_device_before_they_are_answered(world):
    who = world.init()
    world.add(who, (T, 0))
    stage = world.begin_stage(1, "one")
    world.add(stage, (T, 0), name="s")
    machine, now = world.machine, world.now
    for decision in (
        machine.init(now, "b", 60.0, 7),
        machine.init(now, "a", 60.0, 7),
        machine.end(now, "a", *who, True),
        machine.end(now, "s", *stage, False),
        machine.abandon(now, who[0]),
        machine.commit_stages(now, "s", 1, ["one"], True),
        machine.tick(now + 60.0),
    ):
        assert decision.records
        assert decision.durable
    assert not machine.add_partitions(now, "a", *who, [(T, 1)]).durable


def test_offsets_are_in_the_decision_that_commits(world):
    who = world.init()
    world.add(who, (T, 0))
    decision = world.machine.end(world.now, "a", *who, True, [ConsumedOffsets("g", "m", [7, 8])])
    assert len(decision.records) == 3
    assert decision.durable
    aborted = world.machine.end(world.now, "a", *who, False, [ConsumedOffsets("g", "m", [7])])
    assert len(aborted.records) == 1


def test_one_stale_grant_turns_a_commit_into_an_abort(world):
    who = world.init()
    world.add(who, (T, 0))
    world.offsets.stale.add("old")
    consumed = [ConsumedOffsets("g", "m", [7]), ConsumedOffsets("g", "old", [8])]
    decision = world.machine.end(world.now, "a", *who, True, consumed)
    assert len(decision.records) == 1  # no offset of the good one either
    ended = world.run(decision)
    error = ended.error("a", commit=True)
    assert isinstance(error, StaleGenerationError)
    assert "old of g owns this no more" in str(error)
    world.offsets.stale.clear()
    repeated = world.end(who, offsets=consumed)
    assert isinstance(repeated.error("a", commit=True), StaleGenerationError)
    assert world.mark_all() == {who: False}
    assert world.end((who[0], ended.next_epoch)).committed


def test_what_is_open_for_too_long_is_aborted(world):
    who = world.init(timeout=5.0)
    world.add(who, (T, 0))
    assert world.machine.deadline() == world.now + 5.0
    world.tick(world.now + 5.0)
    ended = world.end(who)
    assert not ended.committed
    assert "open for too long" in str(ended.error("a", commit=True))
    with pytest.raises(TransactionError, match="aborted \\(timeout\\)"):
        world.add(who, (T, 1))
    world.add((who[0], ended.next_epoch), (T, 0))  # the same holder goes on


def test_what_a_dead_producer_has_open_is_aborted_and_nothing_else(world):
    who, other = world.init(), world.init("b")
    world.add(who, (T, 0))
    world.add(other, (T, 0), name="b")
    stage = world.begin_stage(1, "one")
    world.add(stage, (T, 0), name="s")
    for producer_id in (who[0], stage[0], 4711):
        world.run(world.machine.abandon(world.now, producer_id))
    assert world.machine.abandon(world.now, who[0]).records == ()
    assert world.mark_all() == {who: False}
    assert world.end(other, name="b").committed
    assert world.commit_stages(1, "one").committed


def test_an_id_that_nobody_uses_is_forgotten(world):
    who = world.init()
    world.add(who, (T, 0))
    world.end(who)
    world.tick(world.now + 30 * 86_400)
    assert [row.transactional_id for row in world.listed()] == ["a"]  # a marker is missing
    world.mark_all()
    world.tick()
    assert world.listed() == []
    with pytest.raises(TransactionError, match="not known"):
        world.add(who, (T, 0))
    assert world.init()[0] != who[0]


def test_an_id_stays_longer_while_the_clock_is_in_doubt(world):
    """What times out does so by its own time: it was begun by the same clock."""
    world.init()
    world.machine.doubt = 1e9
    world.tick(world.now + 1e9)
    who = world.init()
    assert who[1] == 1, "it was known"
    world.add(who, (T, 0))
    world.tick(world.machine.deadline())
    assert [row.state for row in world.listed()] == ["aborting"]
    world.mark_all()
    assert world.machine.deadline() > world.now + 1e9
    world.tick(world.machine.deadline())
    assert world.listed() == []


def test_a_new_producer_id_is_taken_when_epochs_run_out(world):
    value = rec.Transactional(7, EPOCH_LAST, 60.0, world.now)
    world.machine.replay(rec.record_of((rec.TRANSACTION, "a"), value))
    assert world.machine.needs_producer_id("a")
    world.add((7, EPOCH_LAST), (T, 0))
    ended = world.end((7, EPOCH_LAST))
    assert ended.next_epoch == 2**32 - 1  # as its marker carries
    with pytest.raises(TransactionError, match="no epochs left"):
        world.add((7, ended.next_epoch), (T, 0))
    producer_id, epoch = world.init()
    assert (producer_id != 7, epoch) == (True, 0)
    assert not world.machine.needs_producer_id("a")
    assert world.end((7, EPOCH_LAST)).committed  # still known
    with pytest.raises(ProducerFencedError):
        world.add((7, ended.next_epoch), (T, 0))
    assert world.mark_all() == {(7, EPOCH_LAST): True}


def test_listing_goes_by_name(world):
    for name in ("c", "a", "b"):
        world.init(name)
    world.begin_stage(3, "one", name="bb")
    world.add((101, 0), (T, 0), (T, 1), name="c")
    rows = [(row.transactional_id, row.state, row.partitions) for row in world.listed("a")]
    assert rows == [("b", "ready", 0), ("bb", "staged", 0), ("c", "open", 2)]
    world.end((101, 0), commit=False, name="c")
    world.commit_stages(3, "one", name="bb")
    rows = [(row.transactional_id, row.state, row.epoch) for row in world.listed("b")]
    assert rows == [("bb", "ready", 3), ("c", "aborting", 1)]


@pytest.mark.parametrize("timeout", [0, -1.0, 901.0, float("nan"), float("inf")])
def test_a_timeout_has_bounds(world, timeout):
    with pytest.raises(ConfigError, match="timeout_max=900"):
        world.init(timeout=timeout)


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 101])
def test_an_id_has_bounds(world, name):
    with pytest.raises(ConfigError, match="name_bytes_max=200"):
        world.init(name)


def test_every_bound_names_itself():
    world = World(
        TransactionLimits(
            transactions_max=2, transaction_partitions_max=2, endings_max=1, stages_max=1
        )
    )
    who = world.init()
    with pytest.raises(ResourceLimitError, match="transaction_partitions_max=2"):
        world.add(who, (T, 0), (T, 1), (T, 2))
    world.add(who, (T, 0))
    later = (who[0], world.end(who).next_epoch)
    with pytest.raises(ResourceLimitError, match="endings_max=1"):
        world.add(later, (T, 0))
    world.mark_all()
    world.add(later, (T, 0))
    world.begin_stage(1, "one")
    with pytest.raises(ResourceLimitError, match="stages_max=1"):
        world.begin_stage(1, "two")
    with pytest.raises(ResourceLimitError, match="transactions_max=2"):
        world.init("c")
    with pytest.raises(ResourceLimitError, match="transactions_max=2"):
        world.begin_stage(1, "one", name="d")
    assert world.machine.counts["limited"] == 5
    with pytest.raises(ConfigError, match="stages_max=0"):
        TransactionLimits(stages_max=0)


def test_a_tick_of_large_transactions_fits_into_a_batch():
    """All of them are due at once where their host died."""
    world = World()
    for number in range(50):
        name = f"id{number}"
        world.add(world.init(name), *((T, at) for at in range(1000)), name=name)
    world.now += 60.0
    while open_ids(world):
        decision = world.machine.tick(world.now)
        assert decision.records
        assert sum(len(record.value or b"") for record in decision.records) < 16 << 10
        world.run(decision)


def open_ids(world):
    return [each for each in world.listed() if each.state == "open"]


def test_one_tick_does_a_bounded_part_of_what_is_due():
    world = World(TransactionLimits(tick_max=3))
    for number in range(8):
        world.add(world.init(str(number)), (T, 0), name=str(number))
    world.now += 60.0
    assert len(world.machine.tick(world.now).records) == 3
    world.tick()
    assert len(world.mark_all()) == 8
    assert world.machine.counts["aborts_timeout"] == 8 + 3  # the first tick was not replayed


def test_records_of_others_are_passed_over_and_broken_ones_are_named(world):
    world.init()
    before = world.machine.state()
    for key in (b"\x01", b"\x90", b"\x91\x01", rec.record_of(("offset", "g"), None).key):
        world.machine.replay(Record(key, b"anything"))
    assert world.machine.state() == before
    key = rec.record_of((rec.TRANSACTION, "a"), None).key
    with pytest.raises(CorruptBatchError, match="transaction"):
        world.machine.replay(Record(key, b"\x92\x01\x90"))
    value = rec.record_of((rec.TRANSACTION, "a"), rec.Transactional(1, 2, 3.0, 4.0)).value
    assert value is not None
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        world.machine.replay(Record(key, b"\x92\x02" + value[2:]))


def test_an_id_is_one_producers_or_that_of_stages(world):
    world.init("a")
    world.begin_stage(1, "one", name="s")
    with pytest.raises(TransactionError, match="take another"):
        world.begin_stage(1, "one", name="a")
    with pytest.raises(TransactionError, match="take another"):
        world.commit_stages(1, name="a")
    with pytest.raises(TransactionError, match="take another"):
        world.init("s")


def test_ids_are_counted_by_namespace(world):
    for name in ("acme.a", "acme.eu.b", "acme-x", "acme", "acme/y", "acmf.a"):
        world.init(name)
    ids = world.machine.ids()
    assert [ids.in_namespace(each) for each in ("acme", "acme.eu", "acmf", "other")] == [2, 1, 1, 0]
    assert ids.after("acme.a") == ["acme.eu.b", "acme/y", "acmf.a"]
    assert ids.after("acme.b")[0] == "acme.eu.b"
