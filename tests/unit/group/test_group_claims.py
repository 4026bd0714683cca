"""Rule 18 in the consumer: what a claim covers is handed out once it is granted, or counted as
skipped, and never both. The reader has a real log; the coordinator's answers are the test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from partition_fixture import Partition

from penstock.client.consumer.fetch_scheduler import FetchScheduler
from penstock.client.consumer.group.at_most_once import Claims
from penstock.client.consumer.group.consumed import GrantedPartitions
from penstock.client.consumer.iteration import HandOut
from penstock.client.consumer.last_poll import LastPoll
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Chunk, RecordBatch
from penstock.core.errors import GroupError, PenstockTimeout, UnknownMemberError
from penstock.ipc import coordination as co
from penstock.ipc.waits import Waits, run

NAME: TopicPartition = ("t", 0)
Answer = Callable[[co.ClaimOffsets], co.Claimed]


def owned(grant: int = 1, offset: int = co.NO_OFFSET) -> co.Owned:
    return co.Owned("t", b"t" * 16, 0, 2, grant, False, offset)


class Reader:
    """What claims need of the group's reader: one partition, read as a consumer does."""

    def __init__(self, partition: AssignedPartition) -> None:
        self.partitions = {NAME: partition}
        self.handout = HandOut(self.partitions)
        self._turns = FetchScheduler(1 << 20, whole=False)
        self._last = LastPoll(self.partitions, self._turns)
        self.owner_position: Any = None
        self.notice = 0
        self.is_lost = False

    def reads(self, partition: AssignedPartition) -> bool:
        return self.partitions.get(partition.name) is partition

    @property
    def is_torn(self) -> bool:
        return self._last.is_torn

    def mark(self) -> None:
        self._last.go_back()
        self._last.begin()

    def brought(self) -> None:
        self._last.brought()

    def go_back(self) -> None:
        self._last.go_back()

    def is_disturbed(self) -> bool:
        return False

    def position(self, topic: str, partition: int) -> int:
        return self.partitions[topic, partition].offset

    def seeking(self, topic: str, partition: int, to: int) -> Waits[int]:
        self.partitions[topic, partition].jump(to)
        return to
        yield

    def gather(self, room: int | None) -> Sequence[Chunk]:
        self._turns.choose(self.partitions.values())
        return self._last.fetch(self._gather, room).chunks

    def _gather(self, room: int | None) -> RecordBatch:
        return RecordBatch(self._turns.gather(room, AssignedPartition.take))


class Member:
    """What claims need of the membership: it asks, and `answer` says what comes of it."""

    group, member_id = "g", "m1"

    def __init__(self) -> None:
        self.ownership = GrantedPartitions("g", "m1", {NAME: owned()})
        self.asked: list[co.ClaimOffsets] = []
        self.posted: list[co.ClaimOffsets] = []
        self.answer: Answer = granted

    def post(self, request: co.ClaimOffsets) -> Any:
        self.posted.append(request)
        return object()

    def asking(self, request: Any, kind: Any, deadline: float, posted: Any = None) -> Waits[Any]:
        self.asked.append(request)
        return self.answer(request)
        yield


def granted(request: co.ClaimOffsets) -> co.Claimed:
    return co.Claimed([True] * len(request.claims), [claim.end for claim in request.claims])


def refused(at: int) -> Answer:
    """The group stands there."""
    return lambda request: co.Claimed([False], [at])


def fails(error: Exception) -> Answer:
    def answer(request: co.ClaimOffsets) -> co.Claimed:
        raise error

    return answer


class World:
    def __init__(self) -> None:
        self.log = Partition(20_000)
        self.log.write(1, 50)
        self.reader = Reader(self.log.reader("read_uncommitted", 0))
        self.member = Member()
        self.counts = dict.fromkeys(
            ("skipped", "skipped_claims", "refused_claims", "claims_ahead"), 0
        )
        reader: Any = self.reader
        member: Any = self.member
        self.claims = Claims(reader, member, self.counts, 5.0)
        self.claims.place([owned(offset=0)], [])

    def take(self, count: int | None = None) -> list[int]:
        """Offsets that a poll hands out."""
        taken = run(self.claims.taking(count))
        self.claims.given = []  # the caller has got it
        return offsets(taken)

    @property
    def queued(self) -> list[int]:
        return offsets(self.claims.queue)


def offsets(chunks: Any) -> list[int]:
    return [chunk.row_offset(row) for chunk in chunks for row in range(chunk.start, chunk.stop)]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.rule(18)
