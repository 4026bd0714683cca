"""The guard: each request has its needs, refusals are audited and tell nothing."""

from __future__ import annotations

import json
import logging
import typing

import msgspec
import pytest

from penstock.cluster.access import Entry
from penstock.core.errors import AccessDeniedError, UnknownTopicError
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh
from penstock.server.node.log_format import JsonFormatter
from penstock.server.security.access_store import Access, AccessDocument
from penstock.server.security.audit import DETAILS_SHOWN, LINES_PER_SECOND, AuditLog
from penstock.server.security.authorizer import FREE, LOCAL_ONLY, Guard, local_principal, needs_of

ORDERS, SECRET, GONE = b"o" * 16, b"s" * 16, b"g" * 16
NAMES = {ORDERS: "orders", SECRET: "secret", b"c" * 16: "__coordinator"}
REQUESTS = typing.get_args(ms.ClientMessage)


def entry(text):
    return Entry(*text.split())


@pytest.fixture
def guard(tmp_path):
    def make(*entries):
        access = Access(str(tmp_path))
        access.apply(AccessDocument(entries=[entry(text) for text in entries]))
        return Guard(access, NAMES.get)

    return make


ANYTHING: tuple[object, ...] = (
    "orders", 1, 1.0, True, ORDERS, None, [], {}, lk.LogPlace(0, ORDERS, 0, 0)
)  # fmt: skip


def some(kind):
    """A request of that type, with something in each of its fields."""
    made = {}
    for field in msgspec.structs.fields(kind):
        for value in (*ANYTHING, "describe", "ready"):
            try:
                made[field.name] = msgspec.convert(msgspec.to_builtins(value), field.type)
            except msgspec.ValidationError:
                continue
            break
        else:
            made[field.name] = msgspec.convert(_fields(field.type), field.type)
    return kind(**made)


def _fields(kind) -> dict[str, object]:
    if kind is ms.CleanedSegment:
        return {"base": 0, "end": 0, "length": 0, "sources": []}
    return {field.name: "orders" for field in msgspec.structs.fields(kind) if field.required}


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_request_says_what_it_needs(kind):
    needs = needs_of(some(kind))
    if kind in LOCAL_ONLY:
        assert needs is None
        return
    assert needs is not None, f"{kind.__name__} is in no table of the guard"
    assert (list(needs) == []) == (kind in FREE or kind is lk.LookUpAppends)


