"""Main of a writer process: joins the inherited descriptors, the shared tables and the logs.

Only the node starts it (see `server.process.writers`). Imports nothing that the data path does not
need, so that a replacement runs within a tenth of a second and stays small.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from functools import partial

from penstock.core.errors import StorageError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.alone import AloneRole
from penstock.ipc.channel import Channel
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.drained import producers_with_lanes
from penstock.ipc.liveness import raise_descriptor_limit
from penstock.ipc.partitionrole import PartitionRole
from penstock.ipc.replicated import ReplicaRole
from penstock.ipc.shm import Region, object_name, open_existing
from penstock.ipc.state import StatePage
from penstock.ipc.writer import Writer
from penstock.server.node.log_format import configure
from penstock.server.node.parked_partitions import ParkedRole, may_park
from penstock.server.node.process_clock import ProcessClock


def main(argv: list[str] | None = None) -> int:
    """Run one writer until it is told to stop (0) or its node is gone (0)."""
    parser = argparse.ArgumentParser(prog="penstock-writer")
    parser.add_argument("--writer", type=int, required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--believed-us", type=int, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--shm", required=True)
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--doorbell-fd", type=int, required=True)
    parser.add_argument("--batch-bytes-max", type=int, default=lo.LANE_CAPACITY_DEFAULT // 4)
    parser.add_argument("--spin", type=float, default=0.0)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-format", default="text")
    options = parser.parse_args(argv)
    configure(f"writer-{options.writer}", options.log_level, options.log_format)
    # The node decides when a writer ends: a Ctrl-C in its terminal must not stop it mid-drain.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise_descriptor_limit()
    state = Region.of_fd(open_existing(object_name(options.shm, "state"), writable=True))
    clients = Region.of_fd(open_existing(object_name(options.shm, "clients"), writable=True))
    storage, clock = Storage(), ProcessClock(options.believed_us)

    def open_role(order: ms.OpenPartition) -> tuple[PartitionRole, str]:
        page = StatePage(state, order.page)

        def open_log() -> tuple[PartitionRole, str]:
            kind = ReplicaRole if order.replicated else AloneRole
            return kind.open(
                storage,
                order,
                page,
                generation=options.generation,
                batch_bytes_max=options.batch_bytes_max,
                now_us=time.time_ns() // 1000,
                attached=partial(producers_with_lanes, options.shm),
                believed_us=clock.now_us,
            )

        try:
            return open_log()
        except StorageError as error:
            if not may_park(error, order, page):
                raise
            return ParkedRole(order, page, options.generation, open_log, error), ""

    writer = Writer(
        options.writer,
        options.generation,
        channel=Channel(socket.socket(fileno=options.channel_fd), inbound=ms.WriterOrder),
        doorbell=Doorbell.from_fd(options.doorbell_fd),
        state=state,
        clients=clients,
        open_role=open_role,
        restarts=options.restarts,
        spin=options.spin,
    )
    writer.run(os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())
