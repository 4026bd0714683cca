"""Rule 20: transactions of several producers, decided by one commit."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from transaction_fixture import T, World

from penstock.cluster.transactions import TransactionLimits
from penstock.core.errors import (
    ConfigError,
    ResourceLimitError,
    StageDecidedError,
    TransactionError,
)


@pytest.fixture
def world() -> World:
    return World()


def stage(world: World, epoch: int, name: str) -> tuple[int, int]:
    who = world.begin_stage(epoch, name)
    world.add(who, (T, 0), (T, 1), name="s")
    return who


@pytest.mark.rule(20)
def test_rule_20_the_listed_are_committed_and_every_other_one_up_to_the_epoch_aborted(world):
    before, one, two = stage(world, 3, "0"), stage(world, 4, "1"), stage(world, 4, "2")
    spare, after = stage(world, 4, "3"), stage(world, 5, "4")
    decision = world.machine.commit_stages(world.now, "s", 4, ["1", "2"], True)
    assert decision.durable
    assert world.run(decision) == (True, 4)
    assert world.mark_all() == {before: False, one: True, two: True, spare: False}
    assert world.machine.is_open(*after)
    assert not world.machine.is_open(*one)


@pytest.mark.rule(20)
def test_rule_20_a_repeated_or_older_epoch_changes_nothing(world):
    one = stage(world, 4, "1")
    world.commit_stages(4, "1")
    world.commit_stages(6, commit=False)
    later = stage(world, 7, "2")
    state = world.machine.state()
    assert world.commit_stages(4, "1") == (True, 6)
    assert world.commit_stages(4, commit=False) == (True, 6)
    assert world.commit_stages(4, "never heard of") == (True, 6)
    assert world.commit_stages(5) == (False, 6)
    assert world.commit_stages(6, "2") == (False, 6)
    assert world.machine.state() == state
    assert world.mark_all() == {one: True}
    assert world.machine.is_open(*later)


@pytest.mark.rule(20)
def test_rule_20_a_stage_of_a_decided_epoch_is_refused(world):
    world.commit_stages(4)
    for epoch in (3, 4):
        with pytest.raises(StageDecidedError, match="up to 4 are decided"):
            world.begin_stage(epoch, "late")
    stage(world, 5, "next")


@pytest.mark.rule(20)
def test_rule_20_an_abort_is_a_decision_too(world):
    one = stage(world, 4, "1")
    assert world.commit_stages(4, commit=False) == (False, 4)
    assert world.commit_stages(4, "1") == (False, 4)
    assert world.mark_all() == {one: False}


@pytest.mark.parametrize("missing", ["never begun", "swept", "given up", "of another epoch"])
def test_a_commit_that_lists_what_is_not_open_decides_nothing(world, missing):
    given_up = stage(world, 4, "given up")
    world.run(world.machine.end(world.now, "s", *given_up, False, ()))
    stage(world, 5, "of another epoch")
    stage(world, 4, "swept")
    world.tick(world.now + 900)
    there = stage(world, 4, "there")
    state = world.machine.state()
    with pytest.raises(TransactionError, match=f"1 of 2 stages .*'{missing}'.*Nothing was decided"):
        world.commit_stages(4, "there", missing)
    assert world.machine.state() == state
    assert world.commit_stages(4, "there") == (True, 4)
    assert world.mark_all()[there] is True


@pytest.mark.rule(20)
def test_rule_20_a_stage_that_nobody_decides_is_swept(world):
    one = stage(world, 4, "1")
    assert world.machine.deadline() == world.now + 900
    world.tick(world.now + 900)
    with pytest.raises(TransactionError, match="not open"):
        world.add(one, (T, 5), name="s")
    assert world.mark_all() == {one: False}
    with pytest.raises(TransactionError, match="not known here"):
        world.add(one, (T, 5), name="s")


@pytest.mark.rule(20)
def test_rule_20_the_last_decided_epoch_never_expires(world):
    world.commit_stages(4)
    world.init()
    world.tick(world.now + 1000 * 86_400)
    assert [row.transactional_id for row in world.listed()] == ["s"]
    assert world.commit_stages(4) == (True, 4)


def test_a_stage_alone_can_only_give_up(world):
    one, two = stage(world, 4, "1"), world.begin_stage(4, "2")
    with pytest.raises(TransactionError, match="commit_transaction"):
        world.end(one, name="s")
    assert world.end(one, commit=False, name="s").committed is False
    assert world.end(one, commit=False, name="s").committed is False
    assert world.mark_all() == {one: False}
    assert world.end(two, commit=False, name="s").committed is False  # wrote nowhere
    assert not world.machine.is_open(*two)


def test_what_was_committed_is_remembered_in_runs(world):
    world = World(TransactionLimits(ranges_max=2))
    for epoch in (1, 2, 3, 5, 8):
        world.commit_stages(epoch)
    assert [world.commit_stages(epoch).committed for epoch in (4, 5, 6, 8)] == [0, 1, 0, 1]
    with pytest.raises(TransactionError, match="only epochs from 4 on"):
        world.commit_stages(3)


def test_a_stages_name_is_taken_once_and_epochs_have_bounds(world):
    stage(world, 4, "1")
    with pytest.raises(TransactionError, match="another name"):
        world.begin_stage(5, "1")
    for epoch in (-1, 2**63):
        with pytest.raises(ConfigError, match="63 bits"):
            world.begin_stage(epoch, "2")


def test_where_a_stage_writes_is_on_the_device_before_it_writes():
    """Who commits it may run on another host: a power cut here must not leave it a stage that is
    open and has no partitions."""
    world = World()
    who = world.begin_stage(1, "one")
    assert world.machine.add_partitions(world.now, "s", *who, [(T, 0)]).durable


@pytest.mark.rule(20)
def test_rule_20_stages_ended_by_name_decide_nothing(world):
    one, two, kept = stage(world, 4, "1"), stage(world, 4, "2"), stage(world, 4, "3")
    world.end_stages("1", "2", "never begun")
    world.end_stages("1")
    with pytest.raises(TransactionError, match="'1'"):
        world.commit_stages(4, "1", "3")
    again = stage(world, 4, "1 again")
    assert world.commit_stages(4, "1 again", "3") == (True, 4)
    assert world.mark_all() == {one: False, two: False, kept: True, again: True}


@pytest.mark.rule(20)
def test_rule_20_what_is_committed_is_not_ended_by_name(world):
    """A driver that had no answer to its commit gives its stages up, and they were committed."""
    one = stage(world, 4, "1")
    world.commit_stages(4, "1")
    world.end_stages("1")
    assert world.mark_all() == {one: True}
    world.end_stages("1")
    assert world.commit_stages(4, "1") == (True, 4)


def test_the_first_stage_of_an_attempt_ends_what_earlier_ones_left(world):
    older, other = world.begin_stage(3, "0", attempt="a"), world.begin_stage(4, "1", attempt="a")
    bare, own = stage(world, 4, "2"), world.begin_stage(4, "3", attempt="b")
    for who in (older, other, own):
        refused = nullcontext() if who is own else pytest.raises(TransactionError)
        with refused:
            world.add(who, (T, 0), name="s")
    with pytest.raises(TransactionError, match="'1'"):
        world.commit_stages(4, "1")
    world.begin_stage(5, "4", attempt="a")  # in the wrong order: it ends nothing
    world.begin_stage(4, "5", attempt="b")
    world.begin_stage(4, "6", attempt="c")
    with pytest.raises(TransactionError, match="'3'"):
        world.commit_stages(4, "3")
    assert world.commit_stages(4, "2", "6") == (True, 4)
    assert world.mark_all() == {own: False, bare: True}


def test_an_attempt_finds_room_where_earlier_ones_left_as_many_stages_as_there_may_be():
    world = World(TransactionLimits(stages_max=3, tick_max=2))
    for number in range(3):
        world.begin_stage(4, f"a{number}", attempt="a")
    with pytest.raises(ResourceLimitError, match="stages_max=3"):
        world.begin_stage(4, "a3", attempt="a")
    for number in range(3):
        world.begin_stage(4, f"b{number}", attempt="b")
    assert world.commit_stages(4, "b0", "b1", "b2") == (True, 4)


def test_an_id_whose_last_epoch_is_decided_is_forgotten_after_a_while(world):
    one = stage(world, 0, "1")
    assert world.commit_stages(0, "1", is_last=True) == (True, 0)
    assert world.mark_all() == {one: True}
    world.tick(world.now + 899)
    assert world.commit_stages(0, "1") == (True, 0)
    with pytest.raises(StageDecidedError):
        world.begin_stage(0, "2")
    world.tick(world.now + 1)
    assert world.machine.state() == {}
    assert world.machine.deadline() is None


def test_an_epoch_after_the_last_one_makes_the_id_stay(world):
    world.commit_stages(0, is_last=True)
    world.commit_stages(1)
    world.tick(world.now + 1000 * 86_400)
    assert world.commit_stages(0) == (True, 1)
