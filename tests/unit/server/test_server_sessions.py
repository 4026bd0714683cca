"""The attach socket: who is admitted, who is sent away, and what the node never does for it.

The node runs on a thread of the test with fake writers, unless the test needs processes of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import fake_writer
import pytest
from node_helpers import (
    NodeProcess,
    NodeThread,
    RawClient,
    Refusal,
    descriptors,
    environment,
    eventually,
)

from penstock.core.errors import NotConnectedError
from penstock.ipc import channel, liveness, paths
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.clients import ClientSlot, check_table
from penstock.ipc.shm import Region
from penstock.ipc.state import check_table as check_state
from penstock.server.config import NodeConfig

REMOTE = ms.RemotePeer("ann", "192.0.2.1:5", bytes(16))


@pytest.fixture
def node(tmp_path):
    config = NodeConfig(
        str(tmp_path / "data"), name=None, writers_max=2, lanes_max=3, clients_max=4
    )
    with NodeThread(config, fake_writer.command()) as running:
        yield running


def connection(node: NodeThread) -> socket.socket:
    sock = channel.connect(paths.socket_in(node.folder), 5.0)
    sock.settimeout(45.0)
    return sock


def test_a_producer_gets_tables_a_slot_an_id_and_a_doorbell(node):
    with node.attach(lo.KIND_PRODUCER) as first, node.attach(lo.KIND_PRODUCER) as second:
        state, clients, bell = first.fds
        assert check_state(Region.of_fd(os.dup(state), writable=False), first.welcome.node_uuid)
        with pytest.raises(PermissionError):
            Region.of_fd(os.dup(state), writable=True)
        table = Region.of_fd(os.dup(clients))
        assert check_table(table)
        assert ClientSlot(table, first.welcome.slot).pid == os.getpid()
        os.eventfd_write(bell, 1)
        assert first.welcome.slot != second.welcome.slot
        assert 0 < first.welcome.producer_id < second.welcome.producer_id
        assert first.welcome.data_folder == str(node.folder)
        assert first.welcome.boot_id == liveness.boot_id()
        assert (first.welcome.writers, first.welcome.lanes) == (2, [])


def test_an_admin_has_no_slot_and_no_producer_id(node):
    with node.attach(lo.KIND_ADMIN) as admin:
        assert (admin.welcome.slot, admin.welcome.producer_id) == (-1, 0)
        with pytest.raises(Refusal, match="ConfigError: only a producer has lanes"):
            admin.open_lane()
        assert admin.ask(ms.ListTopics(), ms.Topics) == ms.Topics([], more=False)


def test_slots_and_descriptors_come_back(node):
    before = descriptors(os.getpid())
    slots = set()
    for kind in (lo.KIND_PRODUCER, lo.KIND_CONSUMER, lo.KIND_ADMIN) * 5:
        client = node.attach(kind)
        slots.add(client.welcome.slot)
        client.close(bye=True)
    assert len(slots) == 11
    eventually(lambda: descriptors(os.getpid()) == before, "descriptors come back")


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"x" * 1000, b"\xff" * 60_000, b"\x00" * channel.MESSAGE_BYTES_MAX]
)
def test_garbage_is_dropped_with_a_reason_and_the_node_goes_on(node, data, caplog):
    sock = connection(node)
    sock.send(data)
    assert sock.recv(100) == b""
    sock.close()
    with node.attach() as client:
        assert client.ask(ms.DescribeNode(), ms.NodeDescription).clients == 1
    assert f"connection of pid {os.getpid()} dropped" in caplog.text


def test_descriptors_that_nobody_asked_for_are_closed(node):
    before = descriptors(os.getpid())
    with node.attach() as client:
        reader, writer = os.pipe()
        client.channel.send(ms.DescribeNode(), [reader, writer] * 4)
        assert isinstance(client.next(), ms.NodeDescription)
        os.close(reader)
        os.close(writer)
    eventually(lambda: descriptors(os.getpid()) == before, "descriptors come back")


@pytest.mark.setting("node.hello_timeout")
def test_who_says_nothing_is_dropped(tmp_path, caplog):
    config = NodeConfig(str(tmp_path / "data"), name=None, hello_timeout=0.3)
    with NodeThread(config, fake_writer.command()) as node:
        begun = time.monotonic()
        sock = connection(node)
        assert sock.recv(100) == b""
        assert 0.25 < time.monotonic() - begun < 30.0
        assert "it said no hello for 0.3 s" in caplog.text
        sock.close()


def test_the_first_word_must_be_hello_and_only_the_first(node):
    with RawClient(paths.socket_in(node.folder), hello=False) as client:
        client.channel.send(ms.DescribeNode())
        assert client.is_hung_up()
    with node.attach() as client:
        client.channel.send(ms.Hello(ms.PROTOCOL_VERSION, lo.KIND_ADMIN, 1, "again"))
        assert client.is_hung_up()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 99}, "UnsupportedVersionError: the client speaks version 99.*this node 1"),
        ({"kind": 9}, "ConfigError: kind 9"),
        ({"start_time": 1}, "AttachRefusedError: .*another pid namespace.*tcp"),
        ({"resume": 12345}, "AttachRefusedError: producer id 12345 was not given by this node"),
        ({"kind": lo.KIND_REPLICATOR}, "AttachRefusedError: .* is not this node's replicator"),
        ({"remote": REMOTE}, "AttachRefusedError: .* is not this node's gateway"),
    ],
)
def test_a_refusal_says_why(node, changes, error):
    with pytest.raises(Refusal, match=error):
        node.attach(**{"kind": lo.KIND_PRODUCER, **changes})


def test_the_bound_of_clients_is_named_and_room_comes_back(node):
    clients = [node.attach() for _ in range(4)]
    with pytest.raises(Refusal, match=r"ResourceLimitError: .*4 clients, its bound clients_max"):
        node.attach()
    clients[0].close()
    eventually(lambda: _attaches(node), "room for a client")
    for client in clients[1:]:
        client.close()


def _attaches(node: NodeThread) -> bool:
    try:
        node.attach().close()
    except Refusal:
        return False
    return True


def test_the_bound_of_lanes_is_named(node):
    with node.attach(lo.KIND_PRODUCER) as one, node.attach(lo.KIND_PRODUCER) as two:
        one.open_lane(0).detach()
        one.open_lane(1).detach()
        two.open_lane(0).detach()
        with pytest.raises(Refusal, match=r"ResourceLimitError: .*3 lanes, its bound lanes_max"):
            two.open_lane(1)


def test_asking_twice_for_a_lane_gives_the_same_one(node):
    with node.attach(lo.KIND_PRODUCER) as producer:
        first = producer.open_lane(1)
        second = producer.open_lane(1)
        assert first.name == second.name
        assert first.writer == second.writer == 1
        first.try_write(0, [b"x"], 1)
        assert second.head == 0
        assert second._q[lo.Q_LANE_TAIL] == first.tail > 0
        with pytest.raises(Refusal, match=r"ConfigError: writer 2 is outside 0\.\.1"):
            producer.open_lane(2)
        with pytest.raises(Refusal, match="ConfigError: lane capacity is 1"):
            producer.open_lane(0, capacity=1)


def test_a_client_that_does_not_read_is_dropped_and_holds_nobody_up(node, caplog):
    stuck = node.attach()
    with pytest.raises(NotConnectedError):
        _send_without_reading(stuck)
    assert "does not read its answers" in caplog.text
    with node.attach() as client:
        assert client.ask(ms.DescribeNode(), ms.NodeDescription).clients == 1
    stuck.close()


def _send_without_reading(client: RawClient) -> None:
    for _ in range(100_000):
        client.channel.send(ms.DescribeNode())


def test_requests_are_answered_in_their_order_although_one_takes_time(node):
    with node.attach() as client:
        client.channel.send(ms.CreateTopic("slow", ms.TopicSettings(partitions=4)))
        client.channel.send(ms.ListTopics())
        client.channel.send(ms.DeleteTopic("slow"))
        client.channel.send(ms.ListTopics())
        answers = [client.next() for _ in range(4)]
        assert isinstance(answers[0], ms.TopicFound)
        assert [topic.name for topic in answers[1].topics] == ["slow"]
        assert answers[2:] == [ms.Done(), ms.Topics([], more=False)]


def test_topics_are_listed_in_pages(tmp_path):
    config = NodeConfig(str(tmp_path / "data"), name=None)
    with NodeThread(config, fake_writer.command()) as node, node.attach() as client:
        names = [f"topic-{number:03}-{'x' * 180}" for number in range(130)]
        for name in reversed(names):
            client.create(name)
        found: list[str] = []
        more = True
        pages = 0
        while more:
            page = client.ask(ms.ListTopics(found[-1] if found else ""), ms.Topics)
            found += [topic.name for topic in page.topics]
            more = page.more
            pages += 1
        assert found == names
        assert pages > 1


@pytest.mark.rule(7)
def test_rule_7_a_dead_client_is_gone_although_its_child_holds_the_socket(node):
    program = """
