"""A writer process made for tests: it obeys the node and touches no log.

`fake_writer.py MODE... --writer K ...` with any of these modes:
fail=PAGE     answers that the partition of that page cannot be opened
silent        gives no sign of life after its first
mute          does not answer `OpenPartition`
deaf          never reads its orders
garbage       sends what is no message
drop[=K]      drops each lane that it is given (only as writer K)
slow=SECONDS  takes so long to answer each `OpenPartition`
die           ends with status 3 at its first order
stubborn      does not stop when told to
record=FILE   appends each order to a file, as JSON
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from typing import Any

import msgspec

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel, close_fds
from penstock.ipc.lane import undrained
from penstock.ipc.shm import Region, object_name, open_existing
from penstock.ipc.state import StatePage, WriterSlot


def command(*modes: str) -> list[str]:
    """The `writer_command` of a node with such writers."""
    return [sys.executable, os.path.abspath(__file__), *modes]


class FakeWriter:
    def __init__(self, options: argparse.Namespace) -> None:
        self.modes = dict(mode.partition("=")[::2] for mode in options.modes)
        self.index = options.writer
        self.generation = options.generation
        self.state = Region.of_fd(open_existing(object_name(options.shm, "state"), writable=True))
        self.slot = WriterSlot(self.state, options.writer)
        self.sock = socket.socket(fileno=options.channel_fd)
        self.channel = Channel(self.sock, inbound=ms.WriterOrder)
        self.retiring: set[str] = set()

    def run(self) -> int:
        self.slot.claim(os.getpid(), self.generation)
        if "garbage" in self.modes:
            self.sock.send(b"\xc1garbage")
        while True:
            if "silent" not in self.modes:
                self.slot.beat()
            if "deaf" in self.modes:
                time.sleep(0.1)
                continue
            poller = select.poll()
            poller.register(self.sock, select.POLLIN)
            if poller.poll(100):
                received = self.channel.recv(1.0)
                if received is None:
                    return 0
                order, fds = received
                close_fds(fds)
                if self.obey(order, len(fds)):
                    return 0
            self.retire()

    def obey(self, order: ms.WriterOrder, fds: int) -> bool:
        self.record(order, fds)
        if "die" in self.modes:
            sys.exit(3)
        match order:
            case ms.OpenPartition(page=page) if "mute" not in self.modes:
                time.sleep(float(self.modes.get("slow", 0)))
                if self.modes.get("fail") == str(page):
                    self.channel.send(ms.PartitionFailed(page, "made to fail"))
                else:
                    state = StatePage(self.state, page)
                    state.claim(order.topic_id, order.partition, self.generation)
                    state.publish_status(lo.STATUS_ONLINE)
                    self.channel.send(ms.PartitionOpened(page, 0, ""))
            case ms.ClosePartition(page=page):
                StatePage(self.state, page).publish_status(lo.STATUS_DELETED)
                self.channel.send(ms.PartitionClosed(page))
            case ms.AddLane(name=name) if self.modes.get("drop") in ("", str(self.index)):
                self.channel.send(ms.LaneDropped(name, "made to drop"))
            case ms.AddLane(name=name, dead=dead):
                if dead:
                    self.retiring.add(name)
                else:
                    self.retiring.discard(name)
            case ms.RetireLane(name=name):
                self.retiring.add(name)
            case ms.StopWriter() if "stubborn" not in self.modes:
                self.channel.send(ms.Stopped())
                return True
        return False

    def retire(self) -> None:
        """Report retired lanes that somebody else has drained: this writer drains nothing."""
        for name in list(self.retiring):
            region = Region.of_fd(open_existing(name, writable=True))
            if not undrained(region):
                self.retiring.remove(name)
                self.channel.send(ms.LaneDrained(name))
            region.close()

    def record(self, order: ms.WriterOrder, fds: int) -> None:
        if "record" in self.modes:
            line: dict[str, Any] = {**msgspec.to_builtins(order), "fds": fds}
            line["generation"] = self.generation
            with open(self.modes["record"], "ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("modes", nargs="*")
    for option in ("--writer", "--generation", "--restarts", "--channel-fd", "--doorbell-fd"):
        parser.add_argument(option, type=int)
    for option in ("--data", "--shm", "--batch-bytes-max", "--log-level"):
        parser.add_argument(option)
    return FakeWriter(parser.parse_known_args()[0]).run()


if __name__ == "__main__":
    sys.exit(main())
