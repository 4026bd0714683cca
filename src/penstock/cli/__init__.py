"""The command line: `main` is the console script `penstock`.

Owns argument parsing, output formats and exit codes. Every command imports what it needs when it
runs, so that `penstock --version` and `--help` cost a few milliseconds and no numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's); the exit status.

    0 done, 1 failed, 2 usage, 3 timeout, 4 partly done.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        from penstock.version import __version__

        print(f"penstock {__version__}")
        return 0
    if arguments[:1] == ["__complete"]:
        from penstock.cli.completing import answer

        return answer(arguments[1:])
    from penstock.cli.app import run

    return run(arguments)