@pytest.mark.parametrize(
    "kind", [kind for kind in REQUESTS if kind not in FREE and kind is not lk.LookUpAppends],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_without_an_entry_every_request_is_refused_and_audited(guard, caplog, kind):
    watch = guard("bob allow read topic x")
    with pytest.raises((AccessDeniedError, UnknownTopicError)):
        watch.check_request("ann", some(kind))
    assert watch.audit.count == 1
    [line] = [one for one in caplog.records if one.name == "penstock.audit"]
    assert line.principal == "ann"
    watch.check_request(local_principal(1000), some(kind))  # rule 28
    assert watch.audit.count == 1


@pytest.mark.rule(28)
def test_rule_28_local_principals_are_super_users(guard):
    watch = guard("* deny all topic *", "* deny all cluster *")
    watch.check(local_principal(1000), "delete", "topic", "orders")
    watch.check_request(local_principal(0), ms.DescribeNode())
    assert watch.sees(local_principal(0), "topic", "orders")
    assert watch.audit.count == 0


def test_there_and_not_there_read_alike_to_those_without_describe(guard):
    watch = guard("ann allow read topic other", "ann allow write transactional_id t")

    def said(what):
        with pytest.raises((AccessDeniedError, UnknownTopicError)) as caught:
            what()
        return type(caught.value), str(caught.value)

    there = said(lambda: watch.check_request("ann", ms.FindTopic("orders")))
    gone = said(lambda: watch.check_request("ann", ms.FindTopic("ordesr")))
    assert there[0] is gone[0] is AccessDeniedError
    wanted = said(lambda: watch.check_request("ann", ms.FindTopic("orders", "write")))
    assert "may not write topic 'orders'" in wanted[1]
    assert "acl add ann write topic" in wanted[1]
    assert there[1].replace("orders", "ordesr") == gone[1]
    add = [co.AddPartitions("t", 1, 1, [(topic_id, 0)]) for topic_id in (SECRET, GONE)]
    there, gone = (said(lambda ask=ask: watch.check_request("ann", ask)) for ask in add)
    assert there[0] is gone[0] is UnknownTopicError
    assert there[1].replace(SECRET.hex(), GONE.hex()) == gone[1]
    assert "secret" not in there[1]


def test_who_may_describe_is_told_what_is_missing(guard):
    watch = guard("ann allow describe topic secret", "ann allow write transactional_id t")
    with pytest.raises(AccessDeniedError, match="may not write topic 'secret'"):
        watch.check_request("ann", co.AddPartitions("t", 1, 1, [(SECRET, 0)]))


def test_joining_needs_the_group_each_topic_and_all_that_a_pattern_may_match(guard):
    watch = guard("ann allow read group g", "ann allow read topic acme.*")

    def join(topics, pattern=None):
        watch.check_request("ann", co.JoinGroup("g", "", topics, pattern, "at-least-once"))

    join(["acme.a", "acme.b"])
    join([], r"acme\.o.*")
    for topics, pattern in ((["acme.a", "orders"], None), ([], "acme.*"), ([], ".*")):
        with pytest.raises(AccessDeniedError):
            join(topics, pattern)
    with pytest.raises(AccessDeniedError):
        watch.check_request("ann", co.SyncGroup("other", "m", []))


def test_saying_how_far_a_group_is_needs_what_a_commit_does_and_moving_it_more(guard):
    watch = guard("ann allow read group g", "ann allow read topic orders")
    there = [co.OffsetSeek(ORDERS, 0, 7)]
    watch.check_request("ann", co.SeekGroup("g", there, is_report=True))
    for refused in (
        co.SeekGroup("g", there),
        co.SeekGroup("h", there, is_report=True),
        co.SeekGroup("g", [*there, co.OffsetSeek(SECRET, 0, 7)], is_report=True),
    ):
        with pytest.raises((AccessDeniedError, UnknownTopicError)):
            watch.check_request("ann", refused)
    watch = guard("ann allow alter group g", "ann allow describe topic orders")
    watch.check_request("ann", co.SeekGroup("g", there))
    with pytest.raises(UnknownTopicError):
        watch.check_request("ann", co.SeekGroup("g", [co.OffsetSeek(SECRET, 0, 7)]))
    with pytest.raises(AccessDeniedError):
        watch.check_request("ann", co.SeekGroup("g", there, is_report=True))


def test_ending_a_transaction_needs_the_groups_whose_offsets_and_jobs_it_commits(guard):
    watch = guard("ann allow write transactional_id t", "ann allow read group g")
    end = [co.EndTransaction("t", 1, 1, True, [co.GroupOffsets(group, "m", [])]) for group in "gh"]
    done = [co.EndTransaction("t", 1, 1, True, done=[sh.DoneJobs(it, "m", [])]) for it in "gh"]
    for allowed, refused in (end, done):
        watch.check_request("ann", allowed)
        with pytest.raises(AccessDeniedError, match="'h'"):
            watch.check_request("ann", refused)


def test_a_refusal_names_the_command_that_would_help(guard):
    watch = guard("bob allow read topic x")
    with pytest.raises(AccessDeniedError, match=r"acl add ann describe cluster '\*'`"):
        watch.check("ann", "describe", "cluster", "cluster")
    with pytest.raises(AccessDeniedError, match=r"acl add ann write topic \.\.\.`"):
        watch.check("ann", "write", "topic", "y")


def test_an_action_upon_the_cluster_is_told_with_what_it_names(guard, caplog):
    caplog.set_level(logging.INFO, "penstock.audit")
    watch = guard()
    for request in (
        cg.DrainBroker(3),
        cg.DrainBroker(3, undo=True),
        op.KickClient(17, broker=2),
        op.ChangeSettings({f"name\n{number}": number for number in range(100)}),
        ms.DeleteTopic("orders"),
    ):
        watch.allowed("ann", request)
    lines = [one for one in caplog.records if one.name == "penstock.audit"]
    assert [line.details for line in lines[:3]] == [
        "broker=3", "broker=3, undo=True", "number=17, broker=2",
    ]  # fmt: skip
    assert lines[1].message == (
        "allowed: ann to alter cluster 'cluster' (DrainBroker broker=3, undo=True)"
    )
    assert "\n" not in lines[3].message
    assert len(lines[3].message) < DETAILS_SHOWN + 100
    assert lines[4].message == "allowed: ann to delete topic 'orders' (DeleteTopic)"


def test_nobody_writes_to_the_nodes_own_topics(guard):
    everything = guard()
    assert everything.allows("anonymous", "read", "topic", "__coordinator")
    assert not everything.allows("anonymous", "write", "topic", "__coordinator")
    with pytest.raises(AccessDeniedError):
        everything.check_topic("anonymous", "write", b"c" * 16)
    all_topics = guard("ann allow all topic *")
    assert not all_topics.allows("ann", "read", "topic", "__coordinator")
    assert guard("ann allow read topic __*").allows("ann", "read", "topic", "__coordinator")


def test_the_audit_is_bounded_by_principal_and_counts_all(caplog):
    audit = AuditLog()
    for _ in range(1000):
        audit.refused(5.0, "mallory", "read", "topic", "x" * 1000)
    audit.refused(5.0, "ann", "read", "topic", "y")
    lines = [one for one in caplog.records if one.name == "penstock.audit"]
    assert len(lines) <= LINES_PER_SECOND + 2
    assert lines[-1].principal == "ann"
    assert max(len(one.message) for one in lines) < 300
    assert audit.count == 1001
    caplog.clear()
    audit.refused(7.0, "mallory", "read", "topic", "z")
    [line] = caplog.records
    assert f"{line.left_out} more" in line.message
    assert line.left_out + LINES_PER_SECOND >= 999


def test_an_audit_line_is_one_object_of_json(guard, caplog):
    watch = guard("bob allow read topic x")
    with caplog.at_level(logging.INFO), pytest.raises(AccessDeniedError):
        watch.check("ann", "write", "topic", 'a"b\nc')
    told = json.loads(JsonFormatter("gateway").format(caplog.records[-1]))
    assert told["logger"] == "penstock.audit"
    assert (told["principal"], told["operation"], told["kind"]) == ("ann", "write", "topic")
    assert "\n" not in caplog.records[-1].getMessage()
