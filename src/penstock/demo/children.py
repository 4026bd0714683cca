"""A child process of the demo and the pipe to it: JSON lines up, words down."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock.core.errors import PenstockError

MESSAGE_BYTES_MAX: Final = 64 << 10
ERRORS_SHOWN: Final = 2000
END_TIMEOUT: Final = 2.0


class ChildDiedError(PenstockError):
    """A process of the demo ended before its work was done."""


class Child:
    """The parent's end. The child has its own session, so that Ctrl-C reaches only the parent."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.name = module.rpartition(".")[2]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._held = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there is a message, or the end."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the messages of one read. Raises `ChildDiedError` at the end of the pipe."""
        data = os.read(self.fileno(), MESSAGE_BYTES_MAX)
        if not data:
            raise self.obituary()
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line)

    def tell(self, word: str) -> None:
        """Sends a line to the child's stdin; one that is gone shows by its own pipe."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()

    def obituary(self) -> ChildDiedError:
        """Says why the child is gone, with its last output."""
        try:
            code = self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            return ChildDiedError(f"the {self.name} process (pid {self.pid}) closed its pipe")
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()[-ERRORS_SHOWN:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return ChildDiedError(
            f"the {self.name} process (pid {self.pid}) {how} before it was done"
            + (f": {said.splitlines()[-1]}" if said else "")
        )

    def end(self) -> None:
        """Ends it, by force if need be."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def say(event: str, **fields: Any) -> None:
    """Sends one message from a child to its parent. Ends the child where no parent listens any
    more."""
    try:
        os.write(1, msgspec.json.encode({"event": event, **fields}) + b"\n")
    except BrokenPipeError:
        os._exit(1)


def hear(timeout: float | None) -> str | None:
    """Returns, in a child, the parent's next word; None if none came in time. Ends the child with
    it."""
    poller = select.poll()  # select() fails on descriptors above 1023
    poller.register(0, select.POLLIN)
    if not poller.poll(None if timeout is None else timeout * 1000):
        return None
    word = sys.stdin.readline()
    if not word:
        os._exit(1)
    return word.strip()
