"""Lines that the processes of a test's application tell in a file: `pid what it says`."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.testing import wait_until


def tell(line: str) -> None:
    """By the application: into the file that `TOLD` names."""
    with Path(os.environ["TOLD"]).open("a") as file:
        file.write(f"{os.getpid()} {line}\n")


def may_end(name: str) -> bool:
    """Whether the test lets the work of this name end."""
    return Path(os.environ["TOLD"]).with_name(name).exists()


class ToldLines:
    """The test's side of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "told"

    def told(self, *words: str) -> list[tuple[int, str]]:
        """Lines that begin with these words, with the process that told each."""
        text = self.file.read_text() if self.file.exists() else ""
        lines = [line.split(" ", 1) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        said = [(int(pid), line.rstrip("\n")) for pid, line in lines]
        return [(pid, line) for pid, line in said if line.startswith(" ".join(words))]

    def tells(self, *words: str, count: int = 1) -> list[tuple[int, str]]:
        """The same, once there are so many."""
        wait_until(lambda: len(self.told(*words)) >= count, timeout=40.0)
        return self.told(*words)

    def lets(self, name: str) -> None:
        """The work of this name may end."""
        self.file.with_name(name).touch()