import os, sys, time
from pathlib import Path
from node_helpers import RawClient
from penstock.ipc import layout as lo
client = RawClient(Path(sys.argv[1]), lo.KIND_PRODUCER)
client.open_lane().detach()
if os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
    sys.stdin.read()
    os._exit(0)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(paths.socket_in(node.folder))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    with node.attach() as client:

        def counts() -> tuple[int, int]:
            description = client.ask(ms.DescribeNode(), ms.NodeDescription)
            return description.clients, description.lanes

        assert counts() == (2, 1)
        process.kill()
        process.wait()
        assert liveness.state(child) in ("R", "S")
        eventually(lambda: counts() == (1, 0), "the dead producer is gone")
    process.communicate(b"")


@pytest.mark.rule(7)
def test_rule_7_a_goodbye_is_the_end_of_a_living_client(node):
    with node.attach() as admin:
        client = node.attach(lo.KIND_PRODUCER)
        client.open_lane().detach()
        client.channel.send(ms.Bye())
        client.close()
        eventually(
            lambda: admin.ask(ms.DescribeNode(), ms.NodeDescription).lanes == 0, "lane removed"
        )


@pytest.mark.rule(5)
def test_rule_5_an_attempt_to_resume_that_was_given_up_takes_no_lane_away(node):
    """A node that is slow to admit meets the attempts that a living producer gave up meanwhile."""
    with node.attach() as admin, node.attach(lo.KIND_PRODUCER) as client:
        lane = client.open_lane()
        given_up = node.attach(lo.KIND_PRODUCER, resume=client.welcome.producer_id)
        given_up.close()
        eventually(
            lambda: admin.ask(ms.DescribeNode(), ms.NodeDescription).clients == 1, "nobody attached"
        )
        assert admin.ask(ms.DescribeNode(), ms.NodeDescription).lanes == 1
        with node.attach(lo.KIND_PRODUCER, resume=client.welcome.producer_id) as again:
            assert [info.name for info in again.welcome.lanes] == [lane.name]
        lane.mark_closed()
        lane.detach()
        eventually(
            lambda: admin.ask(ms.DescribeNode(), ms.NodeDescription).lanes == 0, "lane removed"
        )


