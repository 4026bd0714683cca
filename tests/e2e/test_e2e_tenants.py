"""What one tenant may do to the groups of another, by messages of its own over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from keyed_fixture import World
from node_helpers import eventually
from wire import Dealer

from penstock.client.admin.access import LimitSetting
from penstock.cluster.frames import messages as fr
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh
from penstock.testing import produce

FAR = 1_000_000_000
"""An offset that no log of these tests reaches."""
GROUP = "ours"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`ann` and `bob` share the group, and read a topic each."""
    with World(tmp_path_factory.mktemp("tenants")) as world:
        world.broker.create_topic("ann.orders")
        world.broker.create_topic("bob.orders")
        for name in ("ann", "bob"):
            world.allow(
                f"{name} allow all topic {name}.*", f"{name} allow read group {GROUP}*",
                f"{name} allow write transactional_id {name}*",
            )  # fmt: skip
            world.key(name)
        yield world


@pytest.fixture
def ann(world: World) -> Iterator[Dealer]:
    with world.dealer(world.folder / "ann.key") as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        yield dealer


@pytest.fixture
def bob(world: World) -> Iterator[Dealer]:
    with world.dealer(world.folder / "bob.key") as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        yield dealer


def join(dealer: Dealer, group: str, topic: str, **more: Any) -> co.GroupAssignment:
    asked = co.JoinGroup(group, "", [topic], None, more.pop("guarantee", "at-least-once"), **more)
    told = dealer.ask(1, asked)
    assert isinstance(told, co.GroupAssignment), told
    return told


def sync(dealer: Dealer, group: str, member_id: str) -> co.GroupAssignment:
    told = dealer.ask(1, co.SyncGroup(group, member_id, []))
    assert isinstance(told, co.GroupAssignment), told
    return told


def at(owned: co.Owned, offset: int) -> co.OffsetCommit:
    return co.OffsetCommit(owned.topic_id, owned.partition, owned.grant, offset)


def committed(world: World, group: str) -> dict[str, int]:
    """By topic, as the node's own user is told."""
    with world.broker.connect() as client, client.admin() as admin:
        told = admin._ask(co.DescribeGroup(group), co.GroupDescription)
        return {each.topic: each.offset for each in told.partitions}


def refused(told: msgspec.Struct) -> str:
    assert isinstance(told, ms.Refused), told
    return told.error


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_the_member_of_another_principal_obeys_nobody_else(
    world: World, ann: Dealer, bob: Dealer, guarantee: str
) -> None:
    """`read` of a group lets a principal be a member, not speak for the members of others."""
    group = f"{GROUP}-{guarantee}"
    mine = join(ann, group, "ann.orders", guarantee=guarantee)
    [owned] = mine.partitions
    claim = co.Claim(owned.topic_id, owned.partition, owned.grant, 0, 1)
    offsets = co.GroupOffsets(group, mine.member_id, [at(owned, 0)])
    bobs = bob.ask(1, co.InitTransactions(f"bob-{guarantee}", 60.0))
    end = co.EndTransaction(
        f"bob-{guarantee}", bobs.producer_id, bobs.producer_epoch, True, [offsets]
    )
    unknown = [
        refused(bob.ask(1, request))
        for request in (
            co.CommitOffsets(group, mine.member_id, [at(owned, 0)]),
            co.ClaimOffsets(group, mine.member_id, 1, [claim], 5),
            co.SyncGroup(group, mine.member_id, [co.Release(owned.topic_id, 0, owned.grant)]),
            co.JoinGroup(group, mine.member_id, ["bob.orders"], None, guarantee),
        )
    ]
    assert set(unknown) == {"UnknownMemberError"}
    assert refused(bob.ask(1, end)) in ("StaleGenerationError", "TransactionError")
    assert isinstance(bob.ask(1, co.LeaveGroup(group, mine.member_id)), ms.Done)
    [still] = sync(ann, group, mine.member_id).partitions
    assert still == owned
    assert isinstance(ann.ask(1, co.CommitOffsets(group, mine.member_id, [])), co.Committed), (
        "who it belongs to is obeyed"
    )


