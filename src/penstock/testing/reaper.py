"""A small process that removes throw-away nodes when their owner is dead, by any signal.

The owner reports each folder before it makes it and after it has removed it (`+FOLDER`, `-FOLDER`,
a zero byte behind each). When the owner dies the reaper removes what is left and leaves. It is in a
session of its own, so that a signal to the owner's group does not end it.

Started by `guard` only, one for each process that makes brokers.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

from penstock.testing import remains

_READ_BYTES: Final = 65536
_LEAVE_TIMEOUT: Final = 5.0
_lock = threading.Lock()
_reaper: _Reaper | None = None


class _Reaper:
    """The owner's side. `folders` is what the process was told of."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.folders: set[str] = set()
        self._start()
        atexit.register(self._leave)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.testing.reaper", str(self.owner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def say(self, sign: bytes, folder: str) -> None:
        if self._process.poll() is not None:  # killed: the next one must know all of it
            self._start()
            for known in self.folders:
                self._write(b"+", known)
        self._write(sign, folder)

    def _write(self, sign: bytes, folder: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(sign + os.fsencode(folder) + b"\0")

    def _leave(self) -> None:
        if os.getpid() == self.owner and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_TIMEOUT)


def guard(folder: str) -> None:
    """Ensures that this folder, and the node on it, do not outlive this process."""
    global _reaper
    with _lock:
        if _reaper is None or _reaper.owner != os.getpid():  # a forked child has its own
            _reaper = _Reaper()
        _reaper.say(b"+", folder)
        _reaper.folders.add(folder)


def release(folder: str) -> None:
    """Reports a folder that is gone. A reaper that died meanwhile needs not know."""
    with _lock, suppress(OSError):
        if _reaper is not None and _reaper.owner == os.getpid():
            _reaper.folders.discard(folder)
            _reaper.say(b"-", folder)


def main() -> int:
    """Waits for the owner's death, then removes what it left."""
    owner = int(sys.argv[1])
    os.set_blocking(0, False)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    is_alive = True
    try:
        # Forks of the owner may hold the other end of stdin too, so its end alone says too little.
        poller.register(os.pidfd_open(owner), select.POLLIN)
        is_alive = os.getppid() == owner
    except ProcessLookupError:
        is_alive = False
    known: set[str] = set()
    text = b""
    while True:
        if is_alive:
            is_alive = [fd for fd, _ in poller.poll()] == [0]
        text, is_whole = _read(text)  # of an owner that was faster than this process' start, too
        *lines, text = text.split(b"\0")
        for line in lines:
            change = known.add if line[:1] == b"+" else known.discard
            change(os.fsdecode(line[1:]))
        if not (is_alive and is_whole):
            break
    for folder in known:
        remains.remove(folder)
    return 0


def _read(text: bytes) -> tuple[bytes, bool]:
    """Reads all that is on stdin behind `text`; False at its end."""
    while True:
        try:
            data = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return text, True
        if not data:
            return text, False
        text += data


if __name__ == "__main__":
    sys.exit(main())
