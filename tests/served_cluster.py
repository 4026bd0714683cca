"""A cluster as an operator has it: brokers that `penstock serve` runs, and the commands for them.
Owns what the brokers leave: it goes with the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from cli_runner import Ran, call_cli

import penstock
from penstock.testing import remains, wait_until
from penstock.testing.embedded_cluster import Places

SECONDS = 30.0
READY_WITHIN = 60.0
PENSTOCK = [sys.executable, "-m", "penstock.cli"]


class Serving:
    """One broker, started by `penstock serve`."""

    def __init__(self, number: int, folder: Path, options: Sequence[str]) -> None:
        self.number = number
        self._home = folder / str(number)
        self._home.mkdir(mode=0o700)
        self.folder = self._home / remains.DATA
        self.log = folder / f"{number}.log"
        self._words = [
            *PENSTOCK, "serve", "--data", str(self.folder), "--format", "json", *options,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Serving:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._words, stdout=subprocess.PIPE, stderr=log)
        return self

    def ready(self) -> dict[str, Any]:
        """What it says when it admits clients."""
        assert self.process is not None
        assert self.process.stdout is not None
        is_told = select.select([self.process.stdout], [], [], READY_WITHIN)[0]
        line = self.process.stdout.readline() if is_told else b""
        assert line, (
            f"broker {self.number} is {'up' if self.is_running else 'gone'} and does not admit "
            f"clients within {READY_WITHIN:g} s:\n{self.log.read_text()[-8000:]}"
        )
        told: dict[str, Any] = json.loads(line)
        return told

    def page(self, path: str) -> tuple[int, str]:
        """What it serves over HTTP."""
        with penstock.connect(f"shm://{self.folder}") as client:
            place = client.admin().describe_node().metrics
        connection = HTTPConnection(place, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def until_ready(self) -> None:
        wait_until(
            lambda: self.page("/readyz") == (200, "ready\n"), SECONDS,
            lambda: self.page("/readyz")[1],
        )  # fmt: skip

    def kill(self) -> None:
        """All of its processes, at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        remains.end_processes(os.fspath(self._home))

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        remains.remove(os.fspath(self._home))


class Three:
    """The cluster, and what the command line says of it."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(3)
        self.brokers = {each: Serving(each, folder, self.options(each)) for each in (1, 2, 3)}

    def options(self, number: int) -> list[str]:
        """What its command line says."""
        options = self.places.options(number)
        return [
            "--node-id", str(number), "--listen", self.places.listen(number),
            "--cluster-listen", str(options["cluster_listen"]),
            "--controller-quorum", str(options["controller_quorum"]),
            "--metrics", "127.0.0.1:0",
        ]  # fmt: skip

    def start(self) -> dict[int, str]:
        """All of them; where each says that it listens."""
        for each in self.brokers.values():
            each.start()
        return {number: each.ready()["listen"] for number, each in self.brokers.items()}

    def run(self, *words: str, at: str = "") -> Ran:
        return call_cli(*words, "-b", at or self.places.url, "--format", "json")

    def say(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.code == 0, done.err + self.logs()
        return json.loads(done.out) if done.out else None

    def describe(self) -> Any:
        return self.say("cluster", "describe")

    def states(self) -> dict[int, str]:
        return {each["broker"]: each["state"] for each in self.describe()["brokers"]}

    def partitions(self, topic: str) -> list[Any]:
        found: list[Any] = self.say("topic", "describe", topic)["partitions"]
        return found

    def leaders(self, topic: str) -> list[int | None]:
        return [each["leader"] for each in self.partitions(topic)]

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, SECONDS, lambda: f"{what}\n{self.describe()}\n{self.logs()}")

    def until_well(self) -> None:
        self.until(lambda: self.run("cluster", "health").code == 0, "all well")

    def until_each_leads_one(self, topic: str) -> None:
        """Its first replicas lead: they lie on three brokers. One that a busy machine held up for
        a session has to be asked to lead again."""

        def do_they() -> bool:
            if {*self.leaders(topic)} == {1, 2, 3}:
                return True
            self.run("cluster", "elect")
            return False

        self.until(do_they, "each leads one")

    def logs(self) -> str:
        return "\n".join(
            f"--- {number}\n{each.log.read_text()[-3000:]}"
            for number, each in self.brokers.items()
            if each.log.exists()
        )

    def close(self) -> None:
        for each in self.brokers.values():
            each.end()
        self.places.close()
