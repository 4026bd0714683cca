"""The settings of a broker: what has to be given together, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.ipc.messages import TopicSettings
from penstock.server.broker.settings import parse_quorum
from penstock.server.broker.topic_config import ClusterTopic, cluster_topic
from penstock.server.config import NodeConfig
from penstock.server.node.topic_catalog import check_settings

QUORUM = "1@127.0.0.1:9650,2@127.0.0.1:9651,3@127.0.0.1:9652"
BROKER: dict[str, Any] = {
    "data_folder": "/data", "node_id": 2, "listen": "tcp://127.0.0.1:0",
    "controller_quorum": QUORUM,
}  # fmt: skip


def test_a_broker_of_the_quorum_listens_at_its_place_in_it():
    config = NodeConfig(**BROKER)
    assert config.cluster_listen == "tcp://127.0.0.1:9651"
    assert config.cluster_host == "127.0.0.1"
    assert config.voters[3] == "tcp://127.0.0.1:9652"


def test_others_reach_a_broker_behind_a_wildcard_at_its_place_in_the_quorum():
    config = NodeConfig(
        **BROKER | {"controller_quorum": "2@broker-2.lan:9650"},
        cluster_listen="tcp://0.0.0.0:9650", cluster_key="/key",
    )  # fmt: skip
    assert config.cluster_host == "broker-2.lan"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"node_id": None}, "controller_quorum is given and node_id is not"),
        ({"node_id": 0}, "node_id is 0"),
        ({"node_id": True}, "node_id is True"),
        ({"listen": None}, "listen is missing"),
        ({"controller_quorum": None}, "controller_quorum is missing"),
        ({"controller_quorum": ""}, "write NODE_ID@HOST:PORT"),
        ({"controller_quorum": "2@127.0.0.1"}, "has '2@127.0.0.1': write NODE_ID@HOST:PORT"),
        ({"controller_quorum": "2@h:1;3@h:2"}, "write NODE_ID@HOST:PORT"),
        ({"controller_quorum": "2@::1:9650"}, "write NODE_ID@HOST:PORT"),
        ({"controller_quorum": "2@0.0.0.0:9650"}, "no place to connect to: .* cluster_listen"),
        ({"controller_quorum": "2@127.0.0.1:0"}, "with its port"),
        ({"controller_quorum": "2@h:1,2@h:2"}, "once"),
        ({"controller_quorum": "2@h:1,3@h:1"}, "once"),
        ({"controller_quorum": ",".join(f"{n}@h:{n}" for n in range(1, 9))}, "up to 7"),
        ({"node_id": 4}, "cluster_listen is missing"),
        ({"node_id": 4, "cluster_listen": "tcp://0.0.0.0:9650", "insecure": True}, "one address"),
        ({"cluster_listen": "tcp://127.0.0.1:0"}, "needs a port"),
        ({"cluster_listen": "tcp://10.0.0.5:9650"}, "cluster_key is missing"),
        ({"cluster_key": ""}, "cluster_key is empty"),
        ({"listen": "tcp://127.0.0.1:9651"}, "come in at two ports"),
        ({"listen": "tcp://0.0.0.0:9640"}, "say by advertise"),
        ({"advertise": "somewhere"}, "advertise is 'somewhere'"),
        ({"rack": "r" * 101}, "rack is"),
        ({"rack": "\N{SNOWMAN}"}, "rack is"),
        ({"advertise": f"tcp://{'h' * 100}:1"}, "advertise is .* up to 100"),
        ({"replication_port": 70_000}, "replication_port is 70000"),
        ({"broker_session_timeout": 0}, "broker_session_timeout is 0"),
        ({"leader_balance_interval": -1.0}, "leader_balance_interval is -1"),
    ],
)
def test_what_makes_no_broker_is_refused_by_name(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        NodeConfig(**BROKER | changes)


def test_a_key_lets_a_broker_listen_beyond_its_host():
    NodeConfig(**BROKER, cluster_listen="tcp://10.0.0.5:9650", cluster_key="/key")


def test_voters_have_numbers_and_places():
    assert parse_quorum("7@a:1, 9@b:2") == {7: "tcp://a:1", 9: "tcp://b:2"}
    assert parse_quorum("1@[::1]:9650") == {1: "tcp://[::1]:9650"}


@pytest.mark.parametrize("field", ["replication_factor", "min_insync_replicas"])
def test_only_a_cluster_has_more_than_one_copy(field):
    settings = replace(TopicSettings(), **{field: 2})
    check_settings(settings, NodeConfig(**BROKER))
    check_settings(replace(TopicSettings(), **{field: 1}), NodeConfig("/data"))
    with pytest.raises(ConfigError, match=f"{field} is 2: this node is alone"):
        check_settings(settings, NodeConfig("/data"))
    with pytest.raises(ConfigError, match=f"{field} is 17"):
        check_settings(replace(TopicSettings(), **{field: 17}), NodeConfig(**BROKER))


def test_a_topic_reads_as_it_was_written():
    topic = ClusterTopic([4, 7], TopicSettings(partitions=2, retention=5.0))
    assert cluster_topic(topic.encode()) == topic
