"""The server key of a cluster is changed while clients work, come and go: nobody is refused."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from keyed_fixture import KeyedCluster
from node_helpers import eventually

import penstock
from penstock.security import keys

SWITCHED = "the server key is another one from now on"
ROUNDS = 3
"""Clients that come after each step, at least."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
    keyed = KeyedCluster(tmp_path_factory.mktemp("rotation"), ["late"], [])
    with keyed.cluster:
        yield keyed


def says(log: Path, what: str) -> bool:
    return what in log.read_text()


class Traffic:
    """Clients one after the other, each with its own connections, and one that stays."""

    def __init__(self, keyed: KeyedCluster) -> None:
        self._keyed = keyed
        self._stop = threading.Event()
        self.rounds = 0
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._keyed.connect("admin") as stays, stays.producer() as old:
            while not self._stop.is_set():
                try:
                    old.send("traffic", b"stays").result(20)
                    with self._keyed.connect("admin") as comes, comes.producer() as new:
                        new.send("traffic", b"comes").result(20)
                except penstock.PenstockError as error:
                    self.errors.append(error)
                self.rounds += 1

    def goes_on(self) -> None:
        upto = self.rounds + ROUNDS
        eventually(lambda: self.rounds >= upto, "traffic")
        assert not self.errors


def test_the_server_key_is_changed_and_nobody_is_refused(keyed: KeyedCluster) -> None:
    with keyed.connect("admin") as client, client.admin() as admin:
        admin.create_topic("traffic", 3)
    brokers = keyed.cluster.brokers
    with Traffic(keyed) as traffic:
        traffic.goes_on()
        made = keys.prepare_server_key(brokers[0].data)
        for broker in brokers[1:]:
            shutil.copy(keys.next_server_key_file(brokers[0].data), keys.keys_folder(broker.data))
        keys.trust_server(keyed.file("admin"), made.public)
        for broker in brokers:
            keys.switch_server_key(broker.data)
            eventually(partial(says, broker.log_path, SWITCHED), "the other key")
            traffic.goes_on()
        keys.trust_server(keyed.file("admin"), made.public, only=True)
        traffic.goes_on()
    assert keys.load_client_key(keyed.file("admin")).servers == (made.public,)
    with pytest.raises(penstock.NotConnectedError, match="another one than this client's key file"):
        penstock.connect(keyed.cluster.url, keys=keyed.file("late"), timeout=1.0)


def test_a_key_made_meanwhile_trusts_both(tmp_path: Path) -> None:
    keys.create_key(tmp_path, "ann", tmp_path / "ann")
    made = keys.prepare_server_key(tmp_path)
    assert keys.prepare_server_key(tmp_path) == made, "made once"
    bob = keys.create_key(tmp_path, "bob", tmp_path / "bob")
    assert bob.servers == (keys.load_client_key(tmp_path / "ann").server, made.public)
    keys.switch_server_key(tmp_path)
    assert keys.load_server_key(tmp_path) == made
    with pytest.raises(penstock.ConfigError, match="prepare-server"):
        keys.switch_server_key(tmp_path)
    with pytest.raises(penstock.ConfigError, match="no server key"):
        keys.prepare_server_key(tmp_path / "nothing")


@pytest.mark.slow
def test_the_key_of_a_cluster_is_changed_broker_by_broker(keyed: KeyedCluster) -> None:
    """In two rounds of restarts, with clients at work. No broker is kept out in between."""
    file, other = keyed.folder / "cluster.key", keyed.folder / "next.key"
    made = keys.create_cluster_key(other)
    keys.trust_cluster_key(other, file)
    keys.trust_cluster_key(file, other)
    with keyed.connect("admin") as client, client.admin() as admin:
        admin.create_topic("traffic", 3, if_not_exists=True)

        def is_whole() -> bool:
            found = admin.describe_cluster().brokers
            return all((one.state, one.in_sync) == ("up", one.replicas) for one in found)

        with Traffic(keyed) as traffic:
            for which in (file, other):
                if which is other:
                    shutil.copy(other, file)
                for broker in keyed.cluster.brokers:
                    broker.stop()
                    broker.start()
                    eventually(is_whole, "all replicas in sync")
            traffic.goes_on()
    assert keys.load_cluster_key(file).public == made.public
