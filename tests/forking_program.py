"""Starts helpers by a fork server, and prints what became of them, as JSON.

As a module of its own (`main`), it is also what is started.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

from penstock.ipc.liveness import raise_descriptor_limit
from penstock.server.process.fork_server import ForkServer

WAYS = ["returns", "leaves", "fails", "joins", "is killed"]


def main(words: list[str]) -> int:
    """Be a helper."""
    way, wanted, told = words[0], int(words[1]), int(words[2])
    if way == "has":
        os.fstat(wanted)
        return 0
    assert os.read(wanted, 1) == b"w"
    if way == "leaves":
        sys.exit("a last word")
    if way == "fails":
        raise ValueError("a fault")
    if way == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "joins":
        threading.Thread(target=os.write, args=(told, b"joined")).start()
        return 0
    me = Path("/proc/self")
    found = {
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "words": (me / "cmdline").read_text().split("\0"),
        "variables": (me / "environ").read_text().split("\0"),
        "open": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "stdin": os.readlink("/proc/self/fd/0"),
    }
    os.write(told, json.dumps(found).encode())
    return 7


def helper_by(server: ForkServer, way: str) -> list[object]:
    """Its exit status, asked for twice, and what it wrote."""
    wanted, give = os.pipe()
    take, told = os.pipe()
    os.write(give, b"w")
    spare = os.dup(wanted)
    os.dup2(told, wanted)
    os.dup2(spare, told)  # each has the other's number
    command = [sys.executable, "-m", "forking_program", way, str(told), str(wanted)]
    helper = server.start(command, [told, wanted])
    for fd in (wanted, give, told, spare):
        os.close(fd)
    with os.fdopen(take) as file:
        return [helper.wait(), helper.wait(), file.read()]


def run() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some supervisors start a node
    del os.environ["DROPPED"]
    os.open(os.devnull, os.O_RDONLY)  # no helper gets it
    with ForkServer.begin("folder") as server:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        with ForkServer.begin("folder") as second:
            results: dict[str, object] = {"beside a thread": second.pid}
        results |= {way: helper_by(server, way) for way in WAYS}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise_descriptor_limit()
        high = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, limit + 10)
        reads = [sys.executable, "-m", "forking_program", "has", str(high), "0"]
        results["has a high number"] = server.start(reads, [high]).wait()
        program = [sys.executable, "-c", "import sys; sys.exit(3)"]
        results["other"] = server.start(program, []).wait()
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        results["spawned"] = helper_by(server, "leaves")
    results["me"] = os.getpid()
    print(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:]))
    run()
