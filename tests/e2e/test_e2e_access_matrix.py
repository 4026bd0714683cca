"""Every message of the wire protocol, by principals with different rights, for what is there and
for what is not. A message that is new needs a row here."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from keyed_fixture import World
from wire import Dealer, batch_of

from penstock.cluster.frames import messages as fr
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh

NOBODY, READER, WRITER, OTHER = "nobody", "reader", "writer", "other"
PRINCIPALS = (NOBODY, READER, WRITER, OTHER)
"""With no entry; with `read` of all `m.*`; with `write` of it; with a namespace of its own."""
STRANGERS = (NOBODY, OTHER)
DENIALS = ("AccessDeniedError", "UnknownTopicError")
ADMIN, CONSUMER, PRODUCER = 1, 2, 3
MEMBER = "member-of-ours"
"""Who uses the group, as the group's description may tell."""


class Thing(NamedTuple):
    """What messages name: a topic, and a group and a transactional id of the same name."""

    name: str
    topic_id: bytes
    page: int

    @property
    def log(self) -> lk.LogPlace:
        return lk.LogPlace(self.page, self.topic_id, 0, 0)


class Row(NamedTuple):
    """`may`: who is not denied this, where the thing is there."""

    make: Callable[[Thing], msgspec.Struct]
    may: tuple[str, ...] = ()


