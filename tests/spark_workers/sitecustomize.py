"""In every Python process of a Spark job whose PYTHONPATH begins here: PySpark is taken from where
it is installed, with its bytecode, and not from the archive of its sources, which each process
compiles again (0.3 s of CPU instead of 0.7; Spark waits 10 s for a process to come back to it). And
where the environment says so, the job is killed (`kill -9`) at a point of the sink, in the first
batch whose number is large enough.

    DIE_AT=POINT:BATCH   POINT is one of `POINTS`
    DIE_GROUP            the process group of the driver and its JVM
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from typing import Any

POINTS = ("staging", "staged", "before commit", "within commit", "after commit")
MOMENTS = random.Random(os.environ.get("PENSTOCK_DAY"))


def die() -> None:
    os.killpg(int(os.environ["DIE_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # Spark's workers have a group of their own


def arm(point: str, batch: int) -> None:
    from penstock.client.client import Client
    from penstock.client.transactions.stages import Stage

    close, commit = Stage.close, Client.commit_transaction

    def closing(self: Stage, *given: Any) -> None:
        if point == "staging" and self.epoch >= batch:
            die()
        close(self, *given)
        if point == "staged" and self.epoch >= batch:
            die()

    def committing(self: Client, name: str, epoch: int, *given: Any, **options: Any) -> Any:
        if epoch >= batch and point == "before commit":
            die()
        if epoch >= batch and point == "within commit":
            threading.Timer(MOMENTS.random() * 0.01, die).start()
        outcome = commit(self, name, epoch, *given, **options)
        if epoch >= batch and point == "after commit":
            die()
        return outcome

    Stage.close = closing  # type: ignore[assignment,method-assign]
    Client.commit_transaction = committing  # type: ignore[assignment,method-assign]


sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
if "DIE_AT" in os.environ:
    where, least = os.environ["DIE_AT"].split(":")
    assert where in POINTS, where
    arm(where, int(least))
