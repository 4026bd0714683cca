"""Runs the catalogue of faults; ends with status 1 unless every one of them is found.

    python -m mutants [--jobs 2] [--seconds 60] [--seed 20261122] [--quick] [text ...]

A text chooses the faults with it in their area, id or file. With `--seconds` none begins later, and
a seed, that of the day by default, settles which ones come first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from mutants import campaign
from mutants.catalogue import load
from seeds import seed_of_day


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # copies and processes are removed
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("text", nargs="*", help="part of an area, id or file")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=None, help="begin none after these")
    parser.add_argument("--seed", type=int, default=0, help="order of a bounded run")
    parser.add_argument("--quick", action="store_true", help="without a run of sound code")
    asked = parser.parse_args()
    listed = load()
    complaints = [complaint for it in listed if (complaint := it.complaint())]
    if complaints:
        print(*complaints, sep="\n")
        return 1
    chosen = [
        it
        for it in listed
        if not it.harmless
        and (not asked.text or any(text in f"{it.area} {it.id} {it.file}" for text in asked.text))
    ]
    if asked.seconds is not None:
        seed = asked.seed or seed_of_day()
        print(f"faults in the order of --seed {seed}")
        chosen = campaign.share(chosen, seed)
    report = campaign.run(
        chosen,
        jobs=max(1, min(asked.jobs, len(chosen))),
        tell=lambda line: print(line, flush=True),
        seconds_max=asked.seconds,
        with_baseline=not asked.quick and asked.seconds is None,
    )
    print(report.table())
    if report.complaints:
        print(*report.complaints, sep="\n")
    return 1 if report.complaints or not report.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
