"""A node with real writers, from its first start over kills of every process to its clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from node_helpers import (
    NodeProcess,
    RawClient,
    RawProducer,
    Refusal,
    children,
    descriptors,
    environment,
    eventually,
    log_end,
    remove_shared_objects,
    shared_objects,
    writers_of,
)
from seeds import seed_of

from penstock.ipc import channel, paths
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region
from penstock.testing.waiting import wait_until

ROUNDS = 200
TABLES = ["clients", "owner", "state"]


@pytest.fixture
def node(tmp_path):
    with NodeProcess(tmp_path / "data") as made:
        yield made


def record(folder: Path) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode((folder / "node.json").read_bytes())
    return found


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.rule(12)
def test_a_first_start_makes_the_folder_private_and_tells_ready(node):
    node.start()
    assert node.folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in node.folder.iterdir()} == {
        *("lock", "node.json", "clock.json", "attach.sock"),
    }
    limits = Path(f"/proc/{node.pid}/limits").read_text()
    [open_files] = [line.split() for line in limits.splitlines() if "open files" in line]
    assert open_files[3] == open_files[4], "rule 12: the soft limit is raised to the hard one"


def test_the_node_and_its_writers_load_no_heavy_module(node):
    program = (
        "import sys; import penstock.server.__main__, penstock.server.node.node;"
        "import penstock.server.writer.main; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert not {"numpy", "typer", "rich", "zmq", "hypothesis"} & set(done.stdout.split())


def test_records_go_from_a_lane_into_the_log_and_are_acknowledged(node):
    node.start()
    with node.attach(lo.KIND_PRODUCER) as client:
        topic = client.create("orders", partitions=2)
        producer = RawProducer(client, topic)
        producer.send(10, partition=0)
        producer.send(5, partition=1)
        acks = producer.acks(15)
        assert [ack.error for ack in acks] == [0] * 15
        assert sorted(ack.base_offset for ack in acks) == sorted([*range(10), *range(5)])
        assert [log_end(node, page) for page in topic.pages] == [10, 5]
        with pytest.raises(Refusal, match="TopicExistsError"):
            client.create("orders")
        producer.close()


@pytest.mark.rule(2)
def test_rule_2_a_killed_writer_is_replaced_and_what_it_left_is_drained_exactly(node):
    node.start()
    with node.attach(lo.KIND_PRODUCER) as client:
        topic = client.create("orders")
        producer = RawProducer(client, topic)
        sent = 0
        for _ in range(5):
            [writer] = eventually(lambda: [w for w in node.writers() if w.pid], "a writer")
            producer.send(20)
            os.kill(writer.pid, signal.SIGKILL)
            producer.send(20)
            sent += 40
            acks = producer.acks(40)
            assert [ack.base_offset for ack in acks] == list(range(sent - 40, sent))
        assert log_end(node, topic.pages[0]) == sent
        [writer] = node.writers()
        assert writer.restarts == 5
        assert len(writers_of(node.pid)) == 1
        producer.close()


@pytest.mark.rule(10)
def test_rule_10_a_waiting_consumer_is_woken_by_a_writer_and_by_its_successor(node):
    node.start()
    with node.attach(lo.KIND_CONSUMER) as consumer, node.attach(lo.KIND_PRODUCER) as client:
        topic = client.create("orders")
        producer = RawProducer(client, topic)
        table = Region.of_fd(os.dup(consumer.fds[1]))
        slot = ClientSlot(table, consumer.welcome.slot)
        slot.watch(topic.pages)
        bell = consumer.fds[2]
        for ticket in (1, 2, 3):
            slot.publish_sleeping(ticket)
            producer.send()
            eventually(lambda: _is_rung(bell), "the doorbell rings")
            [writer] = node.writers()
            os.kill(writer.pid, signal.SIGKILL)
            _wait_for_successor(node, writer.pid)
        producer.close()


def _is_rung(bell: int) -> bool:
    try:
        return os.eventfd_read(bell) > 0
    except BlockingIOError:
        return False


def _wait_for_successor(node: NodeProcess, pid: int) -> None:
    eventually(lambda: any(w.pid not in (0, pid) for w in node.writers()), "a successor")


@pytest.mark.rule(9)
def test_rule_9_a_killed_node_is_followed_by_one_that_waits_for_its_writers(node):
    node.start()
    with node.attach() as client:
        topic = client.create("orders", partitions=2)
    writers = writers_of(node.pid)
    assert len(writers) == 2
    node.kill()
    node.start()
    eventually(lambda: all(is_gone(pid) for pid in writers), "the old writers leave")
    generations = [writer.generation for writer in node.writers()]
    assert min(generations) > 1000, "generations are never used twice"
    with node.attach() as client:
        assert client.ask(ms.FindTopic("orders"), ms.TopicFound).topic == topic


@pytest.mark.rule(10)
def test_rule_10_a_producer_outlives_its_node(node):
    node.start()
    client = node.attach(lo.KIND_PRODUCER)
    producer = RawProducer(client, client.create("orders"))
    producer.send(10)
    assert len(producer.acks(10)) == 10
    node.kill()
    producer.send(10)  # into a lane that nobody drains now
    assert client.is_hung_up()
    node.start()
    assert len(producer.acks(10)) == 10, "drained before clients were admitted"
    again = node.attach(lo.KIND_PRODUCER, resume=client.welcome.producer_id)
    assert [lane.name for lane in again.welcome.lanes] == [producer.lanes[0].name]
    assert again.welcome.slot != client.welcome.slot
    producer.send(10)
    assert [ack.base_offset for ack in producer.acks(10)] == list(range(20, 30))
    again.close(bye=True)
    eventually(lambda: sorted(shared_objects(node.folder)) == TABLES, "lane removed")
    producer.close()


@pytest.mark.rule(5)
def test_rule_5_what_a_dead_producer_left_is_in_the_log_before_clients_are_admitted(node):
    node.start()
    with node.attach() as client:
        topic = client.create("orders")
    program = """
