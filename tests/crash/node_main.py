"""The real node with the bounds that tests need: `python node_main.py '{"data_folder": ...}' DATA`.

`python -m penstock.server` offers the settings that people use; here any field of `NodeConfig` can
be set, and the writers may be started by a main of the tests' own (`steps.py`).
"""

from __future__ import annotations

import faulthandler
import functools
import json
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash import node_steps

from penstock.server.config import NodeConfig
from penstock.server.node import main, startup
from penstock.server.node.node import Node


def run(plan: dict[str, Any]) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    commands = {
        name: plan.pop(name) for name in ("writer_command", "cleaner_command") if name in plan
    }
    ready_fd = plan.pop("ready_fd", None)
    step = plan.pop("step", None)
    boot = plan.pop("boot_id", None)
    main.configure_logging(plan.pop("verbosity", 0))
    if boot is not None:
        vars(startup)["boot_id"] = lambda: boot

    def arm() -> None:  # this process alone, and no writer that is forked
        if step is not None:
            node_steps.arm(*step)

    if commands:
        vars(main)["Node"] = functools.partial(Node, **commands)
    starter = main.Starter(ready_fd, forked=arm)
    return main.serve(NodeConfig(name=None, **plan), starter)


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