@pytest.mark.rule(5)
def test_rule_5_a_producer_that_resumes_at_once_keeps_its_lanes(node):
    """Its socket ended with frames in the lane: nobody drains them here, so it is not removed."""
    first = node.attach(lo.KIND_PRODUCER)
    lane = first.open_lane(1)
    lane.try_write(0, [b"x"], 1)
    producer_id = first.welcome.producer_id
    first.close()
    with node.attach(lo.KIND_PRODUCER, resume=producer_id) as again:
        assert again.welcome.producer_id == producer_id
        assert again.welcome.lanes == [ms.LaneInfo(lane.name, 1)]
        assert len(again.fds) == 4
        assert again.open_lane(1).name == lane.name
    lane.detach()


def test_a_producer_without_lanes_keeps_its_id(node):
    first = node.attach(lo.KIND_PRODUCER)
    producer_id = first.welcome.producer_id
    with node.attach(lo.KIND_PRODUCER, resume=producer_id) as again:
        assert again.welcome.producer_id == producer_id
        assert first.is_hung_up()
    first.close()


def test_the_producer_id_of_another_living_process_is_refused(node):
    program = """
import sys
from pathlib import Path
from node_helpers import RawClient
from penstock.ipc import layout as lo
client = RawClient(Path(sys.argv[1]), lo.KIND_PRODUCER)
client.open_lane().detach()
print(client.welcome.producer_id, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(paths.socket_in(node.folder))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    producer_id = int(process.stdout.readline())
    with pytest.raises(Refusal, match=f"belongs to pid {process.pid} and not to pid {os.getpid()}"):
        node.attach(lo.KIND_PRODUCER, resume=producer_id)
    process.communicate(b"")


def test_a_dropped_lane_sends_its_client_away_with_the_reason(tmp_path):
    config = NodeConfig(str(tmp_path / "data"), name=None)
    with NodeThread(config, fake_writer.command("drop")) as node:
        with node.attach(lo.KIND_PRODUCER) as producer:
            lane = producer.open_lane()
            refused = producer.next()
            assert isinstance(refused, ms.Refused)
            assert refused.error == "CorruptBatchError"
            assert lane.name in refused.message
            assert "made to drop" in refused.message
            assert producer.is_hung_up()
            lane.detach()
        with node.attach() as admin:
            description = admin.ask(ms.DescribeNode(), ms.NodeDescription)
            assert (description.lanes, description.clients) == (0, 1)


@pytest.mark.rule(5)
def test_rule_5_a_client_sent_away_for_one_lane_keeps_its_others(tmp_path):
    """It writes on into them until it reads that, and resumes them; if it dies they are drained."""
    config = NodeConfig(str(tmp_path / "data"), name=None, writers_max=2)
    with (
        NodeThread(config, fake_writer.command("drop=0")) as node,
        node.attach(lo.KIND_PRODUCER) as producer,
        node.attach() as admin,
    ):
        kept = producer.open_lane(1)
        dropped = producer.open_lane(0)
        refused = producer.next()
        assert isinstance(refused, ms.Refused)
        assert dropped.name in refused.message
        # Writers answer in order, and these report a retired lane as drained at once.
        admin.create("t", partitions=2)
        assert admin.ask(ms.DescribeNode(), ms.NodeDescription).lanes == 1
        resume = producer.welcome.producer_id
        with node.attach(lo.KIND_PRODUCER, resume=resume) as again:
            assert again.welcome.lanes == [ms.LaneInfo(kept.name, 1)]
        kept.detach()
        dropped.detach()


@pytest.mark.rule(28)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_rule_28_another_user_is_refused(tmp_path):
    data = tmp_path / "data"
    with NodeProcess(data) as node:
        node.start()
        data.chmod(0o711)
        paths.socket_in(data).chmod(0o666)
        program = """
