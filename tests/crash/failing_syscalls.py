"""A writer process whose system calls fail as a file says: the tests' own main, not the product's.

The file that `FAULTS_VARIABLE` names holds a line `calls errno times paths`; calls and paths are
patterns. It is looked at in each call, so a test breaks and mends a device while the writer runs.
`times` -1 is for ever.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FAULTS_VARIABLE: Final = "PENSTOCK_TEST_FAULTS"
CALLS: Final = ("pwritev", "fdatasync", "fsync", "posix_fallocate", "open")
SHORT: Final = 0
"""In place of an errno: the call writes half of what it was given and says so."""


class Faults:
    """The file of faults, as a test writes it and a writer looks at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def set(self, calls: str, number: int, *, path: str = "", times: int = -1) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(f"{calls} {number} {times} {path or '.'}\n")
        temporary.rename(self.path)

    def clear(self) -> None:
        self.path.write_text("")

    def left(self) -> int:
        """How often the fault will still strike."""
        line = self.path.read_text().split()
        return int(line[2]) if line else 0

    def strikes(self, call: str, path: str) -> int | None:
        """The errno with which this call fails now."""
        line = self.path.read_text().split(maxsplit=3)
        if not line or not re.fullmatch(line[0], call) or not re.search(line[3].strip(), path):
            return None
        times = int(line[2])
        if not times:
            return None
        if times > 0:
            self.set(line[0], int(line[1]), path=line[3].strip(), times=times - 1)
        return int(line[1])


def install(faults: Faults) -> None:
    for name in CALLS:
        setattr(os, name, _faulty(name, getattr(os, name), faults))


def _faulty(name: str, real: Any, faults: Faults) -> Any:
    def call(target: Any, *args: Any, **named: Any) -> Any:
        path = os.fspath(target) if name == "open" else os.readlink(f"/proc/self/fd/{target}")
        number = None if path == str(faults.path) else faults.strikes(name, str(path))
        if number == SHORT:
            buffers, position = args
            whole = b"".join(buffers)
            return real(target, [whole[: max(1, len(whole) // 2)]], position)
        if number is not None:
            raise OSError(number, f"{os.strerror(number)} ({errno.errorcode[number]}, made)")
        return real(target, *args, **named)

    return call


def main() -> int:
    from penstock.server.writer import main as writer_main

    install(Faults(Path(os.environ[FAULTS_VARIABLE])))
    return writer_main.main()


if __name__ == "__main__":
    sys.exit(main())
