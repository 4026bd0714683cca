"""`penstock doctor`: what it finds at a node that is well, at one that is not, and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import replace

import pytest
from cli_runner import call_cli, cli_process
from group_fixture import fill

from penstock.cli import diagnosis
from penstock.client.admin.groups import GroupDescription
from penstock.client.transactions.listing import TransactionDescription
from penstock.operations import judgement
from penstock.server.config import NodeConfig
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.local("the doctor looks at the host of the node")

STALL_TIMEOUT = NodeConfig("x").stall_timeout
LOOKS = {"node", "versions", "clock", "processes, partitions and disk", "open files",
         "shared memory", "leftovers", "transactions", "groups"}  # fmt: skip


@pytest.fixture
def group(node) -> GroupDescription:
    """One member that has four records in hand, and a lag of ten."""
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with (
        node.connect() as client,
        client.consumer(topic, group=topic, guarantee="manual") as consumer,
        client.admin() as admin,
    ):
        consumer.poll(2, timeout=25)
        consumer.commit({(topic, 0): 0})
        consumer.poll(2, timeout=25)
        consumer.poll(1)
        found: GroupDescription = admin.describe_group(topic)
        return found


def said(group: GroupDescription) -> list[str]:
    return [each.what for each in judgement.judge_group(group)]


def test_a_node_that_is_well(node):
    fill(node, node.create_topic(), 0, 1)
    ran = call_cli("doctor", "--json", url=node.url)
    found = json.loads(ran.out)
    of_this_machine = ("shared memory", "disk")
    wrong = [each for each in found["findings"] if each["is_wrong"]]
    assert [each for each in wrong if each["subject"] not in of_this_machine] == []
    assert (found["healthy"], ran.code) == (not wrong, int(bool(wrong)))
    assert set(found["looked_at"]) == LOOKS
    text = call_cli("doctor", url=node.url).lines[-1]
    assert "; looked at node, versions, clock, processes, partitions and disk, " in text


def test_a_writer_that_is_stopped(node):
    fill(node, node.create_topic(), 0, 1)
    with node.connect() as client, client.admin() as admin:
        pid = next(each.pid for each in admin.describe_node().writers if each.pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: f"(pid {pid}) is stopped" in call_cli("doctor", url=node.url).out.decode(),
            what="a finding",
        )
        ran = call_cli("doctor", url=node.url)
    finally:
        os.kill(pid, signal.SIGCONT)
    at = next(at for at, line in enumerate(ran.lines) if f"(pid {pid}) is stopped" in line)
    assert "kill -CONT" in ran.lines[at + 1]


def test_no_node(tmp_path):
    found = json.loads(call_cli("doctor", "--json", url=f"shm://{tmp_path}").out)
    assert not found["healthy"]
    assert found["findings"][0]["subject"] == "node"
    assert "penstock serve" in found["findings"][0]["what"]


def test_a_member_that_does_not_poll_is_stuck(group):
    assert said(group) == []
    [member] = group.members
    late = replace(group, members=[replace(member, poll_seconds=95.0)])
    [what] = said(late)
    assert "has not polled for 95 s: lag 10, 4 in hand" in what


def test_a_member_that_polls_and_does_not_commit(group):
    parts = [replace(one, committed_at=one.committed_at - 400.0) for one in group.partitions]
    [what] = said(replace(group, partitions=parts))
    assert "polls, and has committed nothing for 400 s: lag 10, 4 in hand" in what


def test_a_group_that_is_behind_without_members(group):
    alone = replace(group, members=[])
    [found] = judgement.judge_group(alone)
    assert (found.what, found.is_wrong) == ("lag 10, and no member works on it", False)
    assert "delete" not in found.advice
    [found] = judgement.judge_group(alone, {17: {(group.group, 0)}})
    assert found.what.endswith("; pid 17, which reads from its partitions, is stopped")
    assert "`kill -CONT 17`" in found.advice


def test_a_consumer_that_is_stopped(node):
    topic = node.create_topic()
    fill(node, topic, 0, 3)
    with (
        node.connect() as client,
        client.admin() as admin,
        cli_process("consume", topic, "--group", topic, "--follow", url=node.url) as process,
    ):
        for _ in range(3):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        fill(node, topic, 3, 4)
        found = json.loads(call_cli("doctor", "--json", url=node.url).out)["findings"]
        top = call_cli("top", "--once", "-i", "0.1", "--format", "json", url=node.url).objects[0]
        assert admin.describe_group(topic).lag >= 4
        is_late = time.monotonic() - stopped > STALL_TIMEOUT
    [said] = [each for each in found if each["subject"] == f"group {topic}"]
    if is_late and "no member works on it" in said["what"]:
        return  # the machine was too busy: its group has let it go
    assert re.search(rf"pid {process.pid}\b.* is stopped", said["what"]), said
    assert f"`kill -CONT {process.pid}`" in said["advice"]
    [row] = [row for row in top["consumers"] if row["pid"] == process.pid]
    assert row["state"] == "stopped"


def test_stages_and_transactions_that_hold_readers_back(node, monkeypatch):
    monkeypatch.setattr(diagnosis, "HELD_MIN", 0.0)
    topic = node.create_topic()
    fill(node, topic, 0, 3)
    with (
        node.connect() as client,
        client.stage(f"{topic}-job", 7) as stage,
        client.producer(transactional_id=f"{topic}-id") as producer,
    ):
        stage.send(topic, b"1", partition=0)
        stage.flush(20)
        producer.begin_transaction()
        producer.send_and_wait(topic, b"2", partition=0, timeout=20)
        held = json.loads(call_cli("doctor", "--json", url=node.url).out)["findings"]
        described = call_cli("topic", "describe", topic, url=node.url)
        opened = call_cli("transaction", "list", "--open", "--format", "json", url=node.url).objects
        producer.abort_transaction()
    said = {each["what"]: each for each in held if each["subject"] == "transactions"}
    first = next(what for what in said if f"a stage of '{topic}-job' (epoch 7)" in what)
    second = next(what for what in said if f"a transaction of '{topic}-id'" in what)
    for what in (first, second):
        assert f" s in {topic}; offsets above the last stable one: {topic}-0 " in what
        assert not said[what]["is_wrong"]
    assert "run its job again" in said[first]["advice"]
    assert {each["transactional_id"]: each["topics"] for each in opened} == {
        f"{topic}-job": [topic], f"{topic}-id": [topic],
    }  # fmt: skip
    heads, row, *_ = (line.split() for line in described.lines[2:])
    shown = dict(zip(heads, row, strict=False))
    assert (shown["STABLE"], int(shown["END"]) > 3) == ("3", True)
    assert "penstock transaction list --open" in described.err


def test_a_transaction_that_is_open_for_long_is_wrong():
    opened = TransactionDescription("payments", "open", 1, 0, 1, 61.0)
    found = judgement.judge_transaction(opened, [])
    assert found.is_wrong
    assert found.what.endswith("has held readers of committed records back for 61 s")
