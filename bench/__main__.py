"""`python -m penstock.bench` (`make bench`): the whole set; with arguments as `penstock bench`."""

from __future__ import annotations

import sys

from penstock.bench.cli import main

COMMANDS = frozenset(
    ("throughput", "latency", "footprint", "partitions", "recovery", "backlog", "plots", "suite")
)

if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(given if COMMANDS & set(given[:1]) else ["suite", *given]))