def test_the_instance_of_another_principal_is_not_taken_over(ann: Dealer, bob: Dealer) -> None:
    mine = join(ann, f"{GROUP}-static", "ann.orders", instance_id="one")
    theft = co.JoinGroup(
        f"{GROUP}-static", "", ["bob.orders"], None, "at-least-once", instance_id="one"
    )
    assert refused(bob.ask(1, theft)) == "GroupError"
    assert sync(ann, f"{GROUP}-static", mine.member_id).partitions == mine.partitions
    again = join(ann, f"{GROUP}-static", "ann.orders", instance_id="one")
    assert again.member_id == mine.member_id


def test_who_may_not_read_a_topic_any_more_moves_no_offset_of_it(world: World, bob: Dealer) -> None:
    """It owns the partition still. Of one that it never owned it hears what a stranger does."""
    world.broker.create_topic("lent")
    others = world_topic(world, "ann.orders").topic_id, b"?" * 16
    for guarantee in ("at-least-once", "at-most-once"):
        group = f"{GROUP}-lent-{guarantee}"
        world.allow("bob allow read topic lent")
        mine = join(bob, group, "lent", guarantee=guarantee)
        [owned] = mine.partitions
        world.forbid("bob allow read topic lent")
        told = [bob.ask(1, co.CommitOffsets(group, mine.member_id, [at(owned, 0)]))]
        not_own = [msgspec.structs.replace(owned, topic_id=other) for other in others]
        for each in not_own:
            ask = co.CommitOffsets(group, mine.member_id, [at(each, 0)])
            assert bob.ask(1, ask) == co.Committed([0])
        if guarantee == "at-most-once":
            claims = [co.Claim(o.topic_id, 0, o.grant, 0, 1) for o in (owned, *not_own)]
            told.append(bob.ask(1, co.ClaimOffsets(group, mine.member_id, 1, claims[:1])))
            answer = bob.ask(1, co.ClaimOffsets(group, mine.member_id, 1, claims[1:]))
            assert answer == co.Claimed([False, False], [co.NO_OFFSET] * 2)
        else:
            ready = bob.ask(1, co.InitTransactions("bob-lent", 60.0))
            offsets = [co.GroupOffsets(group, mine.member_id, [at(owned, 0)])]
            ids = ready.producer_id, ready.producer_epoch
            told.append(bob.ask(1, co.EndTransaction("bob-lent", *ids, True, offsets)))
        assert {refused(each) for each in told} <= {"AccessDeniedError", "UnknownTopicError"}
        assert committed(world, group) == {"lent": co.NO_OFFSET}
    assert "bob may not read topic 'lent'" in world.log


def worker(dealer: Dealer, group: str, topic: ms.TopicInfo) -> sh.DoneJobs:
    """A worker of that topic, and its first job as it may be done."""
    member = join(dealer, group, topic.name, guarantee="shared").member_id
    ends = [sh.PartitionEnds(topic.topic_id, 0, 0, 1)]
    told = dealer.ask(1, sh.AcquireRecords(group, member, 1, ends))
    assert isinstance(told, sh.RecordsAcquired), told
    [leased] = told.leases
    lease = sh.DoneLease(leased.topic_id, leased.partition, leased.lease, leased.runs)
    return sh.DoneJobs(group, member, [lease])


def done_by(dealer: Dealer, name: str, *done: sh.DoneJobs) -> msgspec.Struct:
    """The answer to a transaction that has done these."""
    ready = dealer.ask(1, co.InitTransactions(name, 60.0))
    assert isinstance(ready, co.TransactionReady), ready
    ids = ready.producer_id, ready.producer_epoch
    told: msgspec.Struct = dealer.ask(1, co.EndTransaction(name, *ids, True, done=list(done)))
    return told


