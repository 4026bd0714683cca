"""The group machine under random calls, releases, lost members, reloads and compactions.

After every step: what reading the log tells, whole or compacted or twice over, is the live state; a
grant has had one owner; a partition changed hands only after its owner let go or was dropped.
Claims and commits are held against a model of what may be granted. A failure prints the blob that
reproduces it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from group_machine_fixture import Shell, compacted, durable_state, topic_id
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.cluster.groups import (
    Assignment,
    Claim,
    GroupLimits,
    GroupMachine,
    OffsetCommit,
    OffsetSeek,
)
from penstock.core.errors import GroupError, UnknownMemberError

TOPICS = ("a", "b", "c")
SUBSCRIPTIONS = st.sampled_from(
    [(("a",), None), (("a", "b"), None), (("c",), None), ((), "[ab]"), (("a",), ".*"), ((), "a")]
)
MEMBERS_MAX = 6
EXAMPLES = int(os.environ.get("PENSTOCK_MACHINE_EXAMPLES", "60"))


class Client:
    """What one member knows: what it was last told, which may be old by now."""

    def __init__(self, assignment: Assignment, wanted, instance_id: str | None = None) -> None:
        self.id = assignment.member_id
        self.wanted = wanted
        self.instance_id = instance_id
        self.told = assignment.partitions
        self.claims = 0
        self.lost: list[tuple[int, Claim]] = []  # claims whose answers it never saw


class GroupModel(RuleBasedStateMachine):
    """`granted`: who was given each (topic, partition, grant). `free`: owners that may be without
    their partition after this step. `covered`: end of what is granted to claims, by partition."""

    @initialize(
        guarantee=st.sampled_from(["at-most-once", "at-least-once"]),
        sizes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
        cap=st.sampled_from([2, 1000, 1000]),
    )
    def make(self, guarantee: str, sizes: list[int], cap: int) -> None:
        self.guarantee = guarantee
        self.sizes = dict(zip(TOPICS, sizes, strict=True))
        self.cap = cap
        self.shell = Shell(GroupLimits(member_partitions_max=cap), **self.sizes)
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.granted: dict[tuple[bytes, int, int], str] = {}
        self.owned: dict[tuple[bytes, int], tuple[str, int]] = {}
        self.free: set[tuple[str, bytes, int]] = set()
        self.covered: dict[tuple[bytes, int], int] = {}
        self.claimed: set[tuple[str, int, bytes, int]] = set()

    # --- membership ---
    @precondition(lambda self: len(self.clients) < MEMBERS_MAX)
    @rule(wanted=SUBSCRIPTIONS)
    def join(self, wanted) -> None:
        topics, pattern = wanted
        told = self.shell.join("g", topics, self.guarantee, pattern=pattern)
        self.clients.append(Client(told, wanted))

    @rule(instance=st.sampled_from(["one", "two"]), wanted=SUBSCRIPTIONS)
    def join_as_instance(self, instance, wanted) -> None:
        """Its predecessor, if there is one, is fenced at once."""
        before = [client for client in self.clients if client.instance_id == instance]
        for client in before:
            self.drop(client)
        topics, pattern = wanted
        told = self.shell.join("g", topics, self.guarantee, pattern=pattern, instance_id=instance)
        self.clients.append(Client(told, wanted, instance))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), wanted=SUBSCRIPTIONS)
    def come_back(self, data, wanted) -> None:
        client = data.draw(st.sampled_from(self.clients))
        topics, pattern = wanted
        told = self.shell.join(
            "g", topics, self.guarantee, pattern=pattern,
            member_id=client.id, instance_id=client.instance_id,
        )  # fmt: skip
        assert told.member_id == client.id
        client.told = told.partitions
        client.wanted = wanted

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), heard=st.booleans())
    def sync(self, data, heard) -> None:
        """Let go of some of what it thinks it has; the answer may be lost."""
        client = data.draw(st.sampled_from(self.clients))
        released = [o for o in client.told if data.draw(st.booleans()) or o.revoked]
        self.free |= {(client.id, o.topic_id, o.partition) for o in released}
        told = self.shell.sync(client.id, *released)
        if heard:
            client.told = told.partitions

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(["leave", "fence", "died"]))
    def go(self, data, how) -> None:
        client = data.draw(st.sampled_from(self.clients))
        machine, now = self.shell.machine, self.shell.now
        if how == "leave":
            self.shell.take(machine.leave(now, "g", client.id))
        elif how == "fence":
            self.shell.take(machine.fence(now, "g", client.id, "stalled"))
        else:
            self.shell.take(machine.died(now, "g", client.id))
            if client.instance_id is not None:
                return  # its place is kept for a successor
        self.drop(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 29.0, 31.0]))
    def lose_connections(self, data, seconds) -> None:
        away = [c for c in self.clients if data.draw(st.booleans())]
        for client in self.clients:
            self.shell.machine.connected(self.shell.now, "g", client.id)
        for client in away:
            self.shell.machine.disconnected(self.shell.now, "g", client.id)
        self.shell.tick(seconds)
        if seconds > 30:
            for client in away:
                self.drop(client)

    def drop(self, client: Client) -> None:
        self.clients.remove(client)
        self.gone.append(client)

    # --- offsets ---
    @precondition(lambda self: self.clients and self.guarantee != "at-most-once")
    @rule(data=st.data(), offset=st.integers(0, 50))
    def commit(self, data, offset) -> None:
        """What is current counts, everything else is told to be stale and changes nothing."""
        client = data.draw(st.sampled_from(self.clients))
        asked = [OffsetCommit(o.topic_id, o.partition, o.grant, offset) for o in client.told]
        machine, before = self.shell.machine, self.shell.offsets()
        expected = [
            place
            for place, o in enumerate(asked)
            if self.owned.get((o.topic_id, o.partition)) != (client.id, o.grant)
        ]
        assert self.shell.take(machine.commit(self.shell.now, "g", client.id, asked)) == expected
        stale = {(o.topic_id, o.partition) for n, o in enumerate(asked) if n in expected}
        after = self.shell.offsets()
        for (topic, partition), was in before.items():
            if (topic_id(topic), partition) in stale:
                assert after[topic, partition] == was
        fresh = {(o.topic_id, o.partition) for o in asked} - stale
        for (topic, partition), now in after.items():
            if (topic_id(topic), partition) in fresh:
                assert now == offset

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def zombie(self, data) -> None:
        """Who was dropped can do nothing any more."""
        client = data.draw(st.sampled_from(self.gone))
        machine, now = self.shell.machine, self.shell.now
        asked = [OffsetCommit(o.topic_id, o.partition, o.grant, 7) for o in client.told]
        claims = [Claim(o.topic_id, o.partition, o.grant, 0, 7) for o in client.told]
        for call in (
            lambda: machine.commit(now, "g", client.id, asked),
            lambda: machine.claim(now, "g", client.id, 99, claims, 0),
            lambda: machine.sync(now, "g", client.id, ()),
            lambda: machine.check_offsets("g", client.id, asked),
        ):
            try:
                call()
            except UnknownMemberError:
                continue
            raise AssertionError(f"{client.id} is no member any more")

    @precondition(lambda self: self.clients and self.guarantee == "at-most-once")
    @rule(data=st.data(), count=st.integers(1, 9), off=st.sampled_from([0, 0, 0, 1, -1]))
    def claim(self, data, count, off) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if not client.told:
            return
        own = data.draw(st.sampled_from(client.told))
        start = self.shell.offsets().get((own.topic, own.partition), 0) + off
        if start < 0:
            return
        client.claims += 1
        claim = Claim(own.topic_id, own.partition, own.grant, start, start + count)
        client.lost.append((client.claims, claim))
        self.ask(client, client.claims, claim, data.draw(st.booleans()))

    @precondition(lambda self: any(client.lost for client in self.clients))
    @rule(data=st.data())
    def repeat_claim(self, data) -> None:
        """In any order, also long after others."""
        client = data.draw(st.sampled_from([c for c in self.clients if c.lost]))
        claim_id, claim = data.draw(st.sampled_from(client.lost))
        self.ask(client, claim_id, claim, data.draw(st.booleans()))

    def ask(self, client: Client, claim_id: int, claim: Claim, heard: bool) -> None:
        place = (claim.topic_id, claim.partition)
        decision = self.shell.machine.claim(self.shell.now, "g", client.id, claim_id, [claim], 0)
        assert decision.durable
        answer = self.shell.take(decision)
        if answer.granted[0]:
            assert self.owned[place] == (client.id, claim.grant)
            assert answer.committed == [claim.end]
            if (client.id, claim_id, *place) not in self.claimed:
                assert claim.start >= self.covered.get(place, 0), "handed out twice"
                self.claimed.add((client.id, claim_id, *place))
            self.covered[place] = max(self.covered.get(place, 0), claim.end)
        if heard:
            client.lost = [(n, c) for n, c in client.lost if n != claim_id]

    @rule(
        data=st.data(),
        offset=st.integers(0, 60),
        topic=st.sampled_from(TOPICS),
        allow=st.sampled_from([False, False, True]),
    )
    def seek(self, data, offset, topic, allow) -> None:
        """Under live members too: their grants are new then. At-most-once never goes back."""
        if topic not in self.sizes:
            return
        partition = data.draw(st.integers(0, self.sizes[topic] - 1))
        place = (topic_id(topic), partition)
        before = self.shell.offsets().get((topic, partition), -1) if self.exists() else -1
        owned = self.owned.get(place)
        wanted = [OffsetSeek(*place, offset)]
        machine, now = self.shell.machine, self.shell.now
        at_most_once = self.exists() and self.shell.describe().info.guarantee == "at-most-once"
        try:
            self.shell.take(machine.seek(now, "g", wanted, allow))
        except GroupError:
            assert at_most_once
            assert offset < before
            assert not allow
            return
        assert allow or not (at_most_once and offset < before)
        self.covered[place] = offset
        assert self.shell.offsets()[topic, partition] == offset
        if owned:
            page = self.shell.describe().partitions
            [there] = [p for p in page if (p.topic_id, p.partition) == place]
            assert there.member_id == owned[0]
            assert there.grant > owned[1]

    def exists(self) -> bool:
        return bool(self.shell.machine.list_groups("").groups)

    # --- the world ---
    @rule(topic=st.sampled_from(TOPICS), more=st.integers(0, 3))
    def change_topic(self, topic, more) -> None:
        """It grows, or goes with all that was committed there, or comes back under its id."""
        if topic in self.sizes and not more:
            del self.sizes[topic]
            for place in [place for place in self.covered if place[0] == topic_id(topic)]:
                del self.covered[place]
            self.claimed = {c for c in self.claimed if c[2] != topic_id(topic)}
            for client in self.clients:
                client.lost = [(n, c) for n, c in client.lost if c.topic_id != topic_id(topic)]
            self.free |= {(owner, *place) for place, (owner, _) in self.owned.items()}
        else:
            self.sizes[topic] = min(8, self.sizes.get(topic, 0) + max(1, more))
        self.shell.change_topics(**self.sizes)

    @rule(how=st.sampled_from(["whole", "compacted", "compacted and whole", "twice"]))
    def reload(self, how) -> None:
        log = self.shell.log
        if how != "whole" and how != "twice":
            log = compacted(log)
        if how == "compacted":
            self.shell.log = log
        self.shell.reload(log * 2 if how == "twice" else log)
        self.shell.tick()
        for client in self.clients:
            self.shell.machine.connected(self.shell.now, "g", client.id)

    @precondition(lambda self: self.clients)
    @rule()
    def settle(self) -> None:
        """Once all have let go of what they were asked for: balanced, and nothing left over."""
        self.free |= {(owner, *place) for place, (owner, _) in self.owned.items()}
        self.shell.settle()
        page = self.shell.describe()
        assert page.info.state == "stable"
        loads: dict[frozenset[str], list[int]] = {}
        wanted: set[str] = set()
        for member in page.members:
            told = self.shell.sync(member.member_id)
            assert not any(o.revoked for o in told.partitions)
            subscription = self.subscription(member.member_id)
            wanted |= subscription
            loads.setdefault(subscription, []).append(member.partitions)
            assert {o.topic for o in told.partitions} <= subscription
        for topics, counts in loads.items():
            assert max(counts) - min(counts) <= 1, (topics, counts)
        if self.cap == 1000:
            ownerless = [p for p in page.partitions if p.topic in wanted and not p.member_id]
            assert ownerless == []

    def subscription(self, member_id: str) -> frozenset[str]:
        [(topics, pattern)] = [c.wanted for c in self.clients if c.id == member_id]
        return frozenset(
            topic
            for topic in self.sizes
            if topic in topics or (pattern is not None and re.fullmatch(pattern, topic))
        )

    # --- after every step ---
    @invariant()
    def the_log_tells_the_state(self) -> None:
        live = durable_state(self.shell.machine, self.shell.now)
        log = self.shell.log
        for records in (log, compacted(log), log + log, compacted(log) + compacted(log)):
            other = GroupMachine(self.shell.limits)
            for record in records:
                other.replay(record)
            other.topics_changed(self.shell.now, self.shell.topics)
            assert durable_state(other, self.shell.now) == live

    @invariant()
    def a_grant_is_given_once_and_nobody_is_robbed(self) -> None:
        owned: dict[tuple[bytes, int], tuple[str, int]] = {}
        if self.exists():
            page = self.shell.describe()
            members = {member.member_id for member in page.members}
            assert members == {client.id for client in self.clients}
            for p in page.partitions:
                if p.member_id:
                    place = (p.topic_id, p.partition)
                    owned[place] = (p.member_id, p.grant)
                    assert p.grant <= page.info.generation
                    assert self.granted.setdefault((*place, p.grant), p.member_id) == p.member_id
            per_member = {
                (o.topic_id, o.partition): (member_id, o.grant)
                for member_id in members
                for o in self.shell.sync(member_id).partitions
            }
            assert per_member == owned
            for place, (owner, grant) in self.owned.items():
                now_owner, now_grant = owned.get(place, ("", grant + 1))
                assert now_grant >= grant
                if now_owner != owner:
                    assert owner not in members or (owner, *place) in self.free
        self.owned = owned
        self.free = set()


def test_groups_under_random_calls_crashes_and_compactions():
    run_state_machine_as_test(
        GroupModel, settings=settings(max_examples=EXAMPLES, stateful_step_count=50)
    )


def test_deleting_a_group_ends_it_for_good():
    shell = Shell(t=2)
    told = shell.join()
    with suppress(GroupError):
        shell.take(shell.machine.delete(shell.now, "g", ()))
        raise AssertionError("it has a member")
    shell.take(shell.machine.leave(shell.now, "g", told.member_id))
    shell.take(shell.machine.delete(shell.now, "g", ()))
    assert shell.machine.list_groups("").groups == []
    assert [record for record in compacted(shell.log) if record.value is not None] == []
