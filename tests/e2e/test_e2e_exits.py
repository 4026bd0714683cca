"""Programs that end without `close` or `with`: what they sent arrives, or they say what did not.

Each is a file of its own in a process of its own. The log is read once that process is gone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from crash.node_under_test import environment, is_running
from ending_programs import HEAD, LOOPS, PROCESSES, PROGRAMS, Ending

from penstock.testing import Broker, wait_until

WITHIN = 60.0
ALL = PROGRAMS | PROCESSES | LOOPS
OVER_TCP = {
    "records linger",
    "batches wait for room",
    "a fork that sends and exits",
    "processes by fork from a program that has sent",
    "a pool of processes",
    "a loop ends",
    "records wait in line for room",
}
pytestmark = [pytest.mark.timeout(120), pytest.mark.over_tcp]


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    node.create_topic(name)
    return name


def start(folder: Path, node: Broker, topic: str, program: str) -> subprocess.Popen[str]:
    path = folder / "program.py"
    path.write_text(program)
    return subprocess.Popen(
        [sys.executable, path, node.url, topic],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and stderr."""
    try:
        _, err = process.communicate(timeout=WITHIN)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != -signal.SIGABRT, err
    return process.returncode, err


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def kill(broker: Broker) -> None:
    """With its writers, which else finish what they are at."""
    with broker.connect() as client, client.admin() as admin:
        pids = [writer.pid for writer in admin.describe_node().writers]
    broker.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), timeout=WITHIN)


def found(node: Broker, topic: str) -> Counter[tuple[int, int]]:
    """Of each record in the log who sent it, and its number there."""
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        texts = [(record.value or b"").split() for record in consumer]
    return Counter((int(text[0]), int(text[1])) for text in texts)


def sent(senders: Iterable[int], count: int) -> Counter[tuple[int, int]]:
    return Counter((sender, number) for sender in senders for number in range(count))


@pytest.mark.over_tcp(False)
@pytest.mark.parametrize("name", sorted(ALL.keys() - OVER_TCP))
def test_what_a_program_sent_arrives(tmp_path: Path, node: Broker, topic: str, name: str) -> None:
    check(tmp_path, node, topic, ALL[name])


@pytest.mark.parametrize("name", sorted(OVER_TCP))
def test_what_a_program_sent_arrives_over_tcp_too(
    tmp_path: Path, node: Broker, topic: str, name: str
) -> None:
    check(tmp_path, node, topic, ALL[name])


def check(folder: Path, node: Broker, topic: str, ending: Ending) -> None:
    status, err = ended(start(folder, node, topic, ending.program))
    assert status == ending.status, err
    assert found(node, topic) == sent(range(ending.senders), ending.records), err
    assert ending.says in err
    assert "Traceback" not in err or ending.says


def test_callbacks_run_at_the_end(tmp_path: Path, node: Broker, topic: str) -> None:
    status, err = ended(start(tmp_path, node, topic, HEAD + CALLBACKS))
    assert (status, err) == (0, "100 told\n")


CALLBACKS = """
import atexit
told = []
atexit._clear()
atexit.register(lambda: print(len(told), "told", file=sys.stderr))
atexit.register(penstock._end)
producer = penstock.connect(URL).producer(linger=60.0)
for number in range(100):
    producer.send(TOPIC, b"0 %d" % number).add_done_callback(told.append)
"""


def test_a_handler_from_before_the_import_is_refused(
    tmp_path: Path, node: Broker, topic: str
) -> None:
    """It runs when the producer is closed, and has to know that nothing is sent any more."""
    status, err = ended(start(tmp_path, node, topic, EARLY + HEAD + "\nproducer = connected()\n"))
    assert status == 0
    assert "ClosedError: this producer is closed: this process is ending" in err
    assert found(node, topic) == Counter()


EARLY = """
import atexit
atexit.register(lambda: send(0, producer))
def connected():
    return penstock.connect(URL).producer()
"""


def test_without_a_node_it_says_what_is_lost(tmp_path: Path, transport: str) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        process = start(tmp_path, broker, "orders", HEAD + LEFT_ALONE)
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        kill(broker)
        let_go(process)
        status, err = ended(process)
    assert status == 5  # the program's own
    assert "10 records are unacknowledged: no node at" in err
    assert "10 records were not delivered when this process ended (10 for 'orders')" in err
    assert "Traceback" not in err


LEFT_ALONE = """
producer = penstock.connect(URL).producer(linger=60.0, delivery_timeout=4.0)
producer.send_and_wait(TOPIC, b"0 0")
print("sent", flush=True)
sys.stdin.readline()
for number in range(10):
    producer.send(TOPIC, b"0 %d" % number)
sys.exit(5)
"""


