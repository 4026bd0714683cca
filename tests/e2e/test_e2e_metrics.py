"""Health and metrics of a node as machines read them: scrapes, readiness, and what is not asked."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from group_fixture import fill
from node_helpers import eventually
from prometheus_client.parser import text_string_to_metric_families

from penstock import Offset
from penstock.client.client import connect
from penstock.cluster.groups.windows import REWIND, SEVERITY
from penstock.core.errors import PenstockError
from penstock.server.health.address import HttpAddress
from penstock.server.health.families import FAMILIES
from penstock.server.health.service import HealthService
from penstock.testing import Broker

ANY_PORT = "127.0.0.1:0"
Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Asking:
    """One node's HTTP endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> Metrics:
        status, text = self.get("/metrics")
        assert status == 200
        found: Metrics = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in found, f"{key} twice"
                found[key] = sample.value
        return found

    def value(self, name: str, **labels: object) -> float | None:
        """The value of the one line that has these labels, beside others."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        found = [
            value
            for (found, where), value in self.metrics().items()
            if found == f"penstock_{name}" and wanted <= where
        ]
        assert len(found) <= 1, f"{name} {labels}: {found}"
        return found[0] if found else None

    def readiness(self) -> list[str]:
        """What is missing."""
        status, text = self.get("/readyz")
        first, *rest = text.splitlines()
        assert (status, first) == ((503, "not ready") if rest else (200, "ready"))
        return rest


def asking(broker: Broker) -> Asking:
    with broker.connect() as client, client.admin() as admin:
        return Asking(f"http://{admin.describe_node().metrics}")


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(options={"metrics": ANY_PORT}) as broker:
        yield broker


@pytest.fixture(scope="module")
def http(node: Broker) -> Asking:
    return asking(node)


def test_what_was_appended_is_in_the_next_scrape(node, http):
    topic = node.create_topic(durability="fsync")
    fill(node, topic, 0, 30)
    eventually(lambda: http.value("appended_records_total", topic=topic, partition=0) == 30)
    found = http.metrics()

    def of(name):
        where = frozenset({"topic": topic, "partition": "0"}.items())
        return found[f"penstock_{name}", where]

    for name in ("log_end", "high_watermark", "last_stable", "durable"):
        assert of(f"{name}_offset") == 30
    assert of("appended_bytes_total") >= 30
    assert of("log_start_offset") == of("refused_batches_total") == 0
    assert of("partition_online") == 1
    assert found["penstock_sync_seconds_count", frozenset()] >= 1
    assert found["penstock_omitted_series", frozenset()] == 0


def test_every_sample_is_of_a_family_that_the_guide_lists(node, http):
    with node.connect() as client, client.consumer(node.create_topic(), group="listed") as consumer:
        consumer.poll(1, timeout=0)
        suffixes = ("_bucket", "_sum", "_count")
        found = http.metrics()
        assert len(found) > 50
        for (name, labels), _ in found.items():
            if not name.startswith("penstock_"):
                assert name.startswith(("process_", "python_gc_")), name
                continue
            base = name
            for suffix in suffixes:
                if name not in FAMILIES and name.endswith(suffix):
                    base = name.removesuffix(suffix)
            assert {key for key, _ in labels} - {"le"} == set(FAMILIES[base].labels), name


def test_lag_of_a_group_in_records_and_in_seconds(node, http):
    topic = node.create_topic(retention=3600)
    fill(node, topic, 0, 10)
    with node.connect() as client:
        with client.consumer(topic, group="scraped", follow=False) as consumer:
            assert len(list(consumer)) == 10
        fill(node, topic, 10, 7)
    where = {"group": "scraped", "topic": topic, "partition": 0}
    eventually(lambda: http.value("group_lag_records", **where) == 7)
    eventually(lambda: (http.value("group_lag_seconds", **where) or 0) > 0)
    assert http.value("group_committed_offset", **where) == 10
    assert http.value("group_members", group="scraped") == 0
    assert http.value("group_status", **where) == 0
    assert 0 < (http.value("group_retention_left_seconds", **where) or 0) < 3600
    assert (http.value("coordinator_seconds_count") or 0) > 0
    assert http.value("leader_elections_total", topic=topic, partition=0) == 1
    with node.connect() as client, client.admin() as admin:
        admin.reset_offsets("scraped", topic, to=Offset.earliest())
    eventually(lambda: http.value("group_status", **where) == SEVERITY[REWIND])
    assert http.value("coordinator_serving") == 1


def test_a_share_group_by_topic_and_state_and_what_became_of_its_records(node, http):
    topic = node.create_topic()
    with node.connect() as client:
        fill(node, topic, 0, 10)
        options: dict[str, Any] = {"group": "shared", "backoff": (600.0, 600.0)}
        with client.share_consumer(topic, **options) as jobs:
            held = jobs.poll(6, timeout=10.0)
            while len(held) < 6:
                held += jobs.poll(6 - len(held), timeout=1.0)
            held[0].ack()
            held[1].ack()
            held[2].nack(delay=600.0)
            held[3].reject("never")
            jobs.flush()
            where = {"group": "shared", "topic": topic}
            eventually(lambda: http.value("share_group_lag_records", **where) == 8)
            states = {
                state: http.value("share_group_records", state=state, **where)
                for state in ("new", "ready", "waiting", "leased", "condemned")
            }
            assert states == {"new": 4, "ready": 0, "waiting": 1, "leased": 2, "condemned": 1}
            eventually(lambda: (http.value("share_group_oldest_seconds", **where) or 0) > 0)
            for event, count in {
                "acquired": 6, "accepted": 2, "failed": 1, "rejected": 1, "condemned": 1,
            }.items():  # fmt: skip
                found = http.value("share_group_events_total", group="shared", event=event)
                assert found == count, event
            with client.admin() as admin:
                told = admin.describe_share_group("shared", sample=0.01)
            assert told.lag == 8
            assert told.ready_seconds is not None
            assert 0 < told.ready_seconds < 60
            assert told.drain_seconds is None, "nothing was done meanwhile"
    assert len(http.metrics()) < 2000


def test_lag_of_a_consumer_that_is_attached(node, http):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client, client.consumer(topic, start="earliest") as consumer:
        assert len(consumer.poll(4, timeout=25)) == 4
        consumer.poll(1, timeout=5)
        eventually(lambda: http.value("consumer_lag_records", topic=topic) == 6)
        eventually(lambda: (http.value("consumer_lag_seconds", topic=topic) or 0) > 0)
    eventually(lambda: http.value("consumer_lag_records", topic=topic) is None)


def test_lanes_and_clients(node, http):
    topic = node.create_topic()
    with node.connect() as client, client.producer() as producer:
        producer.send(topic, b"one").result(25)
        eventually(
            lambda: (http.value("lane_written_bytes_total", producer=producer.producer_id) or 0) > 0
        )
        assert http.value("lane_used_bytes", producer=producer.producer_id) == 0
        assert http.value("producer_dropped_records_total", producer=producer.producer_id) == 0
        assert (http.value("clients", kind="producer") or 0) >= 1


def test_processes_and_the_disk(node, http):
    assert http.value("node_up") == http.value("node_answers") == 1
    assert (http.value("node_resident_memory_bytes") or 0) > 1 << 20
    assert http.value("writer_up", writer=0) == 1
    assert http.value("writer_restarts_total", writer=0) == 0
    free, size = http.value("disk_free_bytes"), http.value("disk_size_bytes")
    assert 0 < (free or 0) <= (size or 0)


def test_other_paths_are_not_there(http):
    assert http.get("/")[0] == http.get("/metrics/x")[0] == http.get("/favicon.ico")[0] == 404


def test_not_ready_while_a_writer_is_stopped_and_ready_again():
    with Broker(writers=1, options={"metrics": ANY_PORT}) as broker:
        http = asking(broker)
        topic = broker.create_topic()
        fill(broker, topic, 0, 1)
        eventually(lambda: http.readiness() == [])
        assert http.get("/healthz") == (200, "alive\n")
        [writer] = [row.pid for row in broker_writers(broker)]
        os.kill(writer, signal.SIGSTOP)
        try:
            eventually(lambda: http.readiness() == [f"writer 0 (pid {writer}) is stopped"])
            assert http.get("/healthz")[0] == 200, "restarting the node would not help"
            eventually(lambda: http.value("writer_up", writer=0) == 0)
        finally:
            os.kill(writer, signal.SIGCONT)
        eventually(lambda: http.readiness() == [])
        eventually(lambda: http.value("writer_up", writer=0) == 1)


def test_a_writer_that_died_is_counted_and_was_missing_no_longer_than_it_was():
    with Broker(writers=1, options={"metrics": ANY_PORT}) as broker:
        http = asking(broker)
        topic = broker.create_topic()
        fill(broker, topic, 0, 1)
        broker.kill_writer(topic)
        eventually(lambda: http.value("writer_restarts_total", writer=0) == 1)
        eventually(lambda: http.readiness() == [])


def test_not_healthy_while_the_node_is_stopped():
    with Broker(options={"metrics": ANY_PORT}) as broker:
        http = asking(broker)
        eventually(lambda: http.get("/healthz")[0] == 200)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            eventually(lambda: http.get("/healthz")[0] == 503)
            eventually(lambda: "does not answer" in http.readiness()[0])
            eventually(lambda: http.value("node_up") == 0)
            eventually(lambda: http.value("node_answers") == 0)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        eventually(lambda: http.get("/healthz")[0] == 200)


def test_a_node_that_comes_and_goes_under_somebody_who_watches_it():
    with Broker() as broker:
        service = HealthService.start(HttpAddress("127.0.0.1", 0), str(broker.data), None)
        try:
            http = Asking(f"http://{service.address}")
            eventually(lambda: http.readiness() == [])
            broker.restart(kill=True)
            eventually(lambda: http.readiness() == [])
            eventually(lambda: http.value("node_up") == 1)
            broker.stop()
            eventually(lambda: http.get("/healthz")[0] == 503)
            eventually(lambda: http.value("node_up") == 0)
        finally:
            service.close()


def test_metrics_go_on_after_the_gateway_died():
    with Broker(options={"metrics": ANY_PORT}) as broker:
        http = asking(broker)
        [first] = gateways(broker)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(gateways(broker)) == 2)

        def is_back():
            with contextlib.suppress(OSError):
                return http.readiness() == []

        eventually(is_back)
        assert asking(broker).url == http.url


def test_remote_clients_are_seen():
    with Broker(listen=True, options={"metrics": ANY_PORT}) as broker:
        http, topic = asking(broker), broker.create_topic()
        with connect(broker.tcp_url, transport="tcp") as client:
            with client.producer() as producer:
                for number in range(20):
                    producer.send(topic, b"%d" % number)
                producer.flush(10)
            with client.consumer(topic, start="earliest") as consumer:
                assert len(consumer.poll(5, timeout=25)) == 5
                consumer.poll(1, timeout=10)
                eventually(lambda: http.value("consumer_lag_records", topic=topic) == 15)
                assert http.value("gateway_connections") == 1
                assert http.value("gateway_endpoints") == 1
                assert http.value("gateway_cursors") == 1
                assert http.value("gateway_produced_records_total") == 20
                assert (http.value("gateway_sent_bytes_total") or 0) > 0
                assert (http.value("gateway_request_seconds_count", type="produce") or 0) > 0
                assert (http.value("gateway_acknowledge_seconds_count", topic=topic) or 0) > 0
                assert (http.value("gateway_delivery_seconds_count", topic=topic) or 0) > 0
                for what in ("produce", "consume"):
                    assert (http.value("principal_bytes_total", what=what) or 0) > 20
        eventually(lambda: http.value("gateway_connections") == 0)


def test_garbage_does_not_take_the_endpoint_away(http):
    host, port = http.url.removeprefix("http://").split(":")
    for garbage in (b"\0" * 100, b"GET " + b"x" * 20_000, b"\r\n\r\n", os.urandom(5000)):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 10) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            assert not sock.recv(20).startswith(b"HTTP/1.1 200")
    assert http.get("/healthz")[0] == 200


def test_an_address_that_is_taken_keeps_the_node_from_starting(http):
    with pytest.raises(PenstockError, match="metrics cannot be served at"):
        Broker(options={"metrics": http.url.removeprefix("http://")})


def gateways(broker: Broker) -> list[int]:
    """Pids of all that were started."""
    return [
        int(pid) for pid in re.findall(r"gateway started: pid (\d+)", broker.log_path.read_text())
    ]


def broker_writers(broker: Broker):
    with broker.connect() as client, client.admin() as admin:
        return admin.describe_node().writers