import os, signal, sys
from pathlib import Path
from node_helpers import RawClient, RawProducer
from penstock.ipc import layout as lo, messages as ms
client = RawClient(Path(sys.argv[1]), lo.KIND_PRODUCER)
producer = RawProducer(client, client.ask(ms.FindTopic("orders"), ms.TopicFound).topic)
producer.send(1)
producer.acks(1)
os.kill(int(sys.argv[2]), signal.SIGKILL)
assert client.next() is None
producer.send(50)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(paths.socket_in(node.folder)), str(node.pid)],
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    node.wait()
    node.start()
    assert log_end(node, topic.pages[0]) == 51
    eventually(lambda: sorted(shared_objects(node.folder)) == TABLES, "lane removed")


def test_a_second_node_on_the_folder_is_refused_and_the_first_goes_on(node):
    node.start()
    second = NodeProcess(node.folder, "--lock-timeout", "0.3")
    second.start(ready=False)
    assert second.wait() == 1
    assert f"is held by the node of pid {node.pid}" in second.log
    with node.attach() as client:
        client.create("orders")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_clean(node, number):
    node.start()
    with node.attach(lo.KIND_PRODUCER) as client:
        producer = RawProducer(client, client.create("orders", partitions=2))
        producer.send(20)
        producer.close()
    assert record(node.folder)["clean"] is False
    node.signal(number)
    assert node.wait() == 0
    assert record(node.folder)["clean"] is True
    assert shared_objects(node.folder) == []
    assert not paths.socket_in(node.folder).exists()
    node.start()
    assert re.search(r"orders-0: clean: offsets 0 to 20", node.log)
    assert log_end(node, 0) == 20