KNOW = (READER, WRITER)
"""Who may do anything to a topic may know of it."""
EVERYBODY = PRINCIPALS
ROWS: dict[type, Row] = {
    ms.FindTopic: Row(lambda it: ms.FindTopic(it.name), KNOW),
    ms.CreateTopic: Row(lambda it: ms.CreateTopic(it.name, ms.TopicSettings())),
    ms.AlterTopic: Row(lambda it: ms.AlterTopic(it.name, ms.TopicSettings())),
    ms.DeleteTopic: Row(lambda it: ms.DeleteTopic(it.name)),
    ms.TrimPartition: Row(lambda it: ms.TrimPartition(it.name, 0, 0, it.topic_id)),
    ms.DescribeNode: Row(lambda _: ms.DescribeNode()),
    ms.ListTopics: Row(lambda _: ms.ListTopics(), EVERYBODY),
    co.JoinGroup: Row(
        lambda it: co.JoinGroup(it.name, "", [it.name], None, "at-least-once"), (READER,)
    ),
    co.SyncGroup: Row(lambda it: co.SyncGroup(it.name, MEMBER, []), (READER,)),
    co.LeaveGroup: Row(lambda it: co.LeaveGroup(it.name, MEMBER), (READER,)),
    co.CommitOffsets: Row(
        lambda it: co.CommitOffsets(it.name, MEMBER, [co.OffsetCommit(it.topic_id, 0, 1, 0)]),
        (READER,),
    ),
    co.ClaimOffsets: Row(
        lambda it: co.ClaimOffsets(it.name, MEMBER, 1, [co.Claim(it.topic_id, 0, 1, 0, 1)]),
        (READER,),
    ),
    co.SeekGroup: Row(lambda it: co.SeekGroup(it.name, [co.OffsetSeek(it.topic_id, 0, 0)])),
    co.DescribeGroup: Row(lambda it: co.DescribeGroup(it.name), (READER,)),
    co.DeleteGroup: Row(lambda it: co.DeleteGroup(it.name, [(it.topic_id, 0)])),
    co.ListGroups: Row(lambda _: co.ListGroups(), EVERYBODY),
    co.InitTransactions: Row(lambda it: co.InitTransactions(it.name, 10.0), (WRITER,)),
    co.AddPartitions: Row(
        lambda it: co.AddPartitions(it.name, 1, 1, [(it.topic_id, 0)]), (WRITER,)
    ),
    co.EndTransaction: Row(lambda it: co.EndTransaction(it.name, 1, 1, False), (WRITER,)),
    co.BeginStage: Row(lambda it: co.BeginStage(it.name, 1), (WRITER,)),
    co.EndStages: Row(lambda it: co.EndStages(it.name, ["stage"]), (WRITER,)),
    co.CommitTransaction: Row(lambda it: co.CommitTransaction(it.name, 1, []), (WRITER,)),
    co.ListTransactions: Row(lambda _: co.ListTransactions(), EVERYBODY),
    lk.LookUpTime: Row(lambda it: lk.LookUpTime(it.page, it.topic_id, 0, 0), (READER,)),
    lk.LookUpAppends: Row(lambda it: lk.LookUpAppends([it.log]), KNOW),
    lk.LookUpSegments: Row(lambda it: lk.LookUpSegments(it.log), KNOW),
    lk.LookUpPages: Row(lambda it: lk.LookUpPages([it.page]), EVERYBODY),
    lk.LookUpPositions: Row(lambda _: lk.LookUpPositions([(0, 1)]), EVERYBODY),
    ac.ListAccess: Row(lambda _: ac.ListAccess("entries")),
    ac.AddAccess: Row(
        lambda it: ac.AddAccess([ac.AccessEntry(NOBODY, "allow", "all", "topic", it.name)])
    ),
    ac.RemoveAccess: Row(lambda _: ac.RemoveAccess([])),
    ac.SetQuota: Row(lambda _: ac.SetQuota(ac.QuotaSetting(NOBODY))),
    ac.SetLimits: Row(lambda _: ac.SetLimits(ac.LimitSetting("m"))),
    cg.DescribeCluster: Row(lambda _: cg.DescribeCluster()),
    cg.DescribePartitions: Row(lambda it: cg.DescribePartitions(it.name), KNOW),
    cg.ElectLeaders: Row(lambda it: cg.ElectLeaders(it.name)),
    cg.ReassignPartition: Row(lambda it: cg.ReassignPartition(it.name, 0, [1])),
    cg.RemoveBroker: Row(lambda _: cg.RemoveBroker(1)),
    cg.DrainBroker: Row(lambda _: cg.DrainBroker(1)),
    cg.DescribeDrain: Row(lambda _: cg.DescribeDrain(1)),
    op.ListClients: Row(lambda _: op.ListClients()),
    op.KickClient: Row(lambda _: op.KickClient(1)),
    op.DescribeSettings: Row(lambda _: op.DescribeSettings()),
    op.ChangeSettings: Row(lambda _: op.ChangeSettings({})),
    sh.AcquireRecords: Row(lambda it: sh.AcquireRecords(it.name, MEMBER), (READER,)),
    sh.BuryRecords: Row(
        lambda it: sh.BuryRecords(it.name, MEMBER, it.topic_id, 0, [(0, 1)]), (READER,)
    ),
    sh.SeekShare: Row(lambda it: sh.SeekShare(it.name, it.topic_id, 0, 0)),
    sh.PauseShare: Row(lambda it: sh.PauseShare(it.name)),
    sh.ResumeShare: Row(lambda it: sh.ResumeShare(it.name)),
    sh.DescribeShare: Row(lambda it: sh.DescribeShare(it.name), (READER,)),
    sh.PeekShare: Row(lambda it: sh.PeekShare(it.name, it.topic_id, 0), (READER,)),
}
LOCAL: dict[type, Callable[[Thing], msgspec.Struct]] = {
    ms.Hello: lambda _: ms.Hello(1, lo.KIND_ADMIN, 0, "x"),
    ms.OpenLane: lambda _: ms.OpenLane(0),
    ms.Bye: lambda _: ms.Bye(),
    ms.FindFloor: lambda it: ms.FindFloor(it.topic_id, 0),
    ms.SwapSegments: lambda it: ms.SwapSegments(
        it.name, 0, it.topic_id, ms.CleanedSegment(0, 0, 0, []), 0
    ),
}
"""Between processes of the host: no request of the wire."""
FRAMES: dict[type, str] = {
    fr.Ask: "by ROWS",
    fr.Produce: "test_a_batch_needs_write_and_tells_nothing",
    fr.Fetch: "test_a_fetch_needs_read_and_tells_nothing",
    fr.Hello: "before there is a principal's attachment: it names nothing",
    fr.Attach: "names an attachment of the connection, and a producer by its token",
    fr.Detach: "names an attachment of the connection",
    fr.More: "names a cursor of the connection",
    fr.Drop: "names a cursor of the connection",
    fr.Positions: "names cursors of the connection",
    fr.Ping: "names nothing",
}
"""Messages beside requests: where they are tried, or what they name."""


