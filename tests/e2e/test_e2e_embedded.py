"""Nodes of one's own as child processes: started in two steps, with ports that stay theirs."""

from __future__ import annotations

import socket

import pytest

from penstock.core.errors import ConfigError, PenstockError
from penstock.testing.embedded import EmbeddedNode
from penstock.testing.embedded_cluster import BROKERS_MAX, Places, as_arguments, start_together

pytestmark = pytest.mark.local("nodes that this process starts")


def test_nodes_start_side_by_side_and_say_when_they_are_ready(tmp_path):
    nodes = {n: EmbeddedNode(tmp_path / str(n), writers=1, start=False) for n in (1, 2)}
    try:
        assert not any(node.is_running for node in nodes.values())
        start_together(nodes)
        for node in nodes.values():
            assert node.started_in > 0
            with node.connect() as client:
                assert client.admin().list_topics() == []
            node.await_ready(0.0)  # known already
    finally:
        for node in nodes.values():
            node.remove()


def test_a_node_that_is_not_ready_in_time_goes_on(tmp_path):
    with EmbeddedNode(tmp_path / "d", writers=1, start=False) as node:
        node.launch()
        with pytest.raises(PenstockError, match="did not admit clients within 0 s"):
            node.await_ready(0.0)
        assert node.is_running
        node.await_ready()


def test_one_that_fails_among_several_is_named_with_its_log(tmp_path):
    log = tmp_path / "node.log"
    good = EmbeddedNode(tmp_path / "a", writers=1, start=False)
    bad = EmbeddedNode(tmp_path / "b", log=log, arguments=("--lanes-max", "0"), start=False)
    with good, bad, pytest.raises(PenstockError, match=r"(?s)broker 2: .*exit status 2.*lanes_max"):
        start_together({1: good, 2: bad})


def test_a_node_that_was_told_to_leave_is_not_told_twice(tmp_path):
    with EmbeddedNode(tmp_path / "d", writers=1) as node:
        node.terminate()
        node.terminate()
        assert node.stop() == 0  # a second signal would let it leave at once, with 143


# --- ports ----------------------------------------------------------------------------------------
def test_each_broker_has_places_of_its_own_and_knows_those_of_the_others():
    places = Places(3)
    try:
        told = [places.options(number) for number in places.numbers]
        words = str(told[0]["controller_quorum"]).split(",")
        voters = {int(n): f"tcp://{place}" for n, place in (word.split("@") for word in words)}
        assert {options["node_id"]: options["cluster_listen"] for options in told} == voters
        assert len({options["controller_quorum"] for options in told}) == 1
        listens = [places.listen(number) for number in places.numbers]
        assert places.url == "tcp://" + ",".join(each.removeprefix("tcp://") for each in listens)
        assert len({*listens, *voters.values()}) == 6
    finally:
        places.close()


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (9, 5)])
def test_an_odd_number_decides(brokers, voters):
    places = Places(brokers)
    try:
        assert list(places.voters) == list(range(1, voters + 1))
    finally:
        places.close()


def test_a_reserved_port_is_taken_by_whoever_names_it_and_by_nobody_else():
    places = Places(1)
    port = int(places.listen(1).rpartition(":")[2])
    try:
        with socket.socket() as greedy, pytest.raises(OSError, match="in use"):
            greedy.bind(("127.0.0.1", port))
        for _ in range(2):  # a broker that comes back finds it free
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
    finally:
        places.close()


def test_brokers_on_hosts_of_their_own_have_the_same_ports():
    places = Places(2, hosts=["10.0.0.1", "10.0.0.2"])
    assert places.url == "tcp://10.0.0.1:9640,10.0.0.2:9640"
    assert places.options(2)["cluster_listen"] == "tcp://10.0.0.2:9650"
    places.close()


@pytest.mark.parametrize("brokers", [0, BROKERS_MAX + 1])
def test_so_many_brokers_are_refused(brokers):
    with pytest.raises(ConfigError, match="allowed are 1"):
        Places(brokers)


def test_options_as_a_command_line_has_them():
    options = {"insecure": True, "metrics_public": False, "lanes_max": 4}
    assert as_arguments(options) == ("--insecure", "--lanes-max", "4")
