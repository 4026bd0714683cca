"""Three brokers as the guide sets them up: with keys, encrypted, in racks, found where they say, by
files of settings. And what their operator does when one is gone, by the guide's commands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_runner import Ran, call_cli
from guide_blocks import GUIDE, blocks
from served_cluster import SECONDS, Three
from wire import mechanism

import penstock
from penstock.testing import drain, produce, wait_until

pytestmark = [pytest.mark.timeout(240)]
PAIR = ("--replication-factor", "2")
QUICK = "broker_session_timeout = 1.0\nreplica_lag_time = 2.0\n"


class Operated(Three):
    """Each broker has the file of the guide's page, and is advertised at an address of its own."""

    def __init__(self, folder: Path) -> None:
        self._home = folder
        [self._text] = [it.text for it in blocks(GUIDE / "cluster.md") if it.language == "toml"]
        super().__init__(folder)
        self.env = {"PENSTOCK_KEY": str(folder / "ops.key"), "PENSTOCK_TRANSPORT": "tcp"}
        self.order("keys", "create-cluster", "--out", str(folder / "cluster.key"))
        first = self.brokers[1].folder
        for name in ("ops", "app"):
            out = str(folder / f"{name}.key")
            self.order("keys", "create", name, "--out", out, "--data", str(first))
        for number in (2, 3):
            self.copy_keys(number)

    def options(self, number: int) -> list[str]:
        port = self.places.listen(number).rpartition(":")[2]
        told = self.places.options(number)
        replaced = {
            "/var/lib/penstock": str(self._home / str(number) / "data"),
            "node_id = 1": f"node_id = {number}",
            "tcp://10.0.0.1:9640": f"tcp://0.0.0.0:{port}",
            "1@10.0.0.1:9650,2@10.0.0.2:9650,3@10.0.0.3:9650": str(told["controller_quorum"]),
            "/etc/penstock/cluster.key": str(self._home / "cluster.key"),
        }
        text = self._text
        for shown, mine in replaced.items():
            assert shown in text
            text = text.replace(shown, mine)
        text += f'advertise = "{self.advertised(number)}"\nrack = "{"aab"[number - 1]}"\n{QUICK}'
        file = self._home / f"node-{number}.toml"
        file.write_text(text)
        return ["--config", str(file)]

    def advertised(self, number: int) -> str:
        return self.places.listen(number).replace("127.0.0.1", f"127.0.0.{10 + number}")

    def copy_keys(self, number: int) -> None:
        there = self.brokers[number].folder
        there.mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(self.brokers[1].folder / "keys", there / "keys")

    def ask(self, *words: str) -> Ran:
        """By the key of who operates the cluster."""
        return call_cli(*words, url=self.places.url, env=self.env)

    def order(self, *words: str) -> str:
        """What it narrates; it has to be done."""
        ran = self.ask(*words)
        assert ran.code == 0, f"{words}: {ran.err}\n{self.logs()}"
        return ran.err.strip()

    def allow(self) -> None:
        """As the user of a broker, without whom no key may do anything."""
        for principal, kind in (("ops", "cluster"), ("ops", "topic"), ("app", "topic")):
            self.order("acl", "add", principal, "all", kind, "*", "-b",
                       f"shm://{self.brokers[1].folder}")  # fmt: skip

    def client(self, *numbers: int) -> penstock.Client:
        """Of who may use topics; knows these brokers to begin with."""
        urls = [self.places.listen(each).removeprefix("tcp://") for each in numbers or (1, 2, 3)]
        key = self._home / "app.key"
        return penstock.connect("tcp://" + ",".join(urls), keys=key, transport="tcp", timeout=20)

    def until_well(self, brokers: int = 3) -> None:
        wait_until(
            lambda: f"all is well: {brokers} brokers" in self.ask("cluster", "health").out.decode(),
            SECONDS, lambda: f"{self.ask('cluster', 'health')}\n{self.logs()}",
        )  # fmt: skip

    def places_of(self, topic: str) -> list[Any]:
        return self.ask("cluster", "describe", topic, "--format", "json").objects


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    made = Operated(tmp_path_factory.mktemp("operated"))
    try:
        made.start()
        made.allow()
        made.until_well()
        yield made
    finally:
        made.close()