import os, socket, sys
os.chdir(sys.argv[1])  # while the folders above may still be passed
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(10)
sock.connect('attach.sock')
print(sock.recv(4096))
"""
        done = subprocess.run(
            [sys.executable, "-c", program, str(data)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert "AttachRefusedError" in done.stdout, done.stderr
        assert "serves uid 0, not uid 65534" in done.stdout


def test_out_of_descriptors_the_node_pauses_and_goes_on(tmp_path):
    """With a low limit some connections cannot be accepted; the node neither spins nor dies."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40));"
        "from penstock.server.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    with NodeProcess(tmp_path / "data", program=["-c", limited]) as node:
        node.start()
        socks = [channel.connect(paths.socket_in(node.folder), 5.0) for _ in range(60)]
        node.wait_log("no connection accepted for 0.1 s: .*Too many open files")
        spent = cpu_seconds(node.pid)
        for _ in range(3):  # three more pauses, told by the log and not by a clock
            node.wait_log(rf"(?s)(no connection accepted.*){{{_ + 2}}}")
        assert cpu_seconds(node.pid) - spent < 0.2
        for sock in socks:
            sock.close()
        with node.attach() as client:
            assert client.ask(ms.DescribeNode(), ms.NodeDescription).clients == 1
        assert node.stop() == 0


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
