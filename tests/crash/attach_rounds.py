"""Attaches to a node and dies, again and again: one forked process a round.

`python attach_rounds.py '{"url": ..., "topic": ..., "first": N, "rounds": N, "seed": N}'` prints
the values that were acknowledged, one a line. Forking from a process that has everything imported
makes a round cost milliseconds; no client lives in it, so each child is an honest process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock.client.client import connect
from penstock.client.session import Session
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.channel import connect as connect_socket
from penstock.ipc.paths import parse_url

LIFE_MAX: Final = 0.03
"""Seconds after which a child that has not died yet is killed from outside."""


class Round:
    """What one child does. It ends in a kill -9, in `os._exit`, or by its parent."""

    def __init__(self, url: str, topic: str, number: int, rng: random.Random) -> None:
        self.url = url
        self.socket = parse_url(url).attach_socket()
        self.topic = topic
        self.number = number
        self.rng = rng

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def maybe_die(self) -> None:
        if self.rng.random() < 0.3:
            self.die()

    def say_nothing(self) -> None:
        connect_socket(self.socket, 5.0)
        self.die()

    def say_garbage(self) -> None:
        connect_socket(self.socket, 5.0).send(self.rng.randbytes(200))
        self.die()

    def ask_before_hello(self) -> None:
        channel: Channel = Channel(connect_socket(self.socket, 5.0), inbound=ms.NodeMessage)
        channel.send(ms.FindTopic(self.topic))
        channel.recv(5.0)
        self.die()

    def attach(self) -> None:
        kind = self.rng.choice([lo.KIND_PRODUCER, lo.KIND_CONSUMER, lo.KIND_ADMIN])
        session = Session.attach(self.socket, kind, client_id="round", timeout=5.0)
        self.maybe_die()
        if kind == lo.KIND_PRODUCER:
            session.open_lane(self.rng.randrange(2), 5.0)
            self.maybe_die()
        session.close()

    def produce(self) -> None:
        client = connect(self.url)
        producer = client.producer(linger=self.rng.choice([0.0, 0.002]))
        self.maybe_die()
        values = [b"%d/%d" % (self.number, i) for i in range(self.rng.randint(1, 20))]
        deliveries = [producer.send(self.topic, value, key=value) for value in values]
        self.maybe_die()
        for value, delivery in zip(values, deliveries, strict=True):
            delivery.result(10.0)
            os.write(1, value + b"\n")
        self.maybe_die()
        producer.close()
        self.maybe_die()
        client.close()

    def consume(self) -> None:
        client = connect(self.url)
        consumer = client.consumer(self.topic)
        self.maybe_die()
        consumer.poll(timeout=self.rng.choice([0.0, 0.01]))
        self.maybe_die()
        client.close()

    def run(self) -> None:
        what: Callable[[], None] = self.rng.choices(
            [self.say_nothing, self.say_garbage, self.ask_before_hello, self.attach, self.produce,
             self.consume],
            [1, 1, 1, 3, 8, 4],
        )[0]  # fmt: skip
        what()


def run(plan: dict[str, object]) -> None:
    rng = random.Random(int(str(plan["seed"])))
    first = int(str(plan["first"]))
    for number in range(first, first + int(str(plan["rounds"]))):
        seed = rng.random()
        bound = rng.choice([None, rng.uniform(0.0, LIFE_MAX)])
        pid = os.fork()
        if not pid:
            try:
                Round(str(plan["url"]), str(plan["topic"]), number, random.Random(seed)).run()
                os._exit(0)
            except BaseException as error:
                os.write(2, f"round {number}: {error!r}\n".encode())
                os._exit(1)
        if bound is not None:
            time.sleep(bound)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise SystemExit(f"round {number} failed")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
