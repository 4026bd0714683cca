"""`penstock.testing`: brokers for tests, what they do, and that nothing of them is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from cli_runner import environment
from node_helpers import uuid_of

from penstock.core.errors import ConfigError, PenstockError, TopicExistsError
from penstock.ipc.shm import listing
from penstock.testing import Broker, assert_records, drain, produce, remains, wait_until


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where brokers of this test, and of its children, put their folders."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


# --- what a broker does ---------------------------------------------------------------------------
def test_a_broker_takes_records_and_gives_them_back(penstock_broker_module):
    topic = penstock_broker_module.create_topic(partitions=3)
    receipts = produce(penstock_broker_module, topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert receipts[0].partition == receipts[2].partition
    assert receipts[0].offset != receipts[2].offset
    records = assert_records(
        penstock_broker_module, topic, [(b"b", b"2"), (b"a", b"1"), (b"a", b"3")]
    )
    assert {record.topic for record in records} == {topic}


def test_helpers_take_a_client_and_a_url_too(penstock_broker_module):
    topic = penstock_broker_module.create_topic()
    with penstock_broker_module.connect() as client:
        produce(client, topic, [b"1", None])
        assert [record.value for record in drain(client, topic)] == [b"1", None]
    assert_records(penstock_broker_module.url, topic, [b"1", None])


def test_topics_are_as_said_or_as_the_broker_was_told():
    with Broker(partitions=2, durability="fsync", writers=1) as broker:
        broker.create_topic("t")
        broker.create_topic("u", partitions=1, durability="os", segment_bytes=1 << 20)
        with broker.connect() as client:
            admin = client.admin()
            told, said = admin.describe_topic("t"), admin.describe_topic("u")
        assert (len(told.partitions), told.settings["durability"]) == (2, "fsync")
        assert (len(said.partitions), said.settings["durability"]) == (1, "os")
        assert said.settings["segment_bytes"] == 1 << 20
        with pytest.raises(TopicExistsError):
            broker.create_topic("t")


def test_a_killed_writer_is_replaced_under_a_living_producer(penstock_broker):
    topic = penstock_broker.create_topic(partitions=2)
    with penstock_broker.connect() as client, client.producer() as producer:
        producer.send_and_wait(topic, b"1", partition=1)
        [killed] = penstock_broker.kill_writer(topic, 1)
        producer.send_and_wait(topic, b"2", partition=1, timeout=20)
        [successor] = penstock_broker.kill_writer(topic, 1)
        assert successor != killed
        assert killed not in penstock_broker.kill_writer()
        producer.send_and_wait(topic, b"3", partition=1, timeout=20)
    assert_records(penstock_broker, topic, [b"1", b"2", b"3"])
    with pytest.raises(ConfigError, match="has no partition 2"):
        penstock_broker.kill_writer(topic, 2)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_broker_comes_back_with_what_it_had(penstock_broker, kill):
    topic = penstock_broker.create_topic()
    produce(penstock_broker, topic, [b"1"])
    pid = penstock_broker.pid
    assert penstock_broker.restart(kill=kill) > 0
    assert penstock_broker.pid != pid
    produce(penstock_broker, topic, [b"2"])
    assert_records(penstock_broker, topic, [b"1", b"2"])
    with pytest.raises(PenstockError, match="runs already"):
        penstock_broker.start()


def test_options_reach_the_node_and_wrong_ones_are_explained(scratch):
    with Broker(options={"topics_max": 1}) as broker:
        broker.create_topic()
        with pytest.raises(PenstockError, match="topics_max"):
            broker.create_topic()
    with pytest.raises(
        PenstockError, match=r"exit status 2 (?s:.*)unrecognized arguments: --no-such-thing 1"
    ):
        Broker(options={"no_such_thing": 1})
    with pytest.raises(ConfigError, match="durability='never'"):
        Broker(durability="never")  # type: ignore[arg-type]
    assert list(scratch.iterdir()) == []


# --- what helpers say when things are not as expected ---------------------------------------------
@pytest.mark.parametrize(
    ("expected", "complaint"),
    [
        ([b"1", b"2"], r"1 not expected: b'3'"),
        ([b"1", b"2", b"4"], r"1 missing: b'4'; 1 not expected: b'3'"),
        ([b"1", b"3", b"2"], r"record 1 is b'2', expected was b'3'"),
        ([(b"k", b"1"), (None, b"2"), (None, b"3")], r"1 missing: b'k': b'1'"),
        ([b"1", b"2", b"3", b"4"], r"gave 3 records within 2 s, not 4 records: 1 missing: b'4'"),
        ([b"1", b"2", b"4", b"5"], r"not 4 records: 2 missing: b'4', b'5'; 1 not expected: b'3'"),
    ],
)
def test_a_failure_names_the_difference(penstock_broker_module, expected, complaint):
    topic = penstock_broker_module.create_topic()
    produce(penstock_broker_module, topic, [b"1", b"2", b"3"])
    with pytest.raises(AssertionError, match=complaint):
        assert_records(penstock_broker_module, topic, expected, timeout=2.0)


def test_order_is_looked_at_by_key_where_partitions_are_many(penstock_broker_module):
    topic = penstock_broker_module.create_topic(partitions=4)
    keys = [b"%d" % number for number in range(8)]
    sent = [(key, b"%d" % turn) for turn in range(2) for key in keys]
    produce(penstock_broker_module, topic, sent)
    assert_records(penstock_broker_module, topic, sorted(sent))
    swapped = [*sent[8:9], *sent[1:8], *sent[:1], *sent[9:]]
    with pytest.raises(AssertionError, match=r"record 0 of key b'0' is b'0': b'0'"):
        assert_records(penstock_broker_module, topic, swapped)


def test_a_wait_ends_with_the_first_true_value_or_says_what_was_missing():
    values = iter([0, "", "found"])
    assert wait_until(lambda: next(values)) == "found"
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: 3 of 4"):
        wait_until(lambda: False, 0.01, lambda: "3 of 4")


# --- nothing is left ------------------------------------------------------------------------------
def test_a_closed_broker_has_left_nothing(scratch):
    broker = Broker()
    folder = str(broker.folder)
    topic = broker.create_topic(partitions=2)
    with broker.connect() as client, client.producer() as producer:  # clients live on
        producer.send_and_wait(topic, b"1")
        uuid = uuid_of(broker.folder / remains.DATA)
        assert len(remains.processes_of(folder)) >= 2
        assert len(listing(f"/penstock-{uuid}-")) >= 3
        broker.close()
        assert remains.processes_of(folder) == []
        assert listing(f"/penstock-{uuid}-") == []
        assert list(scratch.iterdir()) == []
    broker.close()
    with pytest.raises(PenstockError, match="is closed"):
        broker.connect()


PROGRAM = """
import os, signal, sys, time
from penstock.testing import Broker, produce
broker = Broker()
produce(broker, broker.create_topic(partitions=2), [b"1"])
producer = broker.connect().producer()
producer.send_and_wait("topic-0", b"2")  # its lane is there when the process dies
import json
record = json.loads((broker.folder / "data/node.json").read_bytes())
print(broker.folder, record["uuid"], flush=True)
"""
ENDS = {
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "kill -9 of its group": "os.killpg(0, signal.SIGKILL)",
    "os._exit": "os._exit(1)",
    "its reaper is dead too, but the end is orderly": """
