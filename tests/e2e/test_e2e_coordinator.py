"""The coordinator of a node: what clients are answered, what stays, and what becomes of members."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest
from group_members import MemberProcess, RawMember
from node_helpers import NodeProcess, Refusal, eventually, owner_of, uuid_of

from penstock.core.errors import PenstockError
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import paths, shm
from penstock.ipc.shm import Region


@pytest.fixture
def node(tmp_path):
    with NodeProcess(tmp_path / "data") as made:
        yield made


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """A node with a member, for many tests."""
    with NodeProcess(tmp_path_factory.mktemp("serving") / "data") as made:
        made.start()
        create(made)
        member = RawMember(socket_of(made), "billing", "orders")
        yield made, member
        member.close()


def socket_of(node):
    return paths.socket_in(node.folder)


def create(node, name="orders", **settings):
    with node.attach() as admin:
        return admin.create(name, **settings)


def describe(node):
    with node.attach() as admin:
        return admin.ask(ms.DescribeNode(), ms.NodeDescription)


def group_of(node, group="billing"):
    with node.attach() as admin:
        return admin.ask(co.DescribeGroup(group), co.GroupDescription)


def serves(node):
    try:
        with node.attach() as admin:
            return admin.ask(co.ListGroups(), co.Groups)
    except Refusal:
        return None


def committed(node, group="billing"):
    return {
        each.partition: each.offset for each in group_of(node, group).partitions if each.offset >= 0
    }


def test_a_node_whose_clients_want_no_groups_has_nothing_of_it(node):
    node.start()
    with node.attach() as admin:
        assert admin.ask(co.ListGroups(), co.Groups) == co.Groups([], False)
        assert admin.ask(co.ListTransactions(), co.Transactions) == co.Transactions([], False)
        described = admin.ask(co.DescribeGroup("g"), co.GroupDescription)
        assert (described.info.state, described.members) == ("empty", [])
        with pytest.raises(Refusal, match="Error"):
            admin.ask(co.SyncGroup("g", "m", []), ms.Done)
        found = admin.ask(ms.DescribeNode(), ms.NodeDescription)
        assert (found.coordinator, found.writers, found.lanes) == ({}, [], 0)
    assert not (node.folder / "topics.json").exists()


def test_a_member_joins_commits_and_finds_that_again_after_a_restart(node):
    node.start()
    create(node, partitions=3)
    member = RawMember(socket_of(node), "billing", "orders", session_timeout=0.5)
    assert sorted(member.owned) == [0, 1, 2]
    assert member.commit(1, 42) == []
    member.close()
    assert node.stop() == 0
    node.start()
    assert committed(node) == {1: 42}
    again = RawMember(socket_of(node), "billing", "orders")
    assert again.until_owns(0, 1, 2)  # the first is fenced when its session timed out
    assert again.owned[1].offset == 42
    again.close()


def test_a_member_whose_connection_ended_comes_back_to_what_it_had(node):
    node.start()
    create(node, partitions=2)
    member = RawMember(socket_of(node), "billing", "orders")
    before = member.assignment
    member.close()
    member.connect()
    assert member.member_id == before.member_id
    assert member.owned == {each.partition: each for each in before.partitions}
    assert member.commit(0, 7) == []
    node.kill()
    node.start()
    member.connect()
    assert member.member_id == before.member_id
    assert member.commit(1, 8) == []
    assert committed(node) == {0: 7, 1: 8}
    member.close()


@pytest.mark.setting("node.coordinator_timeout")
def test_who_joins_again_because_the_answer_came_too_late_is_the_same_member(tmp_path):
    """As a second one it would not get what the first was given as long as it lives."""
    with NodeProcess(tmp_path / "data", "--coordinator-timeout", "3", "--writers", "1") as node:
        node.start()
        create(node, partitions=2)
        RawMember(socket_of(node), "billing", "orders").close(bye=True)
        [writer] = node.writers()
        request = co.JoinGroup("billing", "", ["orders"], None, "manual")
        with node.attach(lo.KIND_CONSUMER) as client:
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                late = r"PenstockTimeout: .* within [0-3](\.\d+)? s: .* may still be decided"
                with pytest.raises(Refusal, match=late):
                    client.ask(request, co.GroupAssignment)
            finally:
                os.kill(writer.pid, signal.SIGCONT)
            again = client.ask(request, co.GroupAssignment)
            assert [member.member_id for member in group_of(node).members] == [again.member_id]
            assert sorted(each.partition for each in again.partitions) == [0, 1]
            client.ask(co.LeaveGroup("billing", again.member_id), ms.Done)
            third = client.ask(request, co.GroupAssignment)
            assert third.member_id != again.member_id
            assert [member.member_id for member in group_of(node).members] == [third.member_id]


def test_who_joins_again_since_the_node_died_before_it_answered_is_the_same_member(tmp_path):
    """Nobody is behind the first one, but it would keep partitions for its session timeout."""
    with NodeProcess(tmp_path / "data", "--coordinator-timeout", "3", "--writers", "1") as node:
        node.start()
        create(node, partitions=2)
        eventually(lambda: serves(node), "a coordinator that has read its log")
        RawMember(socket_of(node), "billing", "orders").close(bye=True)
        [writer] = node.writers()
        request = co.JoinGroup("billing", "", ["orders"], None, "manual", attempt="f00d")
        with node.attach(lo.KIND_CONSUMER) as client:
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                with pytest.raises(Refusal, match=r"PenstockTimeout: .* may still be decided"):
                    client.ask(request, co.GroupAssignment)
                node.kill()
            finally:
                os.kill(writer.pid, signal.SIGCONT)
        assert eventually(lambda: not os.path.exists(f"/proc/{writer.pid}"))  # having appended it
        node.start()
        before = [member.member_id for member in group_of(node).members]
        with node.attach(lo.KIND_CONSUMER) as client:
            again = client.ask(request, co.GroupAssignment)
            assert before in ([again.member_id], []), "none, had the writer left without a look"
            assert [member.member_id for member in group_of(node).members] == [again.member_id]
            assert sorted(each.partition for each in again.partitions) == [0, 1]
            with pytest.raises(Refusal, match=r"ConfigError: .* of group 'billing'"):
                client.ask(msgspec.structs.replace(request, group="other"), co.GroupAssignment)


def test_a_goodbye_gives_partitions_to_the_others_at_once(node):
    node.start()
    create(node, partitions=2)
    first = RawMember(socket_of(node), "billing", "orders")
    second = RawMember(socket_of(node), "billing", "orders")
    first.wait_notice()
    first.sync()
    eventually(lambda: second.sync() and second.owned, "a share")
    first.close(bye=True)
    second.wait_notice()
    second.until_owns(0, 1)
    second.leave()
    assert group_of(node).info.members == 0
    second.close()


def test_a_killed_member_loses_its_partitions_at_once(node):
    node.start()
    create(node, partitions=2)
    with MemberProcess(socket_of(node), "billing", "orders") as other:
        other.until_owns(0, 1)
        member = RawMember(socket_of(node), "billing", "orders")
        other.next()
        eventually(lambda: member.sync() and len(member.owned) == 1, "a share")
        os.kill(other.pid, signal.SIGKILL)
        member.wait_notice()
        member.until_owns(0, 1)
        assert describe(node).coordinator["died"] == 1
        member.close()


@pytest.mark.rule(8)
@pytest.mark.setting("node.stall_timeout")
def test_rule_8_a_stopped_member_is_fenced_and_its_commits_are_refused(tmp_path):
    with NodeProcess(tmp_path / "data", "--stall-timeout", "0.2") as node:
        node.start()
        create(node)
        with MemberProcess(socket_of(node), "billing", "orders") as other:
            stale = other.until_owns(0)["member_id"]
            member = RawMember(socket_of(node), "billing", "orders")
            assert not member.owned
            os.kill(other.pid, signal.SIGSTOP)
            member.until_owns(0)
            node.wait_log(r"is fenced: .* stopped for longer than stall_timeout=0\.2 s")
            owned = member.owned[0]
            with pytest.raises(Refusal, match="UnknownMemberError"):
                member.client.ask(
                    co.CommitOffsets(
                        "billing", stale, [co.OffsetCommit(owned.topic_id, 0, owned.grant, 5)]
                    ),
                    co.Committed,
                )
            assert describe(node).coordinator["stalled"] == 1
            member.close()


def test_members_that_died_while_no_node_ran_are_fenced_by_the_next(node):
    node.start()
    create(node)
    with MemberProcess(socket_of(node), "billing", "orders") as other:
        other.until_owns(0)
        node.kill()
        os.kill(other.pid, signal.SIGKILL)
        other.process.wait()
    node.start()
    eventually(lambda: group_of(node).info.members == 0, "nobody")
    member = RawMember(socket_of(node), "billing", "orders")
    assert sorted(member.owned) == [0]
    member.close()


def test_a_topic_of_the_nodes_own_is_nobody_elses(node):
    import penstock

    node.start()
    create(node)
    RawMember(socket_of(node), "billing", "orders").close(bye=True)
    with node.attach() as admin, node.attach(lo.KIND_PRODUCER) as producer:
        listed = admin.ask(ms.ListTopics(), ms.Topics)
        assert [topic.name for topic in listed.topics] == ["orders"]
        everything = admin.ask(ms.ListTopics("", True), ms.Topics)
        assert [topic.name for topic in everything.topics] == ["__coordinator", "orders"]
        settings = ms.TopicSettings()
        for client, request in (
            (admin, ms.CreateTopic("__mine", settings)),
            (admin, ms.AlterTopic("__coordinator", settings)),
            (admin, ms.DeleteTopic("__coordinator")),
            (admin, ms.TrimPartition("__coordinator", 0, 1)),
            (producer, ms.FindTopic("__coordinator")),
        ):
            with pytest.raises(Refusal, match=r"ConfigError: topic.*node's own"):
                client.ask(request, ms.Done)
        found = admin.ask(ms.DescribeNode(), ms.NodeDescription)
        assert (found.topics, found.partitions) == (1, 1)
    with (
        penstock.connect(f"shm://{node.folder}") as client,
        client.producer() as sender,
        pytest.raises(PenstockError, match="node's own"),
    ):
        sender.send_and_wait("__coordinator", b"x")


@pytest.mark.rule(18)
def test_rule_18_a_claim_is_granted_once_and_repeated_claims_are_answered_alike(node):
    node.start()
    create(node)
    member = RawMember(socket_of(node), "billing", "orders", guarantee="at-most-once")
    assert member.claim(1, 0, 0, 10) == co.Claimed([True], [10])
    assert member.claim(1, 0, 0, 10) == co.Claimed([True], [10])
    assert member.claim(2, 0, 0, 10).granted == [False]
    node.kill()
    node.start()
    member.connect()
    assert member.claim(1, 0, 0, 10) == co.Claimed([True], [10])
    assert committed(node) == {0: 10}
    member.close()


def test_groups_are_listed_described_sought_and_deleted(node):
    node.start()
    topic = create(node, partitions=2)
    member = RawMember(socket_of(node), "billing", "orders")
    member.commit(0, 5)
    found = group_of(node)
    assert (found.info.members, found.members[0].pid) == (1, os.getpid())
    assert found.members[0].slot == member.client.welcome.slot
    assert [each.page for each in found.partitions] == topic.pages
    with node.attach() as admin:
        assert [each.group for each in admin.ask(co.ListGroups(), co.Groups).groups] == ["billing"]
        with pytest.raises(Refusal, match="GroupError"):
            admin.ask(co.DeleteGroup("billing"), ms.Done)
        seek = co.SeekGroup("billing", [co.OffsetSeek(topic.topic_id, 0, 2)])
        admin.ask(seek, ms.Done)
        member.wait_notice()
        member.until_owns(0, 1)
        assert member.owned[0].offset == 2
        member.close(bye=True)
        eventually(lambda: group_of(node).info.members == 0, "nobody")
        admin.ask(co.DeleteGroup("billing"), ms.Done)
        assert admin.ask(co.ListGroups(), co.Groups).groups == []


def test_an_assignment_that_no_message_takes_comes_in_pages(node):
    import penstock

    node.start()
    name = "n" * 200
    create(node, name, partitions=300)
    member = RawMember(socket_of(node), "raw", name)
    assert member.assignment.more
    assert len(member.assignment.partitions) < 300
    member.close(bye=True)
    with (
        penstock.connect(f"shm://{node.folder}") as client,
        client.consumer(name, group="billing", guarantee="manual") as consumer,
    ):
        consumer.poll(timeout=0.0)
        assert len(consumer.assignment()) == 300
        assert len(client.admin().describe_group("billing").partitions) == 300


def test_new_partitions_and_deleted_topics_reach_members(node):
    node.start()
    create(node)
    member = RawMember(socket_of(node), "billing", "orders", "later")
    with node.attach() as admin:
        admin.ask(ms.AlterTopic("orders", ms.TopicSettings(partitions=2)), ms.TopicFound)
        member.wait_notice()
        member.until_owns(0, 1)
        admin.ask(ms.DeleteTopic("orders"), ms.Done)
        member.wait_notice()
        member.until_owns()
        admin.create("later", partitions=3)
        member.wait_notice()
        member.until_owns(0, 1, 2)
    member.close()


def spoil_lane(node):
    """What no coordinator writes, in its lane: the writer drops that."""
    own = int(uuid_of(node.folder)[:6], 16) << lo.PRODUCER_COUNTER_BITS
    [name] = shm.listing(f"/penstock-{owner_of(node.folder)}-lane-{own}-")
    with Region.of_fd(shm.open_existing(name, writable=True)) as lane:
        lane.q[lo.Q_LANE_TAIL] += lo.FRAME_ALIGN


@pytest.mark.rule(17)
def test_rule_17_after_a_lost_log_everything_is_read_anew_in_another_epoch(node):
    node.start()
    create(node, partitions=2)
    member = RawMember(socket_of(node), "billing", "orders")
    member.commit(0, 5)
    before = describe(node).coordinator
    spoil_lane(node)
    eventually(lambda: describe(node).coordinator["epoch"] > before["epoch"], "another epoch")
    assert member.commit(0, 6) == []
    grants = {number: each.grant for number, each in member.owned.items()}
    member.sync()
    assert {number: each.grant for number, each in member.owned.items()} == grants
    after = describe(node).coordinator
    assert (after["failures"], after["loads"]) == (1, 2)
    assert committed(node) == {0: 6}
    member.close()


def test_while_its_log_is_offline_requests_say_so_and_they_go_on_after_it(tmp_path):
    with NodeProcess(tmp_path / "data", "--coordinator-timeout", "3") as node:
        node.start()
        create(node)
        RawMember(socket_of(node), "billing", "orders").close(bye=True)
        eventually(lambda: group_of(node).info.members == 0, "nobody")
        assert node.stop() == 0
        [folder] = [path for path in node.folder.glob("*-0") if b"billing" in log_of(path)]
        segment = folder / f"{0:020d}.log"
        with segment.open("r+b") as file:
            good = os.pread(file.fileno(), 7, 200)
            os.pwrite(file.fileno(), b"garbage", 200)
        node.start()
        with pytest.raises(Refusal, match=r"coordinator.*cannot be read.*backup"):
            group_of(node)
        with node.attach() as admin:
            assert [topic.name for topic in admin.ask(ms.ListTopics(), ms.Topics).topics]
        assert node.stop() == 0
        with segment.open("r+b") as file:
            os.pwrite(file.fileno(), good, 200)
        node.start()
        assert group_of(node).info.members == 0


def log_of(folder):
    return b"".join(path.read_bytes() for path in folder.glob("*.log"))


@pytest.mark.parametrize(
    "request_",
    [
        co.SyncGroup("g", "nobody", []),
        co.CommitOffsets("g", "nobody", [co.OffsetCommit(b"x" * 16, 0, 1, -1)]),
        co.CommitOffsets("g", "nobody", [co.OffsetCommit(b"x" * 16, 0, 1, 1)] * 1001),
        co.JoinGroup("g", "", [], None, "sometimes"),
        co.JoinGroup("", "", ["t"], None, "manual"),
        co.JoinGroup("g", "", ["t"] * 300, None, "manual"),
        co.JoinGroup("g", "", [], "(", "manual"),
        co.JoinGroup("g", "", ["t"], None, "manual", None, -1.0),
        co.JoinGroup("g", "", ["t"], None, "manual", None, float("nan")),
        co.JoinGroup("g", "", ["t"], None, "manual", attempt="x" * 65),
        co.JoinGroup("g", "", ["t"], None, "manual", attempt="a b"),
        co.ClaimOffsets("g", "nobody", 1, [co.Claim(b"x" * 16, 0, 1, 5, 4)]),
        co.SeekGroup("g", [co.OffsetSeek(b"?" * 16, 0, 1)]),
        co.DeleteGroup("nothing"),
        co.InitTransactions("", 1.0),
        co.InitTransactions("t", -1.0),
        co.AddPartitions("t", 1, 1, [(b"x" * 16, 0)]),
        co.EndTransaction("t", 1, 1, True),
        co.BeginStage("t", -5),
        co.CommitTransaction("t", 0, ["nothing"]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_garbage_is_refused_and_the_coordinator_serves_on(serving, request_):
    node, member = serving
    with node.attach() as admin, pytest.raises(Refusal, match=r"^\w+Error: "):
        admin.ask(request_, ms.Done)
    assert member.commit(0, 3) == []
    assert describe(node).coordinator["failures"] == 0
    assert "Traceback" not in node.log
