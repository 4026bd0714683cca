"""A node that is restarted in order: clients by tcp go on, and nothing is logged as alarming."""

from __future__ import annotations

import logging

import pytest

from penstock.testing.embedded import EmbeddedNode
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.local("its clients come by tcp anyhow")


def test_clients_of_a_node_that_is_restarted_log_no_warning(tmp_path, caplog):
    caplog.set_level(logging.INFO, "penstock")
    with (
        EmbeddedNode(tmp_path / "data", listen="tcp://127.0.0.1:0", log=tmp_path / "log") as node,
        node.connect_tcp() as client,
    ):
        client.admin().create_topic("orders")
        with client.producer() as producer, client.consumer("orders") as consumer:
            producer.send_and_wait("orders", b"before")
            assert consumer.poll(timeout=25)[0].value == b"before"
            assert node.stop() == 0

            def is_told() -> bool:
                consumer.poll()
                said = [record.getMessage() for record in caplog.records]
                return any("lost the connection" in text for text in said)

            wait_until(is_told, what="the end of the connection")
            node.start()
            producer.send("orders", b"after").result(25)
            assert consumer.poll(timeout=25)[0].value == b"after"
        text = node.log_tail(1000)
    loud = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record.getMessage() for record in loud] == []
    assert " ERROR " not in text
    assert " WARNING " not in text