import penstock.testing.reaper as reaper
reaper._reaper._process.kill()
reaper._reaper._process.wait()
producer.close()
broker.close()""",
    "its reaper was killed, and another broker brought the next": """
import penstock.testing.reaper as reaper
reaper._reaper._process.kill()
reaper._reaper._process.wait()
Broker()
os.kill(os.getpid(), signal.SIGKILL)""",
    "a fork of it lives on": """
if not os.fork():
    broker.close()  # not the child's to close
    assert broker.folder.exists()
    time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL)""",
    "the node is frozen": """
os.kill(broker.pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nothing_outlives_the_process_that_made_it(scratch, end):
    owner = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + end],
        stdout=subprocess.PIPE,
        env=environment(),
        process_group=0,
    )
    assert owner.stdout is not None
    try:
        folder, uuid = owner.stdout.readline().decode().split()
        owner.wait(45)
        wait_until(lambda: not list(scratch.iterdir()), 45, lambda: str(list(scratch.iterdir())))
        assert remains.processes_of(folder) == []
        assert listing(f"/penstock-{uuid}-") == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()


def test_an_owner_that_dies_before_its_reaper_runs_leaves_nothing(scratch):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(20)
    left = scratch / "penstock-test-left"
    left.mkdir()
    (scratch / "released").mkdir()
    said = f"+{left}\0+{scratch / 'released'}\0-{scratch / 'released'}\0".encode()
    reaper = [sys.executable, "-m", "penstock.testing.reaper", str(dead.pid)]
    subprocess.run(reaper, input=said, env=environment(), check=True, timeout=20)
    assert [path.name for path in scratch.iterdir()] == ["released"]


def test_importing_the_plugin_loads_nothing_of_penstock():
    """It is loaded by every run of pytest where Penstock is installed."""
    program = (
        "import pytest, sys; before = set(sys.modules); import penstock.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), check=True
    )
    assert done.stdout.decode().split() == [
        "penstock", "penstock.lazily", "penstock.pytest_plugin", "penstock.version",
    ]  # fmt: skip