def test_a_stop_leaves_lanes_and_tables_to_those_who_live_on(node):
    node.start()
    client = node.attach(lo.KIND_PRODUCER)
    producer = RawProducer(client, client.create("orders"))
    producer.send(5)
    assert node.stop() == 0
    assert record(node.folder)["clean"] is True
    assert len(shared_objects(node.folder)) == 4
    assert len(producer.acks(5)) == 5, "drained by the stop"
    producer.send(5)
    node.start()
    assert len(producer.acks(5)) == 5
    producer.close()


def test_a_stuck_writer_bounds_the_stop_and_the_next_start_recovers(tmp_path):
    with NodeProcess(tmp_path / "data", "--drain-timeout", "0.5") as node:
        node.start()
        with node.attach(lo.KIND_PRODUCER) as client:
            producer = RawProducer(client, client.create("orders"))
            producer.send(5)
            producer.acks(5)
            producer.close()
        [writer] = node.writers()
        os.kill(writer.pid, signal.SIGSTOP)
        assert node.stop() == 0
        assert record(node.folder)["clean"] is False
        assert "has not drained within 0.5 s (drain_timeout): it is killed" in node.log
        assert is_gone(writer.pid)
        node.start()
        eventually(lambda: log_end(node, 0) == 5, "the log is recovered")


def test_a_second_signal_ends_it_at_once(node):
    node.start()
    with node.attach() as client:
        client.create("orders")
    [writer] = node.writers()
    os.kill(writer.pid, signal.SIGSTOP)
    node.signal(signal.SIGTERM)
    node.wait_log("stopping: writers drain")
    node.signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM
    assert record(node.folder)["clean"] is False
    os.kill(writer.pid, signal.SIGCONT)  # it finds its channel ended, and leaves
    node.start()


