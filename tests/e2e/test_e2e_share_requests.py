"""What the coordinator answers workers of share groups, and what stays of it."""

from __future__ import annotations

import itertools
import os

import pytest
from cli_runner import call_cli
from group_members import RawMember
from node_helpers import NodeProcess, Refusal, eventually
from share_workers import RawWorker, WorkerProcess, offsets

import penstock
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.ipc import paths
from penstock.ipc import sharing as sh

NAMES = (f"jobs-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with NodeProcess(tmp_path_factory.mktemp("serving") / "data", "--writers", "1") as made:
        made.start()
        yield made


@pytest.fixture
def topic(serving):
    with serving.attach() as admin:
        return admin.create(next(NAMES), partitions=2)


def socket_of(node):
    return paths.socket_in(node.folder)


def worker_of(node, topic, group="resize", **options):
    return RawWorker(socket_of(node), f"{group}.{topic.name}", topic, **options)


@pytest.fixture
def worker(serving, topic):
    made = worker_of(serving, topic)
    yield made
    made.close(bye=True)


def test_two_workers_share_a_partition_and_none_gets_what_another_has(serving, topic, worker):
    other = worker_of(serving, topic)
    worker.acquire(3, ends={0: 8})
    other.acquire(3, ends={0: 8})
    worker.acquire(3, ends={0: 8})
    assert offsets(worker.leases) == [(0, n) for n in (0, 1, 2, 6, 7)]
    assert offsets(other.leases) == [(0, n) for n in (3, 4, 5)]
    assert other.acquire(3, ends={0: 8}).leases == []
    assert other.acquire(3, ends={0: 8}).frontiers == [8]
    first = worker.leases[0]
    assert worker.answer(first, accepted=[(0, 3)]).stale == [[]]
    assert worker.answer(first, accepted=[(0, 3)]).stale == [[(0, 3)]]
    [found] = worker.describe().partitions
    assert (found.floor, found.frontier, found.leased) == (3, 8, 5)
    other.close(bye=True)


def test_an_answer_for_a_lease_of_another_worker_is_stale_and_changes_nothing(
    serving, topic, worker
):
    """As of a worker whose lease a power cut took, and whose number another one got since."""
    other = worker_of(serving, topic)
    [lease] = other.acquire(6, ends={0: 6}).leases
    told = {
        "accepted": [(0, 1)], "released": [(1, 2)], "skipped": [(4, 5)],
        "failed": [sh.FailedRuns([(2, 3)], "no")], "rejected": [sh.FailedRuns([(3, 4)], "no")],
        "delayed": [sh.DelayedRuns([(5, 6)], 1)],
    }  # fmt: skip
    assert worker.answer(lease, **told).stale == [[(n, n + 1) for n in range(6)]]
    assert other.describe().leased == {other.member_id: 6}
    assert other.answer(lease, accepted=[(0, 6)]).stale == [[]]
    other.close(bye=True)


def test_what_failed_comes_again_after_its_delay_and_counts(worker):
    [lease] = worker.acquire(2, ends={0: 2}).leases
    worker.answer(lease, failed=[sh.FailedRuns([(0, 1)], "no", 0.05)])
    worker.sync()
    found = worker.acquire(5, ends={0: 2})
    if not found.leases:  # it waits for its time, and a notice comes then
        worker.wait_notice()
        found = worker.acquire(5, ends={0: 2})
    assert found.leases[0].deliveries == [(2, 0, 1)]
    worker.answer(found.leases[0], released=[(0, 1)])
    [again] = worker.acquire(5, ends={0: 2}).leases
    assert again.deliveries == [(2, 0, 1)], "a release counts for nothing"


def test_what_fails_too_often_is_condemned_told_with_its_story_and_buried_once(worker):
    settings = sh.ShareSettings(max_deliveries=2, backoff_min=0.0, backoff_max=0.0)
    worker.acquire(0, settings=settings)
    assert worker.describe().settings == settings
    for reason in ("first", "second"):
        [lease] = worker.acquire(1, ends={1: 1}).leases
        worker.answer(lease, failed=[sh.FailedRuns([(0, 1)], reason)])
    [told] = worker.acquire(1, ends={1: 1}).condemned
    assert (told.partition, told.offset, told.deliveries) == (1, 0, 2)
    assert [(it.member_id, it.reason) for it in told.failures] == [
        (worker.member_id, "first"), (worker.member_id, "second"),
    ]  # fmt: skip
    bury = sh.BuryRecords(worker.group, worker.member_id, told.topic_id, 1, [(0, 1)])
    worker.client.ask(bury, ms.Done)
    assert worker.acquire(1, ends={1: 1}).condemned == []
    [found] = worker.describe().partitions
    assert (found.floor, found.condemned) == (1, 0)
    worker.client.ask(bury, ms.Done)


def test_what_a_killed_worker_had_goes_to_another_that_waits(serving, topic, worker):
    with WorkerProcess(socket_of(serving), worker.group, topic.name, 4) as process:
        assert process.held == [(0, n) for n in range(4)]
        assert worker.acquire(9, ends={0: 4}).leases == []
        before = worker.slot.notice
        process.process.kill()
        eventually(lambda: worker.slot.notice != before, "a notice")
    for offset in range(4):  # one by one, since one of them may have ended it
        [lease] = worker.acquire(9, ends={0: 4}).leases
        assert (lease.runs, lease.deliveries) == (
            [(offset, offset + 1)], [(2, offset, offset + 1)],
        )  # fmt: skip
        worker.answer(lease, accepted=[(offset, offset + 1)])


def test_leases_waits_and_counts_outlive_the_node(tmp_path):
    with NodeProcess(tmp_path / "data", "--writers", "1") as node:
        node.start()
        with node.attach() as admin:
            topic = admin.create("jobs")
        worker = worker_of(node, topic)
        worker.acquire(0, settings=sh.ShareSettings(max_deliveries=9, backoff_min=60.0))
        [lease] = worker.acquire(6, ends={0: 10}).leases
        worker.answer(lease, accepted=[(0, 2)], failed=[sh.FailedRuns([(2, 3)], "no", 3600.0)])
        for _ in range(3):
            before = worker.describe()
            node.kill()
            node.start()
            worker.connect()
            after = worker.describe()
            assert (after.settings, after.partitions) == (before.settings, before.partitions)
            assert after.leased == {worker.member_id: 3}
        assert worker.answer(lease, accepted=[(3, 6)]).stale == [[]]
        assert offsets(worker.acquire(9, ends={0: 10}).leases) == [(0, n) for n in range(6, 10)]
        worker.close()


def test_a_deleted_group_and_a_deleted_topic_leave_nothing(serving, topic):
    worker = worker_of(serving, topic)
    worker.acquire(5, ends={0: 5, 1: 5})
    worker.leave()
    worker.client.ask(co.DeleteGroup(worker.group), ms.Done)
    assert worker.describe().partitions == []
    worker.close(bye=True)
    worker = worker_of(serving, topic)
    assert offsets(worker.acquire(1, ends={0: 5}).leases) == [(0, 0)], "it begins again"
    worker.client.ask(ms.DeleteTopic(topic.name), ms.Done)
    eventually(lambda: worker.describe().partitions == [])
    worker.close(bye=True)


def test_bad_requests_are_refused_and_change_nothing(serving, topic, worker):
    plain = RawMember(socket_of(serving), f"plain.{topic.name}", topic.name)
    for message, request in {
        "is no share group": sh.AcquireRecords(plain.group, plain.member_id, 1),
        "nobody": sh.AcquireRecords(worker.group, "nobody", 1),
        "max_deliveries": sh.AcquireRecords(
            worker.group, worker.member_id, 0, settings=sh.ShareSettings(max_deliveries=256)
        ),
        "'middle'": sh.AcquireRecords(
            worker.group, worker.member_id, 0, settings=sh.ShareSettings(start="middle")
        ),
        "ascending": sh.AcquireRecords(
            worker.group, worker.member_id, 0,
            answers=[sh.LeaseAnswer(topic.topic_id, 0, 1, accepted=[(5, 3)])],
        ),
        "there is no partition 7": sh.SeekShare(worker.group, topic.topic_id, 7, 0),
    }.items():  # fmt: skip
        worker.acquire(1, ends={0: 1})
        with pytest.raises(Refusal, match=message):
            worker.client.ask(request, ms.Done)
    for member, other in ((worker, "manual"), (plain, "shared")):
        for why in ("its members have", "until it is deleted"):
            join = co.JoinGroup(member.group, "", [topic.name], None, other)
            with pytest.raises(Refusal, match=why):
                worker.client.ask(join, ms.Done)
            member.leave()
    plain.close(bye=True)


def test_a_seek_makes_leases_void(worker):
    [lease] = worker.acquire(5, ends={0: 10}).leases
    worker.client.ask(sh.SeekShare(worker.group, worker.topic.topic_id, 0, 8), ms.Done)
    assert worker.answer(lease, accepted=[(0, 5)]).stale == [[(0, 5)]]
    assert offsets(worker.acquire(5, ends={0: 10}).leases) == [(0, 8), (0, 9)]


def test_operators_see_and_move_share_groups(serving, topic, worker):
    url = f"shm://{serving.folder}"
    with penstock.connect(url) as client, client.producer() as producer:
        for number in range(9):
            producer.send(topic.name, b"%d" % number, partition=0)
    worker.acquire(0, settings=sh.ShareSettings(max_deliveries=7))
    [lease] = worker.acquire(6, ends={0: 9}).leases
    worker.answer(lease, accepted=[(0, 2)], rejected=[sh.FailedRuns([(2, 3)], "broken")])
    told = call_cli("group", "describe", worker.group, url=url)
    assert told.code == 0
    assert "7 deliveries, backoff 1 to 300 s, 7 records not done" in told.lines[1]
    numbers = ["0", "2", "6", "9", "0", "0", "3", "1", "0", "7", "-"]
    assert told.lines[3].split() == [topic.name, *numbers]
    assert told.lines[5].split() == [worker.member_id, "3"]
    [found] = call_cli("group", "describe", worker.group, "--format", "json", url=url).objects
    assert found["share"]["counts"]["accepted"] == 2
    seek = ("group", "seek", worker.group, topic.name, "-p", "0", "--to", "1", "-y")
    assert call_cli(*seek, url=url).code == 0
    assert worker.answer(lease, accepted=[(3, 6)]).stale == [[(3, 6)]]
    assert offsets(worker.acquire(2, ends={0: 9}).leases) == [(0, 1), (0, 2)]
    assert f"{worker.group}" in call_cli("group", "list", "resize*", url=url).lines
    pause = ("group", "pause", worker.group, "--reason", "database away")
    assert call_cli(*pause, url=url).code == 0
    told = call_cli("group", "describe", worker.group, url=url)
    assert told.lines[2].startswith("paused since ")
    assert told.lines[2].endswith(f" by user:{os.getuid()}: database away")
    answer = worker.acquire(2, ends={0: 9})
    assert (answer.leases, answer.is_paused) == ([], True)
    before = worker.slot.notice
    assert call_cli("group", "resume", worker.group, url=url).code == 0
    eventually(lambda: worker.slot.notice != before, "a notice")
    assert call_cli("group", "pause", "nobody", url=url).code == 1
    worker.leave()
    assert call_cli("group", "delete", worker.group, "-y", url=url).code == 0
    assert "nobody has joined" in call_cli("group", "describe", worker.group, url=url).lines[0]
