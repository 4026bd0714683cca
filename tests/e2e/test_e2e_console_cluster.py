"""The console's pages of the cluster, of access and of transactions, by a key that may do some of
it: what it may not, it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import call_cli
from console_visitor import Visitor, visiting

import penstock
from penstock.client.admin.access import AccessEntry
from penstock.console.pages.security import AccessQuestion, may
from penstock.testing import Broker, Cluster, wait_until


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    node.create_topic("orders")
    with visiting(node.url) as found:
        yield found


def test_a_node_that_is_alone_says_so(visitor: Visitor) -> None:
    page = visitor.get("/cluster")
    assert "This node is alone" in page
    assert "Writer Process Generation" in page


def test_brokers_and_leaders_are_shown_and_changed() -> None:
    with Cluster(brokers=1) as cluster, visiting(cluster.url) as visitor:
        cluster.create_topic("orders", partitions=2, replication_factor=1)
        wait_until(
            lambda: "All replicas are in sync." in visitor.get("/cluster"), what="the cluster"
        )
        page = visitor.get("/cluster")
        assert "1 (controller) up" in page
        assert "1 leader" in page
        page = visitor.get("/topic", name="orders")
        assert "Leader Replicas In sync" in page
        assert "Brokers up 1/1" in visitor.get("/")
        plan = visitor.plan("/cluster/drain", broker="1")
        assert "penstock cluster drain 1 -b tcp://" in plan
        assert "nobody could take over" in visitor.do("/cluster/drain", 400, broker="1")
        assert "may lead again" in visitor.do("/cluster/drain", broker="1", undo="yes")
        form = {"topic": "orders", "brokers": "1"}
        assert "2 partitions get the replicas 1" in visitor.plan("/cluster/reassign", **form)
        assert "have another leader" in visitor.do("/cluster/elect")
        refused = visitor.post("/cluster/reassign", 400, topic="orders", brokers="one")
        assert "by their numbers" in refused


# --- access ---------------------------------------------------------------------------------------
def test_a_console_may_do_what_its_key_may(tmp_path: Path) -> None:
    file = tmp_path / "ann.key"
    with Broker(listen=True) as broker:
        broker.create_topic("orders")
        broker.create_topic("secrets")
        made = call_cli("keys", "create", "ann", "--out", str(file), url=broker.node.url)
        assert made.code == 0, made.err
        with penstock.connect(broker.node.url) as client, client.admin() as admin:
            admin.add_access(AccessEntry("ann", "allow", "read", "topic", "orders"))
        with visiting(broker.tcp_url, keys=str(file)) as visitor:
            wait_until(lambda: visitor.client.get("/").status_code == 200, what="the key counts")
            page = visitor.get("/topics")
            assert "orders" in page
            assert "secrets" not in page
            assert "0 records" in visitor.get("/records", topic="orders")
            refused = visitor.get("/records", 403, topic="secrets")
            assert "Refused" in refused
            assert "ann" in refused
            for path, form in (
                ("/topic/create", {"name": "mine"}),
                ("/record/produce", {"topic": "orders", "value": "1"}),
                ("/security/add", {"principal": "ann", "operation": "all", "kind": "topic"}),
            ):
                assert "Refused" in visitor.do(path, 403, **form), path
            deleted = visitor.do("/topic/delete", 403, name="orders", typed="orders")
            assert "ann" in deleted
            assert "Refused" in visitor.get("/security", 403)
        with penstock.connect(broker.node.url) as client, client.admin() as admin:
            assert admin.list_topics() == ["orders", "secrets"]


def test_a_question_is_answered_by_the_rules_of_the_node(visitor: Visitor) -> None:
    asked = {"principal": "ann", "operation": "write", "kind": "topic", "name": "orders"}
    assert "neither entries nor keys" in visitor.get("/security", **asked)
    form = {"principal": "ann", "operation": "write", "kind": "topic", "name": "orders*"}
    plan = visitor.plan("/security/add", **form)
    assert "penstock acl add ann write topic 'orders*'" in plan
    assert "From the first entry on" in plan
    assert "The entry is added." in visitor.do("/security/add", **form)
    assert "Yes: ann may write topic orders: an entry allows it." in visitor.get(
        "/security", **asked
    )
    asked["operation"] = "delete"
    assert "No: ann may not delete topic orders: no entry allows it." in visitor.get(
        "/security", **asked
    )
    assert "The entry is removed." in visitor.do("/security/remove", **form, effect="allow")
    assert "is none of" in visitor.get("/security", 400, **(asked | {"kind": "moon"}))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (AccessQuestion("bob", "read", "topic", "a"), "an entry allows it"),
        (AccessQuestion("bob", "read", "topic", "secret"), "an entry denies it"),
        (AccessQuestion("bob", "write", "topic", "acme.x", "acme"), "its own namespace"),
        (AccessQuestion("bob", "write", "topic", "x", "acme"), "no entry allows it"),
    ],
)
def test_an_answer_has_its_reason(question: AccessQuestion, answer: str) -> None:
    entries = [
        AccessEntry("*", "allow", "read", "topic", "*"),
        AccessEntry("bob", "deny", "read", "topic", "secret"),
    ]
    assert answer in may(question, entries, keys=True)[1]


# --- transactions ---------------------------------------------------------------------------------
def test_an_open_transaction_is_aborted(node: Broker, visitor: Visitor) -> None:
    with node.connect() as client:
        producer = client.producer(transactional_id="billing")
        producer.begin_transaction()
        producer.send_and_wait("orders", b"1")
        page = visitor.get("/transactions")
        assert "billing open" in page
        plan = visitor.plan("/transactions/abort", id="billing")
        assert "penstock transaction abort billing" in plan
        done = visitor.do("/transactions/abort", id="billing")
        assert "What billing had open is aborted." in done
        with pytest.raises(penstock.PenstockError):
            producer.commit_transaction()
        with client.consumer("orders", follow=False, isolation="read-committed") as consumer:
            assert list(consumer) == []
        assert "it is ready" in visitor.post("/transactions/abort", 502, id="billing")


def test_the_command_aborts_as_well(node: Broker) -> None:
    with node.connect() as client:
        producer = client.producer(transactional_id="nightly")
        producer.begin_transaction()
        producer.send_and_wait("orders", b"1")
        asked = call_cli("transaction", "abort", "nightly", url=node.url)
        assert (asked.code, "--yes" in asked.err) == (2, True)
        ran = call_cli("transaction", "abort", "nightly", "--yes", url=node.url)
        assert (ran.code, "(open)" in ran.err) == (0, True)
        again = call_cli("transaction", "abort", "nightly", "--yes", url=node.url)
        assert (again.code, "it is ready" in again.err) == (1, True)
        unknown = call_cli("transaction", "abort", "none", "--yes", url=node.url)
        assert "no transactional id" in unknown.err
        stage = client.stage("loader", 1)
        stage.send("orders", b"2")
        stage.flush()
        staged = call_cli("transaction", "abort", "loader", "--yes", url=node.url)
        assert (staged.code, "(staged)" in staged.err) == (0, True)