def left_alone(tmp_path: Path, broker: Broker, delivery_timeout: float) -> subprocess.Popen[str]:
    """Ten records of a program that ends are unacknowledged, and there is no node."""
    program = LEFT_ALONE.replace("delivery_timeout=4.0", f"delivery_timeout={delivery_timeout}")
    process = start(tmp_path, broker, "orders", HEAD + program)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "sent\n"
    kill(broker)
    let_go(process)
    while "10 records are unacknowledged" not in process.stderr.readline():
        assert process.poll() is None
    return process


@pytest.mark.over_tcp(False)
def test_a_second_ctrl_c_ends_the_wait(tmp_path: Path, transport: str) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        process = left_alone(tmp_path, broker, delivery_timeout=3600.0)
        process.send_signal(signal.SIGINT)
        status, err = ended(process)
    assert status == 5
    assert "10 records were not delivered when this process ended (10 for 'orders')" in err


def test_a_node_that_comes_back_gets_what_waits_for_it(tmp_path: Path, transport: str) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        process = left_alone(tmp_path, broker, delivery_timeout=60.0)
        broker.start()
        status, err = ended(process)
        assert status == 5
        assert "not delivered" not in err
        assert found(broker, "orders") == sent([0], 10) + Counter([(0, 0)])


@pytest.mark.setting("consumer.isolation")
def test_an_open_transaction_is_aborted(tmp_path: Path, node: Broker, topic: str) -> None:
    status, err = ended(start(tmp_path, node, topic, HEAD + TRANSACTION))
    assert status == 0
    assert "is closed with a transaction open, which is aborted" in err
    with node.connect() as client:
        assert {one.state for one in client.admin().list_transactions()} == {"ready"}
        with client.consumer(topic, follow=False, isolation="read_committed") as consumer:
            assert [record.value for record in consumer] == [b"counts"]


TRANSACTION = """
producer = penstock.connect(URL).producer(transactional_id=TOPIC)
with producer.transaction():
    producer.send(TOPIC, b"counts")
producer.begin_transaction()
producer.send(TOPIC, b"does not count")
producer.flush()
stage = penstock.connect(URL).stage(TOPIC + "-stage", 1)
stage.send(TOPIC, b"does not count either")
stage.flush()
"""


def test_acks_0_and_a_full_buffer_lose_nothing(tmp_path: Path, node: Broker, topic: str) -> None:
    status, err = ended(start(tmp_path, node, topic, HEAD + FULL))
    assert (status, err) == (0, "")
    assert found(node, topic) == sent(range(2), 200)


FULL = """
for worker, options in enumerate([{"acks": 0}, {"on_full": "error"}]):
    producer = penstock.connect(URL).producer(linger=60.0, buffer_bytes_max=1 << 24, **options)
    for number in range(200):
        producer.send(TOPIC, b"%d %d " % (worker, number) + b"x" * 50_000)
"""


def test_a_member_of_a_group_leaves_it(tmp_path: Path, node: Broker, topic: str) -> None:
    with node.connect() as client, client.producer() as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(1000)])
    status, err = ended(start(tmp_path, node, topic, HEAD + MEMBER))
    assert (status, err) == (0, "")
    with node.connect() as client:
        group = client.admin().describe_group(topic)
        assert group.members == []
        assert group.lag == 1000 - 500  # of the last one the loop has not asked for another


MEMBER = """
consumer = penstock.connect(URL).consumer(TOPIC, group=TOPIC, commit_interval=3600.0)
for number, record in enumerate(consumer):
    if number == 500:
        break
"""


def test_a_member_commits_nothing_where_something_was_not_delivered(
    tmp_path: Path, node: Broker, topic: str
) -> None:
    with node.connect() as client, client.producer() as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(1000)])
    status, err = ended(start(tmp_path, node, topic, HEAD + PASSING_ON + MEMBER))
    assert status == 0
    assert "1 records were not delivered when this process ended" in err
    with node.connect() as client:
        group = client.admin().describe_group(topic)
        assert group.members == []
        assert group.lag > 500  # one that falls due at the beginning may have been committed


PASSING_ON = """
client = penstock.connect(URL)
with client.admin() as admin:
    admin.create_topic(TOPIC + "-gone")
    producer = client.producer(linger=60.0)
    producer.send_and_wait(TOPIC + "-gone", b"0 0")
    producer.send(TOPIC + "-gone", b"0 1")
    admin.delete_topic(TOPIC + "-gone")
"""


def test_a_member_in_a_daemon_thread_is_left_alone(
    tmp_path: Path, node: Broker, topic: str
) -> None:
    """It may be in the middle of anything."""
    status, err = ended(start(tmp_path, node, topic, HEAD + READING_ON))
    assert (status, err) == (0, "")


READING_ON = """
consumer = penstock.connect(URL).consumer(TOPIC, group=TOPIC)
came = threading.Event()
def read():
    for record in consumer:
        came.set()
threading.Thread(target=read, daemon=True).start()
with penstock.connect(URL).producer() as producer:
    producer.send(TOPIC, b"0 0")
came.wait()
"""