def test_brokers_with_keys_and_racks_are_used_encrypted_and_where_they_are_advertised(cluster):
    [told] = cluster.ask("cluster", "describe", "--format", "json").objects
    assert [(each["url"], each["rack"]) for each in told["brokers"]] == [
        (cluster.advertised(number), "aab"[number - 1]) for number in (1, 2, 3)
    ]
    cluster.order("topic", "create", "t", "-p", "4", *PAIR)
    assert all(3 in each["replicas"] for each in cluster.places_of("t")), "in both racks"
    values = [b"%d" % number for number in range(400)]
    with cluster.client(1) as client:
        assert len(produce(client, "t", values)) == 400
        assert sorted(record.value or b"" for record in drain(client, "t")) == sorted(values)
        mine = psutil.Process().net_connections("tcp")
        used = {
            each.raddr.ip.removeprefix("::ffff:")
            for each in mine
            if each.raddr and each.status == "ESTABLISHED"
        }
        others = {each["leader"] for each in cluster.places_of("t")} - {1}
        led = {f"127.0.0.{10 + number}" for number in others}
        assert led
        assert led <= used
    for number in (1, 2, 3):
        for place in (
            cluster.places.listen(number),
            cluster.places.options(number)["cluster_listen"],
        ):
            assert mechanism(int(place.rpartition(":")[2])) == "CURVE"
    with pytest.raises(penstock.NotConnectedError):
        penstock.connect(cluster.places.url, transport="tcp", timeout=2)
    users = {**cluster.env, "PENSTOCK_KEY": cluster.env["PENSTOCK_KEY"].replace("ops", "app")}
    refused = call_cli("cluster", "health", url=cluster.places.url, env=users)
    assert (refused.code, "may not describe" in refused.err) == (1, True)


def test_an_unclean_election_goes_on_with_what_a_broker_that_was_behind_has(cluster):
    """The only replica in sync is gone. It gives up what only it had when it comes back."""
    cluster.order("topic", "create", "u", *PAIR)
    [place] = cluster.places_of("u")
    leader = cluster.brokers[place["leader"]]
    [behind] = [cluster.brokers[each] for each in place["replicas"] if each != leader.number]
    with cluster.client() as client:
        produce(client, "u", [b"both"])
        behind.kill()
        cluster.until(lambda: cluster.places_of("u")[0]["isr"] == [leader.number], "it is out")
        produce(client, "u", [b"lost"])
        leader.kill()
        behind.start().ready()

        def is_leaderless() -> bool:
            health = cluster.ask("cluster", "health")
            is_told = health.code == 1 and re.search(r"^u +0 +- ", health.out.decode(), re.M)
            return bool(is_told) and cluster.places_of("u")[0]["leader"] == -1

        cluster.until(is_leaderless, "health names what nobody leads")
        assert cluster.order("cluster", "elect", "u") == "0 partitions got another leader"
        assert "name the TOPIC" in cluster.ask("cluster", "elect", "--unclean").err
        assert "add --yes" in cluster.ask("cluster", "elect", "u", "--unclean").err
        assert cluster.places_of("u")[0]["leader"] == -1
        elected = cluster.order("cluster", "elect", "u", "--unclean", "--yes")
        assert elected == "1 partition got another leader: what it does not have is lost"
        cluster.until(  # the broker that is asked may learn of it a moment later
            lambda: cluster.places_of("u")[0]["leader"] == behind.number, "it leads"
        )
        produce(client, "u", [b"after"])
        leader.start().ready()
        cluster.until_well()
        assert cluster.order("cluster", "elect") != ""
        assert [record.value for record in drain(client, "u")] == [b"both", b"after"]


def test_a_broker_is_taken_out_of_the_cluster_and_comes_back_with_an_empty_folder(cluster):
    """As the guide says: its partitions first, then it is stopped, then it is removed."""
    third = cluster.brokers[3]
    for topic in ("t", "u"):
        cluster.order("cluster", "reassign", topic, "all", "1,2")
        cluster.until(
            lambda topic=topic: all(
                {*each["isr"]} == {1, 2} and not each["target"] for each in cluster.places_of(topic)
            ),
            "moved",
        )
    refused = cluster.ask("cluster", "remove", "3", "--yes")
    assert (refused.code, "stop it before it is removed" in refused.err) == (2, True)
    assert third.stop() == 0
    assert cluster.order("cluster", "remove", "3", "--yes") == "broker 3 is out of the quorum"
    cluster.until_well(2)
    [told] = cluster.ask("cluster", "describe", "--format", "json").objects
    assert [each["broker"] for each in told["brokers"]] == [1, 2]
    assert [each["node"] for each in told["quorum"]] == [1, 2]
    again = cluster.ask("cluster", "remove", "3", "--yes")
    assert (again.code, "there is no broker 3" in again.err) == (2, True)
    shutil.rmtree(third.folder)
    cluster.copy_keys(3)
    third.start().ready()
    cluster.until_well()

    def has_its_vote() -> bool:
        [told] = cluster.ask("cluster", "describe", "--format", "json").objects
        return "learner" not in {each["role"] for each in told["quorum"]}

    wait_until(has_its_vote, SECONDS, cluster.logs)
    cluster.order("cluster", "reassign", "t", "--replication-factor", "3")
    cluster.until_well()
    cluster.until(lambda: {*cluster.places_of("t")[0]["isr"]} == {1, 2, 3}, "it is filled")
    with cluster.client(3) as client:
        assert len(drain(client, "t")) == 400
