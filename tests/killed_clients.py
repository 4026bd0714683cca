"""`killed_clients.py SOCKET ROUNDS SEED`: clients that come and are killed, each at another step.

Each round is a forked process of its own that attaches, as one kind of client or another, opens a
lane, writes into it, and is killed by SIGKILL at a random point of that. Prints `done` at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from pathlib import Path

from node_helpers import RawClient, RawProducer, Refusal

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms


def live(socket: Path, rng: random.Random, steps: int) -> None:
    """Go so many steps of a client's life, then stay."""
    kind = rng.choice([lo.KIND_PRODUCER, lo.KIND_PRODUCER, lo.KIND_CONSUMER])
    client = RawClient(socket, hello=steps > 0, kind=kind)
    if steps > 1:
        topic = client.ask(ms.FindTopic("orders"), ms.TopicFound).topic
        if kind == lo.KIND_PRODUCER and steps > 2:
            producer = RawProducer(client, topic)
            producer.send(rng.randint(0, 3), partition=0)
            producer.send(rng.randint(0, 3), partition=1)


def main(socket: str, rounds: str, seed: str) -> None:
    rng = random.Random(int(seed))
    for number in range(int(rounds)):
        reader, writer = os.pipe()
        steps = rng.randrange(5)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(Refusal):
                live(Path(socket), random.Random(number), steps)
            os.write(writer, b"x")
            signal.pause()
            os._exit(0)
        if steps != 4:  # otherwise killed wherever it is just now
            os.read(reader, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