def test_rule_18_what_is_granted_is_handed_out_once_and_in_order(world: World) -> None:
    assert world.take(10) == list(range(10))
    (claim,) = world.member.asked[0].claims
    assert (claim.start, claim.end, claim.grant) == (0, 10, 1)
    world.claims.ahead(20)
    assert len(world.member.posted) == 1
    assert world.queued == [], "not answered yet"
    assert world.claims.holds
    assert world.take(5) == [10, 11, 12, 13, 14]
    assert world.queued == list(range(15, 30))
    assert world.take(None) == list(range(15, 30))
    assert world.take(None) == list(range(30, 50))
    assert world.take(None) == []
    ids = [request.claim_id for request in world.member.asked]
    assert ids == sorted(set(ids)), "each claim has an id of its own"
    assert world.counts["skipped"] == 0


@pytest.mark.rule(18)
@pytest.mark.parametrize("at", [0, 3, 25, co.NO_OFFSET])
def test_rule_18_nothing_of_a_refused_claim_is_handed_out(world: World, at: int) -> None:
    """It was moved, or is another's by now: the reader goes on where the group stands."""
    assert world.take(5) == [0, 1, 2, 3, 4]
    world.member.answer = refused(at)
    assert world.take(5) == []
    assert world.queued == []
    assert world.counts["refused_claims"] == 1
    assert world.reader.notice == -1, "the group is looked at"
    stands = 5 if at == co.NO_OFFSET else at
    assert world.reader.position(*NAME) == stands
    world.member.answer = granted
    assert world.take(5) == list(range(stands, stands + 5))
    assert world.counts["skipped"] == 0, "whoever claimed them has them"


@pytest.mark.rule(18)
@pytest.mark.parametrize("error", [PenstockTimeout("no answer"), UnknownMemberError("fenced")])
def test_rule_18_what_became_of_a_claim_that_nobody_knows_is_skipped_and_counted(
    world: World, error: Exception
) -> None:
    world.member.answer = fails(error)
    if isinstance(error, UnknownMemberError):
        assert world.take(5) == []
    else:
        with pytest.raises(PenstockTimeout):
            world.take(5)
    assert (world.counts["skipped"], world.counts["skipped_claims"]) == (5, 1)
    assert world.queued == []
    world.member.answer = granted
    assert world.take(5) == [5, 6, 7, 8, 9]
    assert world.member.asked[-1].skipped == 5, "the group is told"
    assert world.take(5) == [10, 11, 12, 13, 14]
    assert world.member.asked[-1].skipped == 0, "once"


@pytest.mark.rule(18)
def test_rule_18_a_partition_that_goes_takes_what_was_granted_and_counts_it(world: World) -> None:
    assert world.take(5) == [0, 1, 2, 3, 4]
    world.claims.ahead(10)
    run(world.claims.knowing())
    assert world.queued == list(range(5, 15))
    world.claims.drop([NAME])
    assert world.queued == []
    assert world.counts["skipped"] == 10


@pytest.mark.rule(18)
@pytest.mark.parametrize("is_granted", [True, False])
def test_rule_18_a_partition_that_went_while_its_claim_was_under_way(
    world: World, is_granted: bool
) -> None:
    """Under another grant it may be the same partition: the claim was for the one before."""

    def answer(request: co.ClaimOffsets) -> co.Claimed:
        world.member.ownership = GrantedPartitions("g", "m1", {NAME: owned(grant=2)})
        return co.Claimed([is_granted], [request.claims[0].end])

    world.member.answer = answer
    assert world.take(5) == []
    assert world.counts["skipped"] == (5 if is_granted else 0)
    assert world.queued == []


@pytest.mark.rule(18)
def test_rule_18_nobody_seeks_back_to_what_is_claimed(world: World) -> None:
    assert world.take(10) == list(range(10))
    with pytest.raises(GroupError, match="at-most-once"):
        run(world.claims.seeking(NAME, 9))
    assert world.take(2) == [10, 11], "where it was"
    world.claims.ahead(10)
    with pytest.raises(GroupError, match="committed up to 22"):
        run(world.claims.seeking(NAME, 21))
    run(world.claims.seeking(NAME, 30))
    assert world.counts["skipped"] == 10, "granted, or maybe, and sought past"
    assert world.take(3) == [30, 31, 32]


@pytest.mark.rule(18)
def test_rule_18_what_is_left_at_the_close_is_counted_and_told(world: World) -> None:
    assert world.take(5) == [0, 1, 2, 3, 4]
    world.claims.ahead(10)
    run(world.claims.closing(5.0))
    assert world.counts["skipped"] == 10
    last = world.member.asked[-1]
    assert (last.claims, last.skipped) == ([], 10)
    assert world.queued == []
