"""Writers and cleaners that die by kill -9 at a named step of cleaning.

`python cleaning_steps.py writer|cleaner <arguments of its main>`, started by a node whose command
it is. As in `steps`, each process takes the next step out of its plan and is the real one
otherwise. A step is a call of the storage on a file of cleaning, and the moment before or after it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.steps import CHANGING, StepPlan, arm_storage

PLAN_VARIABLE: Final = "PENSTOCK_TEST_{}_STEPS"

CALLS: Final = {
    "writer": {
        "rename of the log start": ("rename", r"log-start$"),
        "unlink of a segment": ("unlink", r"\d\.log$"),
        "unlink of an index": ("unlink", r"\.index$"),
        "unlink of a time index": ("unlink", r"\.time$"),
        "rename of the epochs": ("rename", r"epochs$"),
        "link of a mark": ("link", r"\.swap$"),
        "rename of a cleaned index": ("rename", r"\.index$"),
        "rename of a cleaned time index": ("rename", r"\.time$"),
        "rename of a cleaned log": ("rename", r"\.log$"),
        "unlink of a mark": ("unlink", r"\.swap$"),
        "write of the recovery point": ("pwritev", r"recovery-point$"),
    },
    "cleaner": {
        "creation of a cleaned log": ("open", r"\.log\.cleaned$"),
        "write of a cleaned log": ("pwritev", r"\.log\.cleaned$"),
        "sync of a cleaned log": ("fsync", r"\.log\.cleaned$"),
        "write of a cleaned index": ("pwritev", r"\.index\.cleaned"),
        "write of a cleaned time index": ("pwritev", r"\.time\.cleaned"),
        "write of how far all is clean": ("pwritev", r"cleaned-to"),
    },
}
"""What of the storage is called, and on which file."""

STEPS: Final = {
    process: [f"{when} {what}" for what in calls for when in ("before", "after")]
    for process, calls in CALLS.items()
}


def arm(process: str, step: str, die: Callable[[], object]) -> None:
    """Make this process die at that step. Raises KeyError for a step nobody knows."""
    when, _, what = step.partition(" ")
    name, pattern = CALLS[process][what]
    assert name in CHANGING
    arm_storage(name, when, re.compile(pattern), die)


def main() -> int:
    process = sys.argv.pop(1)
    plan = StepPlan(Path(os.environ[PLAN_VARIABLE.format(process.upper())]))
    step = plan.next()
    if step is not None:
        arm(process, step, lambda: plan.die(step))
    if process == "writer":
        from penstock.server.writer import main as writer_main

        return writer_main.main()
    from penstock.server.cleaner import main as cleaner_main

    return cleaner_main.main()


if __name__ == "__main__":
    sys.exit(main())
