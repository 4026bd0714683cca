"""`penstock work`: processes that work on a queue, and what becomes of jobs when they end."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runner import Running, call_cli, cli_process, run_cli
from node_helpers import children

from penstock.testing import Broker, drain, wait_until

HANDLERS = """
import os
import signal
import time
from pathlib import Path

HERE = Path(__file__).parent

def tell(job, how):
    with open(HERE / "told", "a") as file:
        file.write(f"{how} {job.value.decode()} {os.getpid()}\\n")

def resize(job):
    number = int(job.value)
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 13 and job.deliveries < 3:
        raise ValueError(f"{number} is unlucky")
    tell(job, "done")

def slow(job):
    tell(job, "begun")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    tell(job, "done")

async def later(job):
    pass

seven = 7
"""
NAMES = (f"jobs-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic(next(NAMES), partitions=2)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "images.py").write_text(HANDLERS)
    return tmp_path


def send(node: Broker, topic: str, count: int) -> None:
    with node.connect() as client, client.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def told(here: Path, how: str) -> Counter[int]:
    file = here / "told"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return Counter(int(line[1]) for line in lines if line[0] == how)


@contextmanager
def working(node: Broker, here: Path, topic: str, handler: str, *more: str) -> Iterator[Running]:
    arguments = ("work", f"images:{handler}", "-t", topic, "-g", topic, "--backoff", "0.01", "0.02")
    with cli_process(*arguments, *more, url=node.url, env={"PYTHONPATH": str(here)}) as process:
        yield process


def lag(node: Broker, topic: str) -> int:
    with node.connect() as client, client.admin() as admin:
        return admin.describe_share_group(topic).lag


def test_a_job_that_kills_its_worker_costs_no_other_job_and_becomes_a_dead_letter(
    node: Broker, here: Path, topic: str
) -> None:
    send(node, topic, 60)
    with working(node, here, topic, "resize", "-c", "2", "--max-deliveries", "3") as process:
        done = set(range(60)) - {7}
        wait_until(
            lambda: set(told(here, "done")) == done and lag(node, topic) == 0,
            timeout=60,
            what=lambda: f"{told(here, 'done')}",
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert said.count("ended by signal 9; its jobs go to others") == 3
    assert "13 is unlucky" in said
    [dead] = drain(node, f"{topic}.dlq")
    assert dead.value == b"7"
    assert (b"penstock.dlq.deliveries", b"3") in [
        (name.encode() if isinstance(name, str) else name, value) for name, value in dead.headers
    ]


def test_told_to_stop_it_finishes_the_job_in_hand_and_gives_back_the_rest(
    node: Broker, here: Path, topic: str
) -> None:
    send(node, topic, 9)
    with working(node, here, topic, "slow") as process:
        wait_until(lambda: told(here, "begun"), timeout=30)
        process.send_signal(signal.SIGTERM)
        (here / "go").touch()
        assert process.wait() == 0
    assert sum(told(here, "done").values()) == 1
    assert lag(node, topic) == 8
    with node.connect() as client, client.share_consumer(topic, group=topic) as jobs:
        again: list[int] = []
        while len(again) < 8:
            again += [job.deliveries for job in jobs.poll(timeout=10)]
    assert again == [1] * 8


def test_what_takes_longer_than_its_grace_is_killed_and_comes_again(
    node: Broker, here: Path, topic: str
) -> None:
    send(node, topic, 1)
    with working(node, here, topic, "slow", "--grace", "0.2") as process:
        wait_until(lambda: told(here, "begun"), timeout=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 4
        assert process.stderr is not None
        assert b"1 worker was killed with a job in hand" in process.stderr.read()
    assert lag(node, topic) == 1


def test_workers_end_with_the_process_that_watches_them(
    node: Broker, here: Path, topic: str
) -> None:
    send(node, topic, 1)
    (here / "go").touch()
    with working(node, here, topic, "slow", "-c", "2") as process:
        wait_until(lambda: told(here, "done"), timeout=30)
        workers = list(children(process.pid))
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), timeout=30)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("images", "name a function of one job by MODULE:HANDLER"),
        ("images:nothing", "is no function of one job: it is None"),
        ("images:seven", "is no function of one job: it is 7"),
        ("images:later", "is a coroutine function"),
        ("pictures:resize", "there is no module 'pictures'"),
    ],
)
def test_a_handler_that_is_none_ends_all_at_once(
    node: Broker, here: Path, topic: str, target: str, says: str
) -> None:
    ran = run_cli(
        "work",
        target,
        "-t",
        topic,
        "-g",
        topic,
        "-c",
        "2",
        url=node.url,
        env={"PYTHONPATH": str(here)},
    )
    assert ran.code == 1
    assert says in ran.err


def test_options_that_cannot_be_are_refused(node: Broker, topic: str) -> None:
    for more in (["-c", "0"], ["--max-deliveries", "256"], ["--grace", "-1"]):
        assert call_cli("work", "a:b", "-t", topic, "-g", "g", *more, url=node.url).code == 2
    assert call_cli("work", "a:b", "-g", "g", url=node.url).code == 2
