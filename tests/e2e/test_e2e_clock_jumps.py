"""The wall clock jumps by years, at a boot or while the node runs: nothing expires for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from altered_start import Seconds, wrong_clock
from node_helpers import NodeProcess, eventually

import penstock
from penstock import Client, TopicConfig
from penstock.ipc.hostslots import CleanerSlot
from penstock.ipc.shm import Region, object_name, open_existing

YEARS = 10 * 365 * 86_400.0
DAY = 86_400.0
RECORDS = 500
OTHER_BOOT = "00000000-0000-4000-8000-000000000000"
pytestmark = pytest.mark.local("is about the node's own clock")


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seconds:
    return wrong_clock(tmp_path, monkeypatch)


@pytest.fixture
def node(tmp_path: Path, clock: Seconds) -> Iterator[NodeProcess]:
    arguments = ("--writers", "1", "--cleaner-interval", "0.05", "--metrics", "127.0.0.1:0")
    with NodeProcess(tmp_path / "data", *arguments) as node:
        yield node.start()


def connect(node: NodeProcess) -> Client:
    return penstock.connect(f"shm://{node.folder}", timeout=20)


def use(client: Client) -> None:
    """Records that stay for a week, a group's offsets, and a transactional id."""
    week = 7 * DAY
    client.admin().create_topic("t", TopicConfig(segment_bytes=32 << 10, retention=week))
    with client.producer() as producer:
        for number in range(RECORDS):
            producer.send("t", b"%06d" % number * 100)
    with client.producer(transactional_id="tx") as producer:
        producer.begin_transaction()
        producer.send("t", b"in a transaction")
        producer.commit_transaction()
    with client.consumer("t", group="g", follow=False) as consumer:
        assert sum(1 for _ in consumer) == RECORDS + 1
        consumer.commit()


def rounds_pass(node: NodeProcess) -> None:
    """The cleaner looks at all partitions again, twice, and decisions are taken."""
    names = msgspec.json.decode((node.folder / "node.json").read_bytes())["shm"]
    with Region.of_fd(open_existing(object_name(names, "state"), writable=True)) as region:
        slot = CleanerSlot(region)
        before = slot.read().runs
        eventually(lambda: slot.read().runs >= before + 3, "rounds of the cleaner")


def go_on(client: Client) -> None:
    """One more record, which the group takes."""
    with client.producer() as producer:
        producer.send_and_wait("t", b"another")
    with client.consumer("t", group="g", follow=False) as consumer:
        assert sum(1 for _ in consumer) == 1
        consumer.commit()


def all_is_there(client: Client) -> None:
    admin = client.admin()
    partition = admin.describe_topic("t").partitions[0]
    assert partition.log_start == 0
    (row,) = admin.describe_group("g").partitions
    assert row.committed == partition.high_watermark
    assert [each.transactional_id for each in admin.list_transactions()] == ["tx"]


def of_another_boot(node: NodeProcess) -> None:
    """What the node noted of its clock was in a boot before."""
    path = node.folder / "clock.json"
    if path.exists():
        noted = msgspec.json.decode(path.read_bytes())
        path.write_bytes(msgspec.json.encode({**noted, "boot_id": OTHER_BOOT}))


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["ahead", "back"])
def test_a_boot_with_a_wrong_clock_expires_nothing(node, clock, jump):
    """And neither does the one after it, when the clock is right again."""
    with connect(node) as client:
        use(client)
    for offset in (jump, jump, 0.0):
        assert node.stop() == 0
        of_another_boot(node)
        clock.set(offset)
        node.start()
        with connect(node) as client:
            go_on(client)
            rounds_pass(node)
            all_is_there(client)


def test_a_clock_that_jumps_while_the_node_runs_expires_nothing(node, clock):
    with connect(node) as client:
        use(client)
        go_on(client)
        for jump in (YEARS, -YEARS, 0.0):
            clock.set(jump)
            go_on(client)
            rounds_pass(node)
            all_is_there(client)
