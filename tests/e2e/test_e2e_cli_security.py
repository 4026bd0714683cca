"""`penstock keys`, `penstock acl`, `penstock quota`: what they do, say, and never show."""

from __future__ import annotations

import json

import pytest
from cli_runner import call_cli

import penstock
from penstock.security.keys import load_cluster_key
from penstock.testing.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    with EmbeddedNode(folder / "d", listen=True) as node:
        yield node, folder


@pytest.fixture
def cli(served):
    node, _ = served
    return lambda *arguments: call_cli(*arguments, url=node.url)


def test_keys_from_their_making_to_their_end(served, cli):
    node, folder = served
    file = folder / "ann.key"
    made = cli("keys", "create", "ann", "--out", str(file), "--namespace", "acme")
    assert (made.code, made.out) == (0, b"")
    assert str(file) in made.err
    secret = json.loads(file.read_text())["secret"]
    server = json.loads((node.data / "keys/server.json").read_text())
    [listed] = cli("keys", "list", "--format", "json").objects
    assert (listed["name"], listed["principal"], listed["namespace"]) == ("ann", "ann", "acme")
    shown = cli("keys", "show-server")
    assert shown.lines == [server["public"]]
    again = cli("keys", "create", "ann", "--out", str(folder / "other"))
    assert again.code == 2
    assert "already" in again.err
    wide = cli("keys", "list", "--format", "wide")
    revoked = cli("keys", "revoke", "ann", "--yes")
    assert (revoked.code, cli("keys", "list", "--format", "json").objects) == (0, [])
    unknown = cli("keys", "revoke", "ann", "--yes")
    assert (unknown.code, "no key 'ann'" in unknown.err) == (2, True)
    for ran in (made, shown, again, wide, revoked):
        assert secret not in ran.out.decode() + ran.err
        assert server["secret"] not in ran.out.decode() + ran.err


def test_the_key_of_a_cluster_is_made_once_and_never_shown(tmp_path):
    file = tmp_path / "cluster.key"
    made, again = (call_cli("keys", "create-cluster", "--out", str(file)) for _ in range(2))
    assert (made.code, again.code) == (0, 2)
    assert file.stat().st_mode & 0o777 == 0o600
    secret = load_cluster_key(file).secret
    assert secret not in made.out.decode() + made.err + again.err


def test_keys_are_made_before_the_node_is(tmp_path):
    data, file = tmp_path / "new", tmp_path / "k"
    ran = call_cli("keys", "create", "k", "--out", str(file), "--data", str(data))
    assert ran.code == 0
    assert data.stat().st_mode & 0o777 == 0o700
    with (
        EmbeddedNode(data, listen=True) as node,
        penstock.connect(node.tcp_url, keys=file, transport="tcp", timeout=10),
    ):
        pass


def test_keys_of_a_node_elsewhere_are_not_made_here(tmp_path):
    ran = call_cli("keys", "list", url="tcp://127.0.0.1:9")
    assert ran.code == 2
    assert "--data" in ran.err


def test_entries_are_added_listed_and_removed(cli):
    assert cli("acl", "add", "ann", "read", "topic", "orders.*").code == 0
    assert cli("acl", "add", "*", "all", "topic", "orders.secret", "--deny").code == 0
    assert cli("acl", "add", "ops", "describe", "cluster").code == 0
    assert "there already" in cli("acl", "add", "ops", "describe", "cluster").err
    found = cli("acl", "list", "--format", "json").objects
    assert [(one["principal"], one["effect"], one["name"]) for one in found] == [
        ("ann", "allow", "orders.*"), ("*", "deny", "orders.secret"), ("ops", "allow", "*"),
    ]  # fmt: skip
    assert len(cli("acl", "list", "ann", "--format", "json").objects) == 2
    assert cli("acl", "list").lines[0].split() == [
        "PRINCIPAL", "EFFECT", "OPERATION", "KIND", "NAME",
    ]  # fmt: skip
    for wrong in (
        ("ann", "fly", "topic", "x"), ("ann", "read", "queue", "x"), ("user:0", "read", "topic")
    ):  # fmt: skip
        assert cli("acl", "add", *wrong).code == 2
    assert cli("acl", "remove", "ann", "read", "topic", "orders").code == 1
    for entry in (
        ("ann", "read", "topic", "orders.*"), ("*", "all", "topic", "orders.secret", "--deny"),
        ("ops", "describe", "cluster"),
    ):  # fmt: skip
        assert cli("acl", "remove", *entry).code == 0
    assert cli("acl", "list", "--format", "json").objects == []


def test_quotas_are_set_bound_by_bound(cli):
    assert cli("quota", "set", "ann", "--produce", "10MiB").code == 0
    assert cli("quota", "set", "ann", "--consume", "1MB", "--connections", "3").code == 0
    assert cli("quota", "set", "*", "--client-id", "etl", "--produce", "5").code == 0
    assert cli("quota", "limit", "acme", "--topics-max", "7").code == 0
    every, ann, acme = cli("quota", "list", "--format", "json").objects
    assert (every["client_id"], every["produce_bytes"]) == ("etl", 5)
    assert (ann["produce_bytes"], ann["consume_bytes"], ann["connections_max"]) == (
        10 << 20, 10**6, 3,
    )  # fmt: skip
    assert (acme["namespace"], acme["topics_max"], acme["partitions_max"]) == ("acme", 7, None)
    assert "acme" in cli("quota", "list").lines[-1]
    used = cli("quota", "show", "acme", "--format", "json").objects
    assert {"namespace": "acme", "limit": "topics_max", "used": 0, "most": 7} in used
    assert cli("quota", "show", "nobody").code == 2
    assert cli("quota", "set", "ann").code == 2
    assert cli("quota", "set", "ann", "--client-id", "x", "--connections", "1").code == 2
    assert cli("quota", "remove", "ann").code == 0
    assert cli("quota", "remove", "*", "--client-id", "etl").code == 0
    assert cli("quota", "limit", "acme").code == 0
    assert cli("quota", "list", "--format", "json").objects == []
