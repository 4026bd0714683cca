"""Logs that have grown, on a real node."""

from __future__ import annotations

from pathlib import Path

from crash.node_under_test import NodeUnderTest

from penstock import Offset
from penstock.client.admin.admin import TopicConfig
from penstock.testing import wait_until

FIRST = 1_700_000_000


def indexes(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for pattern in ("*.index", "*.time")
        for path in folder.glob(pattern)
    }


def test_lost_indexes_come_back_while_the_node_serves(tmp_path):
    with NodeUnderTest(tmp_path) as node:
        with node.connect() as client, client.producer() as producer:
            client.admin().create_topic("t", TopicConfig(segment_bytes=40_000))
            for number in range(200):
                stamps = [(FIRST + number * 10 + n) * 1_000_000 for n in range(10)]
                producer.send_batch("t", [b"x" * 200] * 10, timestamps=stamps).result(45)
            [folder] = node.data.glob(f"{client.admin().describe_topic('t').topic_id}-0")
        node.stop()
        wanted = indexes(folder)
        assert len(wanted) > 20
        for name in wanted:
            (folder / name).unlink()
        node.start()
        with node.connect() as client:
            with client.consumer("t", start=Offset.at(FIRST + 777), follow=False) as consumer:
                assert next(iter(consumer)).offset == 777
            with client.producer() as producer:
                assert producer.send_and_wait("t", b"more", timeout=45).offset == 2000
            wait_until(lambda: wanted.keys() <= indexes(folder).keys(), 45.0, "the indexes")
        node.stop()
        found = indexes(folder)
        assert {name: found[name] for name in wanted} == wanted
        assert not list(folder.glob("*.tmp"))
