"""`python -m penstock.bench` (`make bench`): the whole set, or a command as of `penstock bench`."""

from __future__ import annotations

import sys

from penstock.bench.cli import main

if __name__ == "__main__":
    given = sys.argv[1:]
    names_command = bool(given) and not given[0].startswith("-")
    sys.exit(main(given if names_command else ["suite", *given]))
