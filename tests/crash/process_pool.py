"""Processes that start in milliseconds: forked from one that has imported everything already.

A role is a plan in JSON and the name of a file for its events. The nursery has touched nothing of
Penstock but its modules, so what it forks is as good as a fresh interpreter. Children die with it,
and it with its parent. Owns processes; what they do is `roles`.

    parent ──plan──> nursery ──fork──> child: roles.play(plan), events by write(2), one line each
           <──pid──
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.ledgers import whole_lines
from crash.node_under_test import environment

from penstock.ipc.liveness import end_with_parent

TAIL_BYTES = 200


class Hand:
    """One child, as its parent sees it."""

    def __init__(self, plan: dict[str, Any], pid: int) -> None:
        self.plan = plan
        self.who: str = plan["who"]
        self.pid = pid
        self.path = Path(plan["events"])
        self.killed = False
        self.asked = False
        """It was asked to end."""
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    def is_running(self) -> bool:
        return not self.wait(0.0)

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within so many seconds."""
        if self._pidfd is None:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        if not poller.poll(timeout * 1000):
            return False
        os.close(self._pidfd)
        self._pidfd = None
        return True

    def signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)
        assert self.wait(10.0), f"{self.who} outlives SIGKILL"

    def ask_to_end(self) -> None:
        self.asked = True
        self.signal(signal.SIGTERM)

    def lines(self) -> list[bytes]:
        """The whole lines that it wrote."""
        return list(whole_lines(bytearray(self.path.read_bytes())))

    def last_words(self) -> str:
        """`left` where it ended in good order, `dying` where it kills itself, else nothing."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - TAIL_BYTES))
            tail = file.read()
        return next(
            (word for word in ("left", "dying") if b'"e": "%s"' % word.encode() in tail), ""
        )

    def errors(self) -> str:
        path = Path(self.plan["errors"])
        return path.read_text("utf-8", "replace")[-6000:] if path.exists() else ""

    def stacks(self) -> str:
        """Where its threads stand, for a process that hangs."""
        before = len(self.errors())
        self.signal(signal.SIGUSR1)
        self.wait(0.5)
        return self.errors()[before:]


class Nursery:
    """The parent's end."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        """`before` goes before the command: where it is to run."""
        self._process = subprocess.Popen(
            [*before, sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        self.hands: list[Hand] = []

    def bear(self, plan: dict[str, Any]) -> Hand:
        """A process that plays a role. `events` and `errors` are the files it writes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        Path(plan["events"]).touch()
        self._process.stdin.write(json.dumps(plan).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the nursery is gone")
        hand = Hand(plan, int(answer))
        self.hands.append(hand)
        return hand

    def close(self) -> None:
        """Nobody lives on."""
        for hand in self.hands:
            if hand.is_running():
                hand.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(10.0)
        self._process.stdout.close()


# --- the nursery's own process ---
def _child(plan: dict[str, Any], parent: int) -> None:
    """Never returns."""
    status = 1
    try:
        if not end_with_parent(parent, signal.SIGKILL):
            os._exit(3)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        errors = os.open(plan["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, target in ((0, nothing), (1, errors), (2, errors)):
            os.dup2(target, number)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        from crash import history_processes

        history_processes.play(plan)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def main() -> int:
    from crash import (  # noqa: F401 - what children have at once
        group_processes,
        history_processes,
        job_processes,
        share_processes,
    )

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody stays a zombie
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until a role can listen to it
    parent = os.getpid()
    for line in sys.stdin.buffer:
        plan = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(plan, parent)
        os.write(1, b"%d\n" % pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
