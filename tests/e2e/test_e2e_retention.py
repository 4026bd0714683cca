"""Retention with real processes: segments go by size and by time while clients are at work."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from node_helpers import NodeProcess, children, eventually

import penstock
from penstock import Admin, Client, Consumer, OffsetOutOfRangeError, TopicConfig
from penstock.client.session import Session
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc.messages import Cleaned, TrimPartition
from penstock.server.cleaner.retention import NO_GROUP, CleanedPartition, retain

SEGMENT = 64 << 10
INTERVAL = "0.05"
VANISHED = 20
"""Segments that go beneath a reader: many times what it is behind."""
RUNNING_CLEANER = r"cleaner started: pid (\d+)\n(?!(?s:.)*(cleaner \(pid|cleaner started))"


@pytest.fixture
def node(tmp_path):
    arguments = ("--writers", "1", "--cleaner-interval", INTERVAL)
    with NodeProcess(tmp_path / "data", *arguments) as node:
        yield node.start()


@pytest.fixture
def client(node):
    with penstock.connect(f"shm://{node.folder}") as client:
        yield client


def cleaner_pid(node: NodeProcess) -> int:
    """The cleaner that runs, as the node's log tells."""
    return int(node.wait_log(RUNNING_CLEANER)[1])


def value(number: int) -> bytes:
    return b"%08d" % number * 125


def send(client: Client, topic: str, first: int, count: int) -> None:
    with client.producer() as producer:
        for start in range(first, first + count, 50):
            values = [value(number) for number in range(start, start + 50)]
            producer.send_batch(topic, values).result(45)


def segments(node: NodeProcess, admin: Admin, topic: str) -> list[Path]:
    topic_id = admin.describe_topic(topic).topic_id
    return sorted((node.folder / f"{topic_id}-0").glob("*.log"))


def start_of(admin: Admin, topic: str) -> int:
    return admin.describe_topic(topic).partitions[0].log_start


def deleted_of(admin: Admin, topic: str) -> int:
    return admin.describe_topic(topic).partitions[0].cleaning["segments_deleted"]


def has_moved(admin: Admin, before: int) -> bool:
    return start_of(admin, "t") > before


def read_all(consumer: Consumer, until: int) -> list[int]:
    """Offsets as they come, each with its own value, up to an end."""
    read: list[int] = []
    while not read or read[-1] + 1 < until:
        for record in consumer.poll(timeout=20):
            assert record.value == value(record.offset)
            read.append(record.offset)
    return read


@pytest.mark.setting("topic.retention_bytes", "topic.segment_bytes")
def test_segments_beyond_the_wanted_bytes_go_and_are_counted(node, client):
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=SEGMENT, retention_bytes=4 * SEGMENT))
    send(client, "t", 0, 1000)
    eventually(lambda: len(segments(node, admin, "t")) <= 6 and start_of(admin, "t") > 0)
    # Counted once the writer has done it all, so after the log's start has been published.
    eventually(lambda: deleted_of(admin, "t") >= 8, "8 segments counted as deleted")
    described = admin.describe_topic("t").partitions[0]
    cleaning = described.cleaning
    assert cleaning["bytes_deleted"] >= cleaning["segments_deleted"] * SEGMENT / 2
    assert cleaning["cleaned_at"] > 0
    assert cleaning["cleaning_errors"] == 0
    with client.consumer("t", start="earliest", follow=False) as consumer:
        offsets = read_all(consumer, 1000)
    assert offsets == list(range(offsets[0], 1000))
    assert offsets[0] >= described.log_start  # another round may have trimmed meanwhile
    node.wait_log(r"expired, 0 by time \(retention None\), \d+ by size \(retention_bytes 262144\)")


def test_a_segment_that_was_seen_while_active_is_seen_closed_later(node, client):
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=4096))
    socket = node.folder / "attach.sock"
    session = Session.attach(socket, lo.KIND_ADMIN, client_id="", timeout=10)
    topic = session.find_topic("t", 10)
    folder = str(node.folder / f"{topic.topic_id.hex()}-0")
    partition = CleanedPartition(topic, 0, session.page(topic.pages[0]), folder)
    seen = []
    for number in range(3):
        send(client, "t", 50 * number, 50)  # a batch larger than a segment: each has its own
        seen.append([fact.is_active for fact in partition.look(Storage())])
    assert seen == [[True], [False, True], [False, False, True]]
    assert partition.look(Storage())[1].end == 100
    session.close()