def test_a_node_ends_clean_with_its_owner(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with NodeProcess(tmp_path / "data", "--owner", str(owner.pid)) as node:
        node.start()
        with node.attach() as client:
            client.create("orders")
        owner.kill()
        assert node.wait() == 0
        assert record(node.folder)["clean"] is True
        owner.communicate()


def test_topics_grow_and_go_with_their_files(node):
    node.start()
    with node.attach(lo.KIND_PRODUCER) as client:
        topic = client.create("orders", partitions=2)
        producer = RawProducer(client, topic)
        producer.send(3, partition=1)
        producer.acks(3)
        settings = ms.TopicSettings(partitions=3, durability="fsync")
        grown = client.ask(ms.AlterTopic("orders", settings), ms.TopicFound).topic
        assert grown.pages[:2] == topic.pages
        assert (len(grown.pages), grown.topic_id) == (3, topic.topic_id)
        with pytest.raises(Refusal, match="cannot shrink"):
            client.ask(ms.AlterTopic("orders", ms.TopicSettings()), ms.TopicFound)
        folders = list(node.folder.glob(f"{topic.topic_id.hex()}-*"))
        assert len(folders) == 3
        client.ask(ms.DeleteTopic("orders"), ms.Done)
        assert not any(folder.exists() for folder in folders)
        producer.send(1, partition=1)
        assert [ack.error for ack in producer.acks(1)] != [0], "its topic is gone"
        again = client.create("orders", partitions=2)
        assert again.topic_id != topic.topic_id
        fresh = RawProducer(client, again)
        fresh.lanes = producer.lanes
        fresh.sequences = {}
        fresh.send(1)
        assert [(ack.error, ack.base_offset) for ack in fresh.acks(1)] == [(0, 0)]
        producer.close()


def test_a_deletion_is_finished_by_the_next_node(node):
    node.start()
    with node.attach() as client:
        topic = client.create("orders", partitions=2)
        kept = client.create("kept")
        for writer in node.writers():
            os.kill(writer.pid, signal.SIGSTOP)
        client.channel.send(ms.DeleteTopic("orders"))
        node.wait_log("topic orders deleted")
    folders = list(node.folder.glob(f"{topic.topic_id.hex()}-*"))
    assert len(folders) == 2
    for pid in children(node.pid):
        os.kill(pid, signal.SIGKILL)
    node.kill()
    node.start()
    eventually(lambda: not any(folder.exists() for folder in folders), "the files are gone")
    with node.attach() as client:
        assert client.ask(ms.ListTopics(), ms.Topics).topics == [kept]
        eventually(
            lambda: (
                b"deleting" not in (node.folder / "topics.json").read_bytes()
                or b'"deleting": []' in (node.folder / "topics.json").read_bytes()
            ),
            "the deletion is done with",
        )


def test_garbage_on_the_attach_socket_does_not_hurt(node):
    def strike() -> None:
        for data in (b"", b"\x00" * 60_000, b"\xdf\xff\xff\xff\xff", os.urandom(5000)):
            sock = channel.connect(paths.socket_in(node.folder), 5.0)
            sock.settimeout(10.0)
            sock.send(data)
            assert sock.recv(10) == b""
            sock.close()
        with node.attach() as client:
            client.ask(ms.DescribeNode(), ms.NodeDescription)

    node.start()
    node.writers()
    strike()  # what a node opens by its first clients stays
    before = Counter(descriptors(node.pid))
    strike()
    wait_until(
        lambda: not Counter(descriptors(node.pid)) - before,
        what=lambda: f"descriptors come back: {Counter(descriptors(node.pid)) - before} more",
    )
    assert len([line for line in node.log.splitlines() if "dropped" in line]) == 8


@pytest.mark.rule(7)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace here")
def test_rule_7_a_client_that_the_node_cannot_see_is_sent_to_tcp(tmp_path):
    data = tmp_path / "data"
    node = subprocess.Popen(
        [
            *["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"],
            *[sys.executable, "-m", "penstock.server", "--data", str(data)],
        ],
        env=environment(),
        stderr=subprocess.PIPE,
    )
    try:
        assert node.stderr is not None
        for line in node.stderr:
            if b"serves" in line:
                break
        with pytest.raises(Refusal, match=r"AttachRefusedError: .*pid namespace.*tcp://"):
            RawClient(paths.socket_in(data))
    finally:
        node.kill()
        node.communicate()
        remove_shared_objects(data)


def test_damage_is_refused_with_exit_1_and_what_to_do(node):
    node.start()
    assert node.stop() == 0
    (node.folder / "topics.json").write_text('{"schema": 1, "topics": [{}]}')
    node.start(ready=False)
    assert node.wait() == 1
    assert "topics.json cannot be read" in node.log
    assert "Traceback" not in node.log


def test_rounds_of_attaching_and_being_killed_leak_nothing(tmp_path):
    seed = seed_of("killed clients")
    with NodeProcess(tmp_path / "data", "--lane-capacity", "65536", "--writers", "2") as node:
        node.start()
        with node.attach() as client:
            client.create("orders", partitions=2)
        helper = Path(__file__).resolve().parents[1] / "killed_clients.py"
        before = _held(node)
        done = subprocess.run(
            [sys.executable, helper, paths.socket_in(node.folder), str(ROUNDS), str(seed)],
            env=environment(), capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.stdout == "done\n", done.stderr
        eventually(lambda: _held(node) == before, f"{before} again, now {_held(node)}")
        assert "Traceback" not in node.log
        assert node.stop() == 0
        assert shared_objects(node.folder) == []
        assert record(node.folder)["clean"] is True


def _held(node: NodeProcess) -> tuple[object, ...]:
    """All that a leak would show in."""
    with node.attach() as client:
        description = client.ask(ms.DescribeNode(), ms.NodeDescription)
        table = Region.of_fd(os.dup(client.fds[1]))
        slots = sum(ClientSlot(table, slot).in_use for slot in range(lo.CLIENTS_MAX))
        table.close()
    writers = list(children(node.pid))
    return (
        sorted(shared_objects(node.folder)),
        description.lanes,
        slots,
        [len(descriptors(pid)) for pid in (node.pid, *writers)],
    )
