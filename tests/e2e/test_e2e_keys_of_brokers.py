"""Which broker has which keys, of a keyed cluster of three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import Ran, call_cli
from keyed_fixture import KeyedCluster
from node_helpers import eventually

from penstock.security import keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
    keyed = KeyedCluster(tmp_path_factory.mktemp("keys"), ["ann"], [])
    with keyed.cluster:
        yield keyed


def asked(keyed: KeyedCluster) -> Ran:
    url, env = keyed.cluster.broker(1).tcp_url, {keys.KEY_VARIABLE: str(keyed.file("admin"))}
    return call_cli("keys", "brokers", "-b", url, "--format", "json", env=env)


def test_one_command_shows_the_keys_of_all_brokers(keyed: KeyedCluster) -> None:
    found = asked(keyed)
    assert found.code == 0, found.err
    server = keys.load_server_key(keyed.cluster.broker(2).data)
    cluster = keys.load_cluster_key(keyed.folder / "cluster.key")
    assert server is not None
    assert [each["broker"] for each in found.objects] == ["1", "2", "3"]
    for each in found.objects:
        assert (each["server"], each["cluster"]) == (server.fingerprint, cluster.fingerprint)
        assert each["number"] == "2"
        assert server.secret not in str(each)
    assert len({each["clients"] for each in found.objects}) == 1
    Path(keys.authorized_file(keyed.cluster.broker(2).data, "ann")).unlink()
    eventually(lambda: asked(keyed).code == 1)
    found = asked(keyed)
    assert {each["broker"]: each["number"] for each in found.objects} == {
        "1": "2", "2": "1", "3": "2",
    }  # fmt: skip
    assert "not all brokers have the same keys: clients, number differ" in found.err
