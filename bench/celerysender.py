"""Sends tasks of `penstock bench celery` as told on stdin: which one, how many, to which queue."""

from __future__ import annotations

import sys
import time

from penstock.bench.celerytasks import hold, note


def main() -> None:
    for line in sys.stdin:
        name, count, queue = line.split()
        task = {"note": note, "hold": hold}[name]
        for _ in range(int(count)):
            task.apply_async((time.monotonic(),), queue=queue)
        print("sent", flush=True)


if __name__ == "__main__":
    main()
