"""Rule 20: transactions of several producers, decided by one commit."""

from __future__ import annotations

import pytest
from transaction_world import T, World

from penstock.cluster.transactions import TransactionLimits
from penstock.core.errors import ConfigError, StageDecidedError, TransactionError


@pytest.fixture
def world() -> World:
    return World()


def stage(world: World, epoch: int, name: str) -> tuple[int, int]:
    who = world.begin_stage(epoch, name)
    world.add(who, (T, 0), (T, 1), name="s")
    return who


def test_rule_20_the_listed_are_committed_and_every_other_one_up_to_the_epoch_aborted(world):
    before, one, two = stage(world, 3, "0"), stage(world, 4, "1"), stage(world, 4, "2")
    spare, after = stage(world, 4, "3"), stage(world, 5, "4")
    decision = world.machine.commit_stages(world.now, "s", 4, ["1", "2"], True)
    assert decision.durable
    assert world.run(decision) == (True, 4)
    assert world.mark_all() == {before: False, one: True, two: True, spare: False}
    assert world.machine.is_open(*after)
    assert not world.machine.is_open(*one)


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


def test_rule_20_a_stage_of_a_decided_epoch_is_refused(world):
    world.commit_stages(4)
    for epoch in (3, 4):
        with pytest.raises(StageDecidedError, match="up to 4 are decided"):
            world.begin_stage(epoch, "late")
    stage(world, 5, "next")


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


def test_rule_20_a_stage_that_nobody_decides_is_swept(world):
    one = stage(world, 4, "1")
    assert world.machine.deadline() == world.now + 900
    world.tick(world.now + 900)
    with pytest.raises(TransactionError, match="not open"):
        world.add(one, (T, 5), name="s")
    assert world.mark_all() == {one: False}
    with pytest.raises(TransactionError, match="not known here"):
        world.add(one, (T, 5), name="s")


def test_rule_20_the_last_decided_epoch_never_expires(world):
    world.commit_stages(4)
    world.init()
    world.tick(world.now + 1000 * 86_400)
    assert [row.transactional_id for row in world.machine.list()] == ["s"]
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