@dataclass
class Scene:
    world: World
    there: Thing
    never: Thing
    dealers: dict[str, Dealer]
    producers: dict[str, fr.Attached]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with World(tmp_path_factory.mktemp("matrix")) as world:
        world.broker.create_topic("m.there")
        with world.broker.connect(client_id=MEMBER) as client, client.admin() as admin:
            info = admin._find("m.there")
            admin._ask(co.SeekGroup("m.there", [co.OffsetSeek(info.topic_id, 0, 0)]), ms.Done)
            admin._ask(co.InitTransactions("m.there", 60.0), co.TransactionReady)
        there = Thing("m.there", info.topic_id, info.pages[0])
        never = Thing("m.never", b"?" * 16, info.pages[0])
        world.allow(
            f"{READER} allow read topic m.*", f"{READER} allow read group m.*",
            f"{WRITER} allow write topic m.*", f"{WRITER} allow write transactional_id m.*",
        )  # fmt: skip
        dealers, producers = {}, {}
        try:
            for who in PRINCIPALS:
                more = {"namespace": OTHER} if who == OTHER else {}
                dealers[who] = world.dealer(world.key(who, **more))
                dealers[who].attach(ADMIN, lo.KIND_ADMIN)
                dealers[who].attach(CONSUMER, lo.KIND_CONSUMER)
                producers[who] = dealers[who].attach(PRODUCER, lo.KIND_PRODUCER)
            yield Scene(world, there, never, dealers, producers)
        finally:
            for dealer in dealers.values():
                dealer.close()


def test_every_message_of_the_wire_has_a_row() -> None:
    assert set(ROWS) | set(LOCAL) == set(typing.get_args(ms.ClientMessage))
    assert set(FRAMES) == set(typing.get_args(fr.ClientMessage))


def is_denied(answer: Any) -> bool:
    return isinstance(answer, ms.Refused) and answer.error in DENIALS


def blanked(text: bytes, thing: Thing) -> bytes:
    for each in (thing.name.encode(), thing.topic_id.hex().encode(), thing.topic_id):
        text = text.replace(each, b"...")
    return text


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_a_request_is_for_those_who_may_and_tells_others_nothing(scene: Scene, kind: type) -> None:
    make, may = ROWS[kind]
    denied = set()
    for who in PRINCIPALS:
        dealer, said = scene.dealers[who], []
        for thing in (scene.there, scene.never):
            request = make(thing)
            answer = dealer.ask(CONSUMER, request)
            if thing is scene.there and is_denied(answer):
                denied.add(who)
            raw = bytes(dealer.answer.body)
            if who in STRANGERS:
                asked = msgspec.msgpack.encode(request)
                secrets = (scene.there.name.encode(), scene.there.topic_id, MEMBER.encode())
                assert [each for each in secrets if each in raw and each not in asked] == []
            said.append(blanked(raw, thing))
        if who in STRANGERS:
            assert said[0] == said[1], f"{who} is told whether it is there"
    assert set(PRINCIPALS) - denied == set(may)


def test_a_batch_needs_write_and_tells_nothing(scene: Scene) -> None:
    for who in PRINCIPALS:
        attached = scene.producers[who]
        errors: list[int] = []
        for thing in (scene.never, scene.there):
            info = ms.TopicInfo(thing.name, thing.topic_id, [thing.page], ms.TopicSettings())
            batch = batch_of([b"x"], info, attached.producer_id, 0)
            sequence = len(errors)
            lane = thing.page % attached.writers
            scene.dealers[who].say(fr.Produce(PRODUCER, lane, sequence, thing.page), batch)
            [ack] = scene.dealers[who].acks(1)
            errors.append(ack.error)
        if who in STRANGERS:
            assert errors[0] == errors[1] != 0
        assert (errors[1] == 0) == (who == WRITER), who


def test_a_fetch_needs_read_and_tells_nothing(scene: Scene) -> None:
    for who in PRINCIPALS:
        dealer, said = scene.dealers[who], []
        for cursor, thing in enumerate((scene.never, scene.there)):
            ask = fr.Fetch(CONSUMER, cursor, thing.page, thing.topic_id, 0, 0, -1, False, 1 << 20)
            dealer.say(ask)
            if who == READER and thing is scene.there:
                continue
            failed = dealer.hear(fr.CursorFailed)
            said.append((failed.error, failed.message.replace(thing.topic_id.hex(), "")))
        if who in STRANGERS:
            assert said[0] == said[1]
        if who == READER:
            look = lk.LookUpTime(scene.there.page, scene.there.topic_id, 0, 0)
            assert not is_denied(dealer.ask(CONSUMER, look))
            assert not [one for one, _ in dealer.heard if isinstance(one, fr.CursorFailed)]


@pytest.mark.parametrize("kind", LOCAL, ids=lambda kind: kind.__name__)
def test_what_processes_of_the_host_say_is_no_request_of_the_wire(scene: Scene, kind: type) -> None:
    for dealer in scene.dealers.values():
        answer = dealer.ask(ADMIN, LOCAL[kind](scene.there))
        assert isinstance(answer, ms.Refused), answer
        assert answer.error == "UnsupportedVersionError"
