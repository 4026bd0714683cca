"""Shell commands that are run once a process is over, however it ended: what it made of the kernel
(mounts, namespaces) is taken away even when it is killed."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Final

WITHIN: Final = 45.0


class Afterwards:
    """`script` is run at `now`, or when this process is dead, after what `killed` says; by a shell
    in a session of its own, so that a signal to this process's group does not take it along."""

    def __init__(self, script: str, *, killed: str = "true") -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", f"read -r _ || {killed}; {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def now(self) -> None:
        """Any number of times."""
        assert self._shell.stdin is not None
        if not self._shell.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                # A line, and not the end alone: a fork may hold the other end of it, too.
                self._shell.communicate(b"\n", WITHIN)