@pytest.mark.setting("topic.retention")
def test_what_is_older_than_the_retention_goes_and_the_active_segment_too(node, client):
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=SEGMENT, retention=1.0))
    send(client, "t", 0, 500)
    eventually(lambda: start_of(admin, "t") == 500)
    eventually(lambda: len(segments(node, admin, "t")) == 1)
    admin.alter_topic("t", retention=None)
    send(client, "t", 500, 50)
    with client.consumer("t", start="earliest", follow=False) as consumer:
        assert read_all(consumer, 550) == list(range(500, 550))


def held_topic(client: Client, name: str, hold_bytes_max: int | None = None) -> Admin:
    admin = client.admin()
    admin.create_topic(
        name, segment_bytes=SEGMENT, retention_bytes=SEGMENT, hold_for="groups",
        hold_bytes_max=hold_bytes_max,
    )  # fmt: skip
    return admin


@pytest.mark.setting("topic.hold_for")
def test_what_a_group_has_not_finished_is_held_until_it_has(node, client):
    admin = held_topic(client, "t")
    with client.share_consumer("t", group="slow") as jobs:
        send(client, "t", 0, 50)
        [job] = jobs.poll(1, timeout=20)
        with client.consumer("t", group="plain", guarantee="manual") as plain:
            while (batch := plain.poll(timeout=20)).offsets[-1] < 49:
                pass
            plain.commit(batch)
        send(client, "t", 50, 950)
        node.wait_log(r"t-0: \d+ bytes are held, .*: a group has not finished offset 0")
        assert start_of(admin, "t") == 0
        job.ack()
        done = 1
        while done < 1000:
            rest = jobs.poll(timeout=20)
            jobs.ack_many(rest)
            done += len(rest)
        jobs.flush()
        eventually(lambda: start_of(admin, "t") > 0)
        assert start_of(admin, "t") <= 50, "the plain group has not read on"
        admin.delete_group("plain")
        eventually(lambda: start_of(admin, "t") > 800)
    assert "offsets go that" not in node.log


@pytest.mark.setting("topic.hold_bytes_max")
def test_beyond_the_cap_it_goes_and_is_counted(node, client):
    admin = held_topic(client, "t", 4 * SEGMENT)
    with client.share_consumer("t", group="slow") as jobs:
        send(client, "t", 0, 50)
        [_] = jobs.poll(1, timeout=20)
        send(client, "t", 50, 950)
        eventually(lambda: start_of(admin, "t") > 400)
        node.wait_log(r"t-0: \d+ offsets go that a group has not finished, .*hold_bytes_max")
        kept = sum(path.stat().st_size for path in segments(node, admin, "t"))
        assert kept > 2 * SEGMENT, "not as little as retention_bytes"


def test_where_nobody_tells_how_far_groups_are_all_is_held_and_without_groups_nothing(node, client):
    held_topic(client, "t")
    send(client, "t", 0, 500)
    attached = Session.attach(node.folder / "attach.sock", lo.KIND_ADMIN, client_id="", timeout=10)
    with closing(attached) as session:
        topic = session.find_topic("t", 10)
        folder = str(node.folder / f"{topic.topic_id.hex()}-0")
        partition = CleanedPartition(topic, 0, session.page(topic.pages[0]), folder)
        asked: list[TrimPartition] = []

        def trim(order: TrimPartition) -> Cleaned:
            asked.append(order)
            return Cleaned(order.before, 0, 0)

        partition.look(Storage())
        retain(partition, Storage(), trim, lambda _: None, 1)
        assert (len(asked), partition.unread) == (0, 0)
        assert partition.held_bytes > 4 * SEGMENT
        retain(partition, Storage(), trim, lambda _: NO_GROUP, 1)
        assert partition.held_bytes == 0
        assert asked[-1].before > 300


