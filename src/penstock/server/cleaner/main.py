"""Main of the cleaner process: attaches to the node, then a round every interval.

Only the node starts it (see `server.process.cleaner`), with a descriptor that ends when the node
dies or stops it. This process then leaves at once, in the middle of any work.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time

from penstock.client.session import Session
from penstock.core.errors import NotConnectedError, PenstockError
from penstock.ipc import layout as lo
from penstock.ipc.hostslots import CleanerSlot, DiskSlot
from penstock.ipc.paths import socket_in
from penstock.ipc.shm import Region, object_name, open_existing
from penstock.server.cleaner.cleaner import Cleaner
from penstock.server.node.log_format import configure
from penstock.server.node.process_clock import ProcessClock

logger = logging.getLogger("penstock.cleaner")

NICE = 10
ATTACH_TIMEOUT = 10.0


def main(argv: list[str] | None = None) -> int:
    """Run until the node is gone (0) or cannot be reached (1)."""
    parser = argparse.ArgumentParser(prog="penstock-cleaner")
    parser.add_argument("--data", required=True)
    parser.add_argument("--shm", required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--believed-us", type=int, required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-format", default="text")
    options = parser.parse_args(argv)
    configure("cleaner", options.log_level, options.log_format)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the node decides when it ends
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(options.lifeline_fd,), daemon=True).start()
    os.nice(NICE)
    state = Region.of_fd(open_existing(object_name(options.shm, "state"), writable=True))
    slot = CleanerSlot(state)
    slot.claim(os.getpid())
    try:
        session = Session.attach(
            socket_in(options.data), lo.KIND_CLEANER, client_id="cleaner", timeout=ATTACH_TIMEOUT
        )
        clock = ProcessClock(options.believed_us)
        cleaner = Cleaner(session, slot, DiskSlot(state), clock, options.rate, options.interval)
        while True:
            cleaner.run_once()
            time.sleep(options.interval)
    except NotConnectedError as error:
        logger.info("the node is gone: %s", error)
        return 0
    except PenstockError as error:
        logger.error("the cleaner leaves: %s", error)
        return 1


def _leave_with(lifeline: int) -> None:
    """Leave when the other end of the lifeline is closed: nothing here has to be put in order."""
    while os.read(lifeline, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
