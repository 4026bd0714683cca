"""The console's pages of groups and queues: why a group is behind, where it is to go on, and jobs
by state with their leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_visitor import Visitor, visiting

from penstock.client.admin.groups import GroupMember, GroupPartition
from penstock.console.pages.groups import waits_for
from penstock.testing import Broker, produce, wait_until


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    node.create_topic("orders", partitions=2)
    for partition in range(2):
        produce(node, "orders", [b"%d" % number for number in range(100)], partition=partition)
    with visiting(node.url) as found:
        yield found


def test_a_group_says_why_it_is_behind_and_is_sought(node: Broker, visitor: Visitor) -> None:
    with node.connect() as client:
        with client.consumer("orders", group="billing", follow=False) as consumer:
            records = iter(consumer)
            for _ in range(10):
                next(records)
        page = visitor.get("/group", name="billing")
        assert "no member works on it" in page
        assert "a member: nobody reads it" in page
        wait_until(lambda: "billing" in visitor.get("/groups"), what="the group in the list")
        page = visitor.get("/groups", q="BILL")
        assert "billing at-least-once" in page
        with client.admin() as admin:
            before = admin.describe_group("billing").lag
        form = {"name": "billing", "topic": "orders", "to": "end", "partition": "1"}
        plan = visitor.plan("/group/seek", **form)
        assert "penstock group seek billing orders --to end -p 1" in plan
        assert "passed over" in plan
        with client.admin() as admin:
            assert admin.describe_group("billing").lag == before
        assert "billing goes on in 1 partitions of orders." in visitor.do("/group/seek", **form)
        with client.admin() as admin:
            found = {one.partition: one.lag for one in admin.describe_group("billing").partitions}
        assert found[1] == 0
        form |= {"to": "by -5"}
        plan = visitor.plan("/group/seek", **form)
        assert "5 records come again, 0 are passed over." in plan
        assert "--by -5" in plan
        assert "no place in a log" in visitor.post("/group/seek", 400, **(form | {"to": "soon"}))
        assert "there is no group 'none'" in visitor.get("/group", 409, name="none")


def test_an_at_most_once_group_does_not_go_back_unless_it_is_said(
    node: Broker, visitor: Visitor
) -> None:
    with (
        node.connect() as client,
        client.consumer("orders", group="once", guarantee="at-most-once", follow=False) as consumer,
    ):
        assert len(list(consumer)) == 200
    form = {"name": "once", "topic": "orders", "to": "start"}
    assert "at-most-once" in visitor.post("/group/seek", 409, **form)
    plan = visitor.plan("/group/seek", **form, allow_redelivery="yes")
    assert "200 records come again" in plan
    assert "--allow-redelivery" in plan


def test_a_group_without_members_is_deleted(node: Broker, visitor: Visitor) -> None:
    with node.connect() as client, client.admin() as admin:
        admin.report_offsets("old", "orders", {0: (1, 1)})
        with client.consumer("orders", group="busy") as consumer:
            consumer.poll(timeout=5.0)
            plan = visitor.plan("/group/delete", name="busy")
            assert "stop them first" in plan
            assert "Delete it for ever" not in plan
        assert "1 committed offset" in visitor.plan("/group/delete", name="old")
        assert "type old" in visitor.do("/group/delete", 400, name="old")
        assert "Group old is deleted." in visitor.do("/group/delete", name="old", typed="old")
        assert "old" not in [each.group for each in admin.list_groups()]


def test_a_queue_shows_jobs_by_state_and_is_paused(node: Broker, visitor: Visitor) -> None:
    topic = node.create_topic("jobs")
    produce(node, topic, [b"job-%d" % number for number in range(9)])
    with (
        node.connect() as client,
        client.share_consumer(topic, group="mailers", dead_letters=None) as jobs,
    ):
        held: list[object] = []
        while len(held) < 4:
            held += jobs.poll(4 - len(held), timeout=1.0)
        held[0].nack(delay=3600.0, reason="<b>away</b>")  # type: ignore[attr-defined]
        jobs.flush()
        page = visitor.get("/queue", name="mailers")
        assert "leased 3" in page
        assert "waiting 1" in page
        assert "new 5" in page
        assert f"jobs 0:1 1 {jobs.member_id}" in page
        assert "job-1" in page
        page = visitor.get("/queue", name="mailers", state="waiting")
        assert "<b>away</b>" in page
        assert "<b>away" not in visitor.last
        assert "job-8" in visitor.get("/queue", name="mailers", state="new")
        assert "no state of a job" in visitor.get("/queue", 400, name="mailers", state="lost")
        assert "mailers" in visitor.get("/queues")
        assert "mailers" not in visitor.get("/groups")

        plan = visitor.plan("/queue/pause", name="mailers", reason="a bad release")
        assert "penstock group pause mailers --reason 'a bad release'" in plan
        visitor.do("/queue/pause", name="mailers", reason="a bad release")
        page = visitor.get("/queue", name="mailers")
        assert "Paused" in page
        assert "a bad release" in page
        assert "delivers again" in visitor.do("/queue/resume", name="mailers")
        assert "Paused" not in visitor.get("/queue", name="mailers")
        form = {"name": "mailers", "topic": topic, "to": "end"}
        assert "9 are passed over" in visitor.plan("/group/seek", **form)


# --- without a node -------------------------------------------------------------------------------
def partition(**more: object) -> GroupPartition:
    known: dict[str, object] = {
        "topic": "t", "partition": 0, "member_id": "m", "committed": 5, "committed_at": 1.0,
        "position": 5, "high_watermark": 9, "lag": 4, "lag_seconds": 1.0, "in_hand": 0,
    }  # fmt: skip
    return GroupPartition(**(known | more))  # type: ignore[arg-type]


def member(*, connected: bool = True, polled: float | None = 1.0) -> GroupMember:
    return GroupMember("m", None, "", 7, connected, 1, polled)


@pytest.mark.parametrize(
    ("one", "owner", "reason"),
    [
        (partition(lag=0, committed=9), member(), "it has all"),
        (partition(), None, "nobody reads it"),
        (partition(), member(connected=False), "not connected"),
        (partition(), member(polled=95.0), "not for 1m35s"),
        (partition(position=9, in_hand=4), member(), "4 records in hand, and nothing new"),
        (partition(position=7, in_hand=2), member(), "2 records in hand"),
        (partition(), member(polled=None), "to read on"),
    ],
)
def test_a_partition_says_what_it_waits_for(
    one: GroupPartition, owner: GroupMember | None, reason: str
) -> None:
    assert reason in waits_for(one, owner)