def test_settings_change_live_and_survive_the_node(node, client):
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=SEGMENT))
    send(client, "t", 0, 500)
    assert "cleaner started" not in node.log
    admin.alter_topic("t", retention_bytes=2 * SEGMENT)
    eventually(lambda: start_of(admin, "t") > 0)
    admin.alter_topic("t", retention_bytes=None, retention=timedelta(days=7))
    assert node.stop() == 0
    node.start()
    settings = admin.describe_topic("t").settings
    assert (settings["retention"], settings["retention_bytes"]) == (604_800.0, None)
    kept = start_of(admin, "t")
    send(client, "t", 500, 500)
    admin.alter_topic("t", retention=1.0)
    eventually(lambda: start_of(admin, "t") == 1000 > kept)


@pytest.mark.rule(11)
@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_rule_11_readers_follow_while_segments_vanish(node, client, policy):
    """No wrong byte and no signal; who is overtaken gets an error, or what it chose."""
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=SEGMENT, retention_bytes=2 * SEGMENT))
    sent: list[int] = []

    def write_until_much_has_vanished() -> None:
        while deleted_of(admin, "t") < VANISHED:
            send(client, "t", len(sent), 500)
            sent.extend(range(500))

    writing = threading.Thread(target=write_until_much_has_vanished)
    complaints: list[str] = []
    read: list[int] = []
    with client.consumer("t", start="earliest", on_out_of_range=policy) as consumer:
        consumer.poll(timeout=0)
        writing.start()
        while True:
            was_writing = writing.is_alive()
            try:
                batch = consumer.poll(timeout=0.5)
            except OffsetOutOfRangeError as error:
                complaints.append(str(error))
                consumer.seek("t", 0, "earliest")
                continue
            for record in batch:
                assert record.value == value(record.offset)
                read.append(record.offset)
            if not batch and not was_writing:
                break
            writing.join(0.02)  # fall behind
    writing.join()
    assert read == sorted(set(read))
    assert policy == "latest" or read[-1] == len(sent) - 1
    assert policy == "error" or not complaints
    assert all("the log starts at" in complaint for complaint in complaints)
    assert node.stop() == 0


def test_a_killed_cleaner_is_replaced_and_goes_on(node, client):
    admin = client.admin()
    admin.create_topic("t", TopicConfig(segment_bytes=SEGMENT, retention_bytes=SEGMENT))
    for round_ in range(3):
        pid = cleaner_pid(node)
        os.kill(pid, signal.SIGKILL)
        node.wait_log(rf"(?s)cleaner \(pid {pid}\) died.*cleaner started")
        before = start_of(admin, "t")
        send(client, "t", 500 * round_, 500)
        eventually(partial(has_moved, admin, before), "it cleans")
    assert "writer 0 (pid" not in node.log  # nobody else died
    assert f"cleaner (pid {pid}) died: killed by SIGKILL" in node.log


@pytest.mark.rule(9)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_rule_9_the_cleaner_leaves_with_its_node(node, client, number):
    client.admin().create_topic("t", TopicConfig(retention=60))
    pid = cleaner_pid(node)
    assert pid in list(children(node.pid))
    node.signal(number)
    node.wait()
    eventually(lambda: liveness.state(pid) in (None, "Z"), "it leaves")
    node.start()
    assert cleaner_pid(node) != pid


def test_a_stopped_cleaner_does_not_hold_up_the_end(node, client):
    client.admin().create_topic("t", TopicConfig(retention=60))
    pid = cleaner_pid(node)
    # Before that it is in the session of the fork server, whose end wakes those it stopped.
    eventually(lambda: os.getsid(pid) == pid, "it has a session of its own")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: liveness.state(pid) == "T", "it is stopped")
    assert node.stop() == 0
    assert f"the cleaner (pid {pid}) does not leave: it is killed" in node.log
    assert liveness.state(pid) in (None, "Z")


def test_the_cleaner_loads_no_heavy_module_while_there_is_nothing_to_compact(node, client):
    client.admin().create_topic("t", TopicConfig(retention=60))
    maps = Path(f"/proc/{cleaner_pid(node)}/maps")
    eventually(lambda: "crc32c" in maps.read_text(), "it has loaded its modules")
    assert "numpy" not in maps.read_text()


def test_the_cleaner_is_no_client_of_the_user(node, client):
    admin = client.admin()
    before = admin.describe_node().clients
    admin.create_topic("t", TopicConfig(retention=60))
    eventually(lambda: admin.describe_topic("t").partitions, "it runs")
    cleaner_pid(node)
    assert admin.describe_node().clients == before