def test_the_jobs_of_another_principal_are_not_done_by_a_transaction(
    world: World, ann: Dealer, bob: Dealer
) -> None:
    """Nor is anything told of their topic. Who may not read its own topic any more hears that."""
    group = f"{GROUP}-jobs"
    for name in ("ann.jobs", "bob.jobs"):
        world.broker.create_topic(name)
        produce(world.broker, name, [b"job"])
    anns = worker(ann, group, world_topic(world, "ann.jobs"))
    bobs = worker(bob, group, world_topic(world, "bob.jobs"))
    own = msgspec.structs.replace(bobs, leases=anns.leases)
    for stolen in (anns, own):
        told = done_by(bob, "bob-jobs", stolen)
        assert isinstance(told, ms.Refused), told
        assert told.error == "StaleGenerationError"
        assert "ann.jobs" not in told.message
    both = msgspec.structs.replace(bobs, leases=[*bobs.leases, *anns.leases])
    assert refused(done_by(bob, "bob-jobs", both)) == "StaleGenerationError"
    world.forbid("bob allow all topic bob.*")
    assert refused(done_by(bob, "bob-jobs", bobs)) == "AccessDeniedError"
    world.allow("bob allow all topic bob.*")
    for dealer, name, jobs in ((bob, "bob-jobs", bobs), (ann, "ann-jobs", anns)):
        ended = done_by(dealer, name, jobs)
        assert isinstance(ended, co.TransactionEnded), ended
        assert ended.committed
    with world.broker.connect() as client:
        for name in ("ann.jobs", "bob.jobs"):
            client.admin().delete_topic(name)


def test_an_offset_beyond_the_end_of_the_log_is_refused(world: World, bob: Dealer) -> None:
    told = []
    for guarantee in ("at-least-once", "at-most-once"):
        group = f"{GROUP}-far-{guarantee}"
        mine = join(bob, group, "bob.orders", guarantee=guarantee)
        [owned] = mine.partitions
        told.append(bob.ask(1, co.CommitOffsets(group, mine.member_id, [at(owned, FAR)])))
        if guarantee == "at-most-once":
            claim = co.Claim(owned.topic_id, owned.partition, owned.grant, 0, FAR)
            told.append(bob.ask(1, co.ClaimOffsets(group, mine.member_id, 1, [claim])))
        else:
            ready = bob.ask(1, co.InitTransactions("bob-far", 60.0))
            offsets = [co.GroupOffsets(group, mine.member_id, [at(owned, FAR)])]
            ids = ready.producer_id, ready.producer_epoch
            told.append(bob.ask(1, co.EndTransaction("bob-far", *ids, True, offsets)))
        assert committed(world, group) == {"bob.orders": co.NO_OFFSET}
    there = [co.OffsetSeek(owned.topic_id, owned.partition, FAR)]
    told.append(bob.ask(1, co.SeekGroup(f"{GROUP}-report", there, is_report=True)))
    assert {refused(each) for each in told} == {"OffsetOutOfRangeError"}
    assert "its log ends at 0" in told[0].message


def test_moving_a_group_tells_nothing_of_a_topic(world: World, bob: Dealer) -> None:
    info = {name: world_topic(world, name) for name in ("ann.orders", "bob.orders")}
    world.allow("bob allow all group bobs")
    for topic_id, partition in ((info["ann.orders"].topic_id, 0), (b"?" * 16, 0)):
        for request in (
            co.SeekGroup("bobs", [co.OffsetSeek(topic_id, partition, 0)]),
            co.DeleteGroup("bobs", [(topic_id, partition)]),
        ):
            told = bob.ask(1, request)
            assert refused(told) == "UnknownTopicError"
            assert "ann" not in told.message
    own = co.SeekGroup("bobs", [co.OffsetSeek(info["bob.orders"].topic_id, 0, 0)])
    assert isinstance(bob.ask(1, own), ms.Done)


def test_patterns_that_take_long_to_compile_are_refused_by_their_form(
    world: World, bob: Dealer
) -> None:
    told = set()
    for first in range(16):
        classes = "".join(f"[{chr(200 + first + each)}-\U0010ffff]" for each in range(30))
        for pattern in (f"bob\\.(?i:{classes})", r"bob\.(.*)(.*)(.*)\1x"):
            ask = co.JoinGroup(f"{GROUP}-slow", "", [], pattern, "at-least-once")
            told.add(refused(bob.ask(1, ask)))
    assert told == {"ConfigError"}
    ask = co.JoinGroup(f"{GROUP}-quick", "", [], r"bob\.[a-z]+", "at-least-once")
    assert [each.topic for each in bob.ask(1, ask).partitions] == ["bob.orders"]


