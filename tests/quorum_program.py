"""One quorum in a process of its own: `python quorum_program.py FOLDER NODE QUORUM`.

It creates topics and deletes every other one, and prints a line for each thing that happens:

    up | active TERM NOW | idle TERM NOW | created NAME NOW | deletes NAME | deleted NAME

NOW is CLOCK_MONOTONIC, which all processes of a host share. At SIGUSR1 it asks for nothing more,
and says `still`; at SIGTERM it says `topics NAME ...`, all that there are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time

from penstock.cluster.controller import Image, Place
from penstock.cluster.controller.records import COORDINATOR_EPOCHS
from penstock.core.errors import PenstockError
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.quorum import Quorum
from penstock.server.quorum import controller_requests as cr


def say(*words: object) -> None:
    print(*words, flush=True)


def _changed(image: Image, places: set[Place] | None) -> None:
    pass


async def main(folder: str, node: int, voters: str) -> None:
    config = NodeConfig(
        folder, name=None, listen="tcp://127.0.0.1:0", node_id=node, controller_quorum=voters
    )
    opened = DataFolder.open(folder, "boot")
    opened.begin("boot", 1)
    quorum = Quorum(config, opened, changed=_changed)
    await quorum.start()
    watching = asyncio.create_task(watch(quorum))

    is_still, tells = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, is_still.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tells.set)
    await quorum.register((), was_clean=True)
    say("up")
    life = os.urandom(4).hex()
    for number in itertools.count():
        if is_still.is_set():
            break
        name = f"b{node}-{life}-{number}"
        try:
            await quorum.ask(cr.CreateTopic(name, os.urandom(16), 1, 1, 1, b""), timeout=60.0)
            say("created", name, time.monotonic())
            if number % 2:
                say("deletes", name)
                await quorum.ask(cr.DeleteTopic(name), timeout=60.0)
                say("deleted", name)
        except PenstockError as error:
            say("refused", error)
        if watching.done():
            watching.result()
        await asyncio.sleep(0.02)
    say("still")
    await tells.wait()
    epoch = await quorum.coordinator_epoch(60.0)
    while quorum.image.counters.get(COORDINATOR_EPOCHS, 0) <= epoch:
        await asyncio.sleep(0.01)  # the image is to have all that was decided before
    say("topics", *sorted(quorum.image.ids))
    await asyncio.Event().wait()


async def watch(quorum: Quorum) -> None:
    was_active = False
    while True:
        if quorum.is_active != was_active:
            was_active = quorum.is_active
            term = quorum.describe()["term"]
            say("active" if was_active else "idle", term, time.monotonic())
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], mode=0o700, exist_ok=True)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
