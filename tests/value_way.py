"""The way of one value from `send` to a segment file and to a consumer, as modules of the product.

`python tests/value_way.py` prints it by shared memory and by TCP. Each process on the way runs with
`value_trace`, which notes the modules that have the value in their hands: so it is seen, not told.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from value_trace import MARK, OFF, ON, TELL

import penstock
from penstock.testing.embedded import EmbeddedNode

Way = Literal["shm", "tcp"]
ROLES: Final = {
    "producer": "value_way.py producer",
    "gateway": "penstock.server.gateway.main",
    "writer": "penstock.server.writer.main",
    "consumer": "value_way.py consumer",
}
VALUES: Final = 5
"""Values that are followed; those before them find places that are made at first use."""
PATIENCE: Final = 30.0
"""Seconds."""


def way_of_a_value(way: Way) -> dict[str, list[str]]:
    """The modules of each process, in the order in which they had the first value."""
    with tempfile.TemporaryDirectory(prefix="penstock-way-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "switch").write_bytes(bytes([OFF]))
        with (folder / "switch").open("r+b") as file:
            switch = mmap.mmap(file.fileno(), 1)
        (folder / "sitecustomize.py").write_text("import value_trace\n")
        modules = os.pathsep.join([name, str(Path(__file__).resolve().parent)])
        traced = {"PENSTOCK_VALUE_TRACE": name, "PYTHONPATH": modules}
        os.environ.update(traced)
        stack.callback(lambda: [os.environ.pop(each) for each in traced])
        node = stack.enter_context(EmbeddedNode(folder / "data", listen=True, writers=1))
        with node.connect() as client:
            client.admin().create_topic("topic", penstock.TopicConfig(partitions=1))
        url = node.tcp_url if way == "tcp" else node.url
        consumer = stack.enter_context(_End("consumer", url, way))
        producer = stack.enter_context(_End("producer", url, way))
        for number in range(VALUES + VALUES):
            switch[0] = ON if number >= VALUES else OFF
            producer.go_on()
            producer.await_line()
            consumer.await_line()
        switch[0] = TELL
        return {role: _told(folder, role) for role in ROLES if role != "gateway" or way == "tcp"}


class _End:
    """The process that sends, or the one that reads."""

    def __init__(self, role: str, url: str, way: Way) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, role, url, "tcp" if way == "tcp" else "auto"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.await_line()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def await_line(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("a process on the way has ended")

    def __enter__(self) -> _End:
        return self

    def __exit__(self, *_raised: object) -> None:
        with self._process:
            self._process.kill()


def _told(folder: Path, role: str) -> list[str]:
    """What the process of that role wrote down."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for file in folder.glob("*.json"):
            command, modules = json.loads(file.read_text())
            if ROLES[role] in command:
                return [module.removeprefix("penstock.") for module in modules]
        time.sleep(0.02)
    raise RuntimeError(f"the {role} told nothing within {PATIENCE:g} s")


def _produce(client: penstock.Client) -> None:
    with client.producer() as producer:
        print(flush=True)
        for _ in sys.stdin:
            producer.send_and_wait("topic", MARK)
            print(flush=True)


def _consume(client: penstock.Client) -> None:
    with client.consumer("topic") as consumer:
        print(flush=True)
        for _ in consumer:
            print(flush=True)


def _show() -> None:
    ways: tuple[Way, ...] = ("shm", "tcp")
    for way in ways:
        found = way_of_a_value(way)
        print(way, " + ".join(str(len(modules)) for modules in found.values()))
        for role, modules in found.items():
            print(f"  {role:9}", *modules)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        _show()
    else:
        with penstock.connect(sys.argv[2], transport=sys.argv[3]) as connected:  # type: ignore[arg-type]
            (_produce if sys.argv[1] == "producer" else _consume)(connected)
