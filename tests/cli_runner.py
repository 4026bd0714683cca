"""Running `penstock` for tests: exit status, stdout and stderr of one command line.

`run_cli` starts a process, as a shell does. `call_cli` calls the same entry point in this process,
which is ten times as fast: for the many cases that need no signals or pipes.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.cli import main

SOURCE = Path(__file__).resolve().parents[1] / "src"
COMMAND = [sys.executable, "-m", "penstock.cli"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def objects(self) -> list[Any]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.lines]


class Running:
    """A command that runs beside the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self.wait = process.wait
        self.send_signal = process.send_signal

    def resident_max(self) -> int:
        """The most memory it ever had resident, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [line] = [line for line in status if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10


def environment(url: str | None = None, env: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: this checkout, and no settings of the machine's user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), kept.get("PYTHONPATH")]))
    chosen = {} if url is None else {"PENSTOCK_URL": url}
    return {**kept, "PYTHONPATH": path, **chosen, **(env or {})}


def run_cli(
    *arguments: str | os.PathLike[str],
    url: str | None = None,
    stdin: bytes = b"",
    timeout: float = 60.0,
    env: dict[str, str] | None = None,
) -> Ran:
    """Run a command to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=environment(url, env),
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr.decode())


def call_cli(
    *arguments: str | os.PathLike[str],
    url: str | None = None,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
) -> Ran:
    """Run a command within this process; its stdin is a file."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        tempfile.TemporaryFile() as file,
        patch.dict(os.environ, environment(url, env), clear=True),
        patch("sys.stdin", io.TextIOWrapper(file)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        file.write(stdin)
        file.seek(0)
        code = main([os.fspath(argument) for argument in arguments])
    out.flush()
    err.flush()
    return Ran(code, out.buffer.getvalue(), err.buffer.getvalue().decode())


@contextmanager
def cli_process(
    *arguments: str | os.PathLike[str],
    url: str | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Running]:
    """A command that runs beside the test; killed at the end if it still does."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(url, env),
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
