"""Kafka as a work queue: a share group (KIP-932), by librdkafka's share consumer."""

from __future__ import annotations

import shutil
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from penstock.bench.errors import BenchError
from penstock.bench.peerserver import HOST, free_port, is_open, said_by, serving
from penstock.bench.queuepeers import (
    IDLE,
    QUEUE,
    PortDoor,
    QueueDoor,
    QueuePeer,
    Setup,
    WorkTally,
    without,
)

GROUP: Final = "workers"
LOCKS_MAX: Final = 10_000
WITHIN: Final = 30.0


class KafkaSender:
    def __init__(self, port: int) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": f"{HOST}:{port}", "acks": "all", "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )  # fmt: skip
        self._failures: list[object] = []

    def send(self, values: Iterable[bytes]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for number, value in enumerate(values):
            produce(QUEUE, value, on_delivery=self._delivered)
            if not number % 1000:
                poll(0)
        if self._producer.flush(WITHIN) or self._failures:
            raise BenchError(f"Kafka took not every job: {self._failures[:1]}")

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self._failures.append(error)

    def close(self) -> None:
        self._producer.flush(WITHIN)


class KafkaWorker:
    def __init__(self, port: int, prefetch: int) -> None:
        from confluent_kafka import ShareConsumer

        self._jobs = ShareConsumer(
            {
                "bootstrap.servers": f"{HOST}:{port}", "group.id": GROUP,
                "share.acknowledgement.mode": "explicit", "max.poll.records": prefetch,
                "log_level": 3,  # that it is a preview is said on the page
            }
        )  # fmt: skip
        self._jobs.subscribe([QUEUE])
        self._held: Any = None

    def work(self, tally: WorkTally) -> None:
        take, ack = tally.take, self._jobs.acknowledge
        while not tally.is_over():
            for job in self._jobs.poll(IDLE):
                take(_value(job))
                ack(job)
        self._jobs.commit_sync(WITHIN)

    def receive(self, timeout: float) -> bytes | None:
        for job in self._jobs.poll(timeout):
            self._held = job
            return _value(job)
        return None

    def ack(self) -> None:
        self._jobs.acknowledge(self._held)
        self._jobs.commit_sync(WITHIN)

    def close(self) -> None:
        self._jobs.close()


def _value(message: Any) -> bytes:
    if message.error() is not None:
        raise BenchError(f"Kafka: {message.error()}")
    found: bytes = message.value()
    return found


@contextmanager
def kafka_server(folder: Path, jars: Path) -> Iterator[int]:
    """One broker, which is its own controller; yields its port."""
    port, controller = free_port(), free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "log.dirs": str(folder / "logs"),
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.share.max.partition.max.record.locks": str(LOCKS_MAX),
        "group.share.partition.max.record.locks": str(LOCKS_MAX),
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    said = said_by(
        *java, "kafka.tools.StorageTool", "format", "--standalone",
        "--cluster-id", cluster, "--config", config,
    )  # fmt: skip
    if not (folder / "logs" / "meta.properties").exists():
        raise BenchError(f"Kafka did not format its folder:\n{said[-2000:]}")
    with serving("kafka", [*java, "kafka.Kafka", config], folder, lambda: is_open(port)):
        yield port


@contextmanager
def _serve(setup: Setup) -> Iterator[QueueDoor]:
    assert setup.kafka is not None  # or it is missing
    with kafka_server(setup.folder, setup.kafka) as port:
        _prepare(port)
        yield PortDoor(port, KafkaSender, KafkaWorker)


def _prepare(port: int) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    admin.create_topics([NewTopic(QUEUE, 1, 1)], operation_timeout=WITHIN)[QUEUE].result(WITHIN)
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[earliest])
    for done in admin.incremental_alter_configs([group]).values():
        done.result(WITHIN)


def _jar(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("kafka-clients-*.jar"))), None)


def _missing(setup: Setup) -> str | None:
    if shutil.which("java") is None:
        return "Java is missing: on Debian, apt-get install default-jre-headless"
    if setup.kafka is None:
        return "its jars are missing: --kafka names their folder"
    if _jar(setup.kafka) is None:
        return f"--kafka {setup.kafka}: there is no kafka-clients-*.jar"
    if (why := without("confluent_kafka", "confluent-kafka")) is not None:
        return why
    import confluent_kafka

    if not hasattr(confluent_kafka, "ShareConsumer"):
        return "its Python client knows no share groups: pip install 'confluent-kafka>=2.16'"
    return None


def _versions(setup: Setup) -> dict[str, str]:
    return kafka_versions(setup.kafka)


def kafka_versions(jars: Path | None) -> dict[str, str]:
    """Of the server in these jars, if that is known, and of its client."""
    client = {"confluent-kafka": version("confluent-kafka")}
    if jars is None or (jar := _jar(jars)) is None:
        return client
    java = said_by("java", "-version").partition('"')[2].partition('"')[0]
    return {"Kafka": jar.stem.removeprefix("kafka-clients-"), "Java": java or "unknown", **client}


def kafka_peer() -> QueuePeer:
    return QueuePeer(
        key="kafka",
        name="Kafka, share group",
        client="confluent-kafka (ShareConsumer, a preview)",
        level="os",
        serve=_serve,
        missing=_missing,
        versions=_versions,
        jobs=1.0,
        prefetch=2000,
        sent="page cache",
        answered="page cache",
        by_default="after `group.share.record.lock.duration.ms` (30 s), or once its connection "
        "is gone",
        settings="one broker, one partition, `acks=all`, `share.acknowledgement.mode=explicit`, "
        f"`group.share.partition.max.record.locks={LOCKS_MAX}`, heap 1 GB",
    )
