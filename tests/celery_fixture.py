"""Real Celery workers as processes, and the application that they run.

The application is a module that is written into a folder of its own; its tasks write down there
what they do.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from cli_runner import environment

from penstock.testing import Broker, wait_until

APP = """
import json
import os
import time
from pathlib import Path

import penstock.kombu
from celery import Celery
from celery.exceptions import Reject

HERE = Path(__file__).parent
app = Celery(__name__, broker=os.environ["BROKER"], backend=f"db+sqlite:///{HERE}/results.db")
app.conf.update(
    broker_transport_options=json.loads(os.environ["OPTIONS"]),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    database_create_tables_at_setup=True,
)


def tell(text):
    with open(HERE / "told", "a") as file:
        file.write(f"{text} {time.monotonic()}\\n")


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def stubborn(self, times):
    if self.request.retries < times:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def note(name):
    tell(f"noted {name}")


@app.task(acks_late=True)
def late(name):
    tell(f"begun {name} {os.getpid()}")
    while not (HERE / f"go-{name}").exists():
        time.sleep(0.005)
    tell(f"done {name} {os.getpid()}")
    return name


@app.task
def early(name):
    tell(f"begun {name} {os.getpid()}")
    while not (HERE / f"go-{name}").exists():
        time.sleep(0.005)
    tell(f"done {name} {os.getpid()}")


@app.task(acks_late=True)
def rejected(name):
    raise Reject(name, requeue=False)
"""
COMMAND = [sys.executable, "-m", "celery", "-A"]
NUMBERS = itertools.count()


def broker_url(node: Broker, *, by_tcp: bool = False) -> str:
    return "penstock://" + (node.tcp_url if by_tcp else node.url).partition("://")[2]


class CeleryApp:
    """The application in a folder, for workers and for the test itself."""

    def __init__(self, here: Path, node: Broker, prefix: str, **options: Any) -> None:
        self.here, self.node, self.prefix = here, node, prefix
        self.module = f"tasks_{next(NUMBERS)}"
        (here / f"{self.module}.py").write_text(APP)
        self._settings = {
            "BROKER": broker_url(node, by_tcp="keys" in options),
            "OPTIONS": json.dumps({"prefix": prefix, **options}),
        }  # fmt: skip
        self.tasks = self._imported()
        self.app = self.tasks.app

    def _imported(self) -> Any:
        with _environ(self._settings):
            spec = spec_from_file_location(self.module, self.here / f"{self.module}.py")
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        return module

    @contextmanager
    def worker(self, name: str, *options: str) -> Iterator[CeleryWorker]:
        """A worker that answers a ping."""
        env = environment(env={**self._settings, "PYTHONDONTWRITEBYTECODE": ""})
        env["PYTHONPATH"] = os.pathsep.join([str(self.here), env["PYTHONPATH"]])
        log = self.here / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*COMMAND, self.module, "worker", "-l", "INFO", "-n", f"{name}@host", *options],
                cwd=self.here, env=env, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        made = CeleryWorker(process, log, f"{name}@host")
        try:
            wait_until(lambda: "ready." in made.said(), timeout=60, what=made.said)
            yield made
        finally:
            made.end()

    def told(self, how: str, name: str = "") -> list[list[str]]:
        """Lines that tasks wrote: how, which, and more."""
        file = self.here / "told"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line[0] == how and name in ("", line[1])]

    def go(self, name: str) -> None:
        (self.here / f"go-{name}").touch()


class CeleryWorker:
    """A worker, with the processes of its pool."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, name: str) -> None:
        self.process, self._log, self.name = process, log, name

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """With -9, and its pool with it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """As an operator does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


@contextmanager
def _environ(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
