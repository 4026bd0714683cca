"""Exactly once under kill -9: a job that reads, transforms and writes gives each input once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from node_helpers import environment, eventually
from seeds import seed_of

import penstock
from penstock.testing import Broker

pytestmark = pytest.mark.crash

PROGRAMS = Path(__file__).resolve().parents[1] / "transaction_programs.py"
ASKED = min(int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0")), 200)
RECORDS_A_ROUND = 200  # more than a job handles before it is killed


def start(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAMS, "job", url, "in", "out", "job"],
        stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def committed(broker: Broker) -> Counter[bytes]:
    with (
        broker.connect() as client,
        client.consumer("out", isolation="read_committed", follow=False) as consumer,
    ):
        return Counter(record.value or b"" for record in consumer)


def nothing_open(broker: Broker) -> bool:
    with broker.connect() as client:
        return all(each.state == "ready" for each in client.admin().list_transactions())


def test_a_killed_job_gives_each_input_once():
    """The job is killed between two lines of its own, at a random moment; with it, in some rounds,
    a writer or the node."""
    victims = ("job", "writer", "node")
    seed = seed_of("a killed job")
    chance = random.Random(seed)
    rounds = max(8, ASKED)
    records = rounds * RECORDS_A_ROUND
    with Broker() as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=2)
        with broker.connect() as client, client.producer() as producer:
            for first in range(0, records, 100):
                numbers = range(first, first + 100)
                producer.send_batch(
                    "in", [b"%d" % n for n in numbers], keys=[b"%d" % (n % 17) for n in numbers]
                )
        job = start(broker.url)
        kills: Counter[str] = Counter()
        try:
            for _ in range(rounds):
                assert job.stdout is not None
                for _ in range(chance.randint(1, 4)):
                    line = job.stdout.readline()
                    assert line in ("ready\n", "committed\n", "idle\n"), (line, seed)
                time.sleep(chance.uniform(0.0, 0.01))  # anywhere within the next transaction
                victim = chance.choice(victims)
                kills[victim] += 1
                if victim == "node":
                    broker.restart(kill=True)
                elif victim == "writer":
                    broker.kill_writer(chance.choice(["in", "out"]), chance.randrange(2))
                job.send_signal(signal.SIGKILL)
                job.communicate()
                job = start(broker.url)
            out, _ = job.communicate(timeout=120)
            assert out.endswith("idle\n"), seed
        finally:
            job.kill()
            job.wait()
        eventually(lambda: nothing_open(broker), "the last markers")
        assert committed(broker) == Counter(b"did %d" % n for n in range(records)), (seed, kills)


def test_a_transaction_is_whole_whatever_dies_around_its_producer():
    """The producer lives; writers and the node are killed under its transactions."""
    seed = seed_of("transactions amid deaths")
    chance = random.Random(seed)
    outcomes: dict[int, str] = {}
    with Broker() as broker:
        broker.create_topic("out", partitions=2)
        with (
            broker.connect() as client,
            client.producer(transactional_id="t", timeout=20.0) as producer,
        ):
            for number in range(10 * max(10, ASKED)):
                producer.begin_transaction()
                try:
                    for partition in range(2):
                        producer.send("out", b"%d" % number, partition=partition)
                    if number % 10 == 5:
                        if chance.random() < 0.5:
                            broker.restart(kill=True)
                        else:
                            broker.kill_writer("out", chance.randrange(2))
                    if chance.random() < 0.2:
                        producer.abort_transaction()
                        outcomes[number] = "aborted"
                        continue
                    producer.commit_transaction()
                    outcomes[number] = "committed"
                except penstock.TransactionError:
                    producer.abort_transaction()
                    outcomes[number] = "aborted"
        eventually(lambda: nothing_open(broker), "the last markers")
        found = committed(broker)
        wanted = Counter({b"%d" % n: 2 for n, how in outcomes.items() if how == "committed"})
        assert found == wanted, seed
        assert set(outcomes.values()) == {"committed", "aborted"}, seed