def test_a_fetch_by_id_tells_nothing_of_anothers_topic(world: World, bob: Dealer) -> None:
    info = world_topic(world, "ann.orders")
    told, ids = [], (info.topic_id, b"?" * 16)
    for number, topic_id in enumerate(ids):
        bob.say(fr.Fetch(1, number, info.pages[0], topic_id, 0, 0, -1, False, 1 << 20))
        told.append(bob.hear(fr.CursorFailed))
    assert [each.error for each in told] == ["UnknownTopicError"] * 2
    hers, nobodys = (
        each.message.replace(i.hex(), "")
        for each, i in zip(told, (info.topic_id, b"?" * 16), strict=True)
    )
    assert hers == nobodys
    eventually(lambda: "bob may not read topic 'ann.orders'" in world.log)


def test_room_on_the_disk_is_for_those_who_may_describe_the_cluster(
    world: World, bob: Dealer
) -> None:
    ask = lk.LookUpPages([])
    level, *room = bob.ask(1, ask).disk
    assert (level, room) == (lo.DISK_OK, [0] * 4)
    world.allow("bob allow describe cluster *")

    def is_told() -> bool:
        return all(bob.ask(1, ask).disk[1:3])

    eventually(is_told)
    world.forbid("bob allow describe cluster *")


def test_a_namespace_has_a_limit_of_groups_and_transactional_ids(world: World) -> None:
    limit = LimitSetting("dan", groups_max=2, transactional_ids_max=2)
    with world.broker.connect() as client, client.admin() as admin:
        admin.set_limits(limit)
        assert admin.list_limits() == [limit]
        with world.dealer(world.key("dan", namespace="dan")) as dan:
            dan.attach(1, lo.KIND_CONSUMER)
            dan.ask(1, ms.CreateTopic("dan.t", ms.TopicSettings()))
            join(dan, "dan.a", "dan.t")
            assert isinstance(dan.ask(1, co.SeekGroup("dan.b", [])), ms.Done)
            groups: tuple[msgspec.Struct, ...] = (
                co.SeekGroup("dan.c", []),
                co.JoinGroup("dan.c", "", ["dan.t"], None, "at-least-once"),
            )
            for ask in groups:
                told = dan.ask(1, ask)
                assert refused(told) == "ResourceLimitError"
                assert "groups_max=2" in told.message
            join(dan, "dan.b", "dan.t")
            assert isinstance(dan.ask(1, co.InitTransactions("dan.a", 60.0)), co.TransactionReady)
            assert isinstance(dan.ask(1, co.BeginStage("dan.b", 1)), co.TransactionReady)
            ids: tuple[msgspec.Struct, ...] = (
                co.InitTransactions("dan.c", 60.0),
                co.BeginStage("dan.c", 1),
            )
            for ask in ids:
                told = dan.ask(1, ask)
                assert refused(told) == "ResourceLimitError"
                assert "transactional_ids_max=2" in told.message
            assert isinstance(dan.ask(1, co.InitTransactions("dan.a", 60.0)), co.TransactionReady)


def test_a_namespace_without_a_limit_has_a_quarter_of_the_groups(world: World) -> None:
    told = []
    with world.dealer(world.key("eve", namespace="eve")) as eve:
        eve.attach(1, lo.KIND_CONSUMER)
        for number in range(251):
            told.append(eve.ask(1, co.SeekGroup(f"eve.{number}", [])))
    assert {type(each) for each in told[:250]} == {ms.Done}
    assert refused(told[250]) == "ResourceLimitError"
    assert "groups_max=250" in told[250].message


def world_topic(world: World, name: str) -> ms.TopicInfo:
    with world.broker.connect() as client, client.admin() as admin:
        return admin._find(name)
