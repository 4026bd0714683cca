"""Orders and turns of whole share groups: who may change them, who is called, what the log has."""

from __future__ import annotations

from array import array

import pytest

from penstock.cluster.shares import (
    AcceptedJobs,
    AcceptedLease,
    ArrangedGroups,
    KnownEnds,
    ShareGroups,
    SharePolicy,
    ToldHashes,
    TransactedJobs,
)
from penstock.core.errors import ConfigError, GroupError

PLACE = (b"t" * 16, 0)
KEYED = SharePolicy(order="key")


class Ordered:
    """The machine of share groups, and the log of its decisions."""

    def __init__(self, policy=KEYED):
        self.machine = ShareGroups(lambda low, high: high)
        self.arranged = ArrangedGroups(self.machine)
        self.log = []
        self.configure(policy)

    def configure(self, policy):
        self.decide(self.machine.configure("red", policy))
        while self.decide(self.arranged.arrange("red")):
            pass

    def decide(self, decision):
        self.log += decision.records
        for record in decision.records:
            self.machine.replay(record)
        self.notified = decision.notify
        return decision.answer

    def tell(self, *keys, first=0, tenants=()):
        data = array("Q", keys).tobytes(), array("Q", tenants).tobytes()
        told = [ToldHashes(PLACE, first, *data, 1 << 40)]
        return self.decide(self.arranged.tell("red", told))

    def acquire(self, member="m", count=100):
        """(lease, runs) of what came."""
        ends = [KnownEnds(PLACE, 0, 1 << 40)]
        decided = self.machine.acquire(0.0, "red", member, count, ends, [PLACE[0]])
        found = self.decide(decided).granted
        return [(it.granted.lease, it.granted.runs) for it in found]

    def again(self):
        """As the log makes it, compacted."""
        newest = {record.key: at for at, record in enumerate(self.log)}
        made = ShareGroups(lambda low, high: high)
        for at, record in enumerate(self.log):
            if newest[record.key] == at:
                made.replay(record)
        return [(place, it.snapshot()) for place, it in made.partitions("red")]

    def state(self):
        return [(place, it.snapshot()) for place, it in self.machine.partitions("red")]


def test_nothing_begins_before_its_keys_are_told():
    group = Ordered()
    assert group.tell(5, 6) == 0, "of a partition that the group does not know"
    assert group.acquire() == [], "it knows it now"
    assert group.tell(5, 5, 6) == 3
    assert [runs for _, runs in group.acquire()] == [((0, 1), (2, 3))]
    assert group.again() == group.state()


def test_who_waits_is_called_when_the_next_of_a_key_is_ready():
    group = Ordered()
    group.acquire()
    group.tell(5, 5, 5)
    [(lease, runs)] = group.acquire("one")
    assert group.acquire("two") == []
    group.decide(group.machine.accept("red", PLACE, lease, runs))
    assert group.notified == {"two"}
    [(lease, runs)] = group.acquire("one")
    assert group.acquire("two") == []
    done = [AcceptedJobs("red", "one", [AcceptedLease(PLACE, lease, runs, "t-0")])]
    jobs = TransactedJobs(group.machine)
    jobs.check_done(done)
    records, called = jobs.done_records(done)
    assert len(records) == 1
    assert called == {"two"}


def test_a_group_changes_its_order_only_while_nobody_else_works_by_it():
    group = Ordered()
    fair = SharePolicy(fair="header:tenant")
    there = {"one", "two", "three"}

    def check(member, policy, name="red"):
        group.arranged.check(name, member, policy, there.__contains__)

    check("one", KEYED)
    with pytest.raises(GroupError, match=r"order='key', fair=None.*header:tenant.*another member"):
        check("two", fair)
    check("three", KEYED)
    with pytest.raises(GroupError, match="2 other members"):
        check("two", fair)
    check("two", fair, "blue")  # it is new
    there -= {"one", "three"}
    check("two", fair)
    group.acquire()
    group.tell(5, 5)
    group.configure(fair)
    assert group.tell(9, 9, first=2) == 0, "keys say nothing of tenants"
    assert group.tell(first=2, tenants=[7, 7]) == 2
    assert [runs for _, runs in group.acquire()] == [((0, 4),)]
    assert group.again() == group.state()


def test_several_workers_begin_with_another_order_at_once():
    """All of a group were restarted: none has told the old one."""
    group, fair = Ordered(), SharePolicy(fair="key")
    for member in ("one", "two"):
        group.arranged.check("red", member, fair, {"one", "two", "refused"}.__contains__)
        group.configure(fair)
    with pytest.raises(GroupError, match="2 other members"):
        group.arranged.check("red", "three", KEYED, {"one", "two", "three"}.__contains__)


def test_with_an_order_of_keys_turns_by_key_are_no_more_to_be_told():
    both = SharePolicy(order="key", fair="key").arrangement()
    assert (both.order, both.fair) == ("key", "")


@pytest.mark.parametrize(
    "policy",
    [{"order": "value"}, {"fair": "tenant"}, {"fair": "header:"}, {"fair": "header:" + "n" * 201}],
)
def test_what_nobody_can_order_by_is_refused(policy):
    group = Ordered()
    with pytest.raises(ConfigError, match="'key'"):
        group.machine.configure("red", SharePolicy(**policy))
