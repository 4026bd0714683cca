"""The script that `spark-submit` runs: the jobs, with the command line of `penstock spark`.

spark-submit --master spark://host:7077 .../penstock/spark/submit.py archive orders -o /archive
"""

from __future__ import annotations

import sys
from pathlib import Path


def run() -> int:
    """Runs the command line. As a script, Python would look for every module in this folder
    first."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != here]
    from penstock.cli import main

    return main(["spark", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run())
