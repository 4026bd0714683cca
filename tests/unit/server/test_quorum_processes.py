"""Three quorums in three processes: the one that leads is killed, or stopped for longer than it may
lead."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from quorum_fixture import free_port

from penstock.testing.waiting import wait_until

PROGRAM = Path(__file__).parents[2] / "quorum_program.py"
NEW_LEADER_WITHIN = 15.0
"""Seconds, on a machine that does much else. It takes 1 to 2, by the election timeout."""
WITHIN = 45.0


class Member:
    """A process, and what it said."""

    def __init__(self, folder: Path, node: int, quorum: str) -> None:
        self.node = node
        self.lines: list[list[str]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder / str(node)), str(node), quorum],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())

    def said(self, word: str, since: int = 0) -> list[list[str]]:
        """Lines of that kind, but for so many first lines of any."""
        return [line for line in self.lines[since:] if line[0] == word]

    @property
    def is_active(self) -> bool:
        turns = [line[0] for line in list(self.lines) if line[0] in ("active", "idle")]
        return bool(turns) and turns[-1] == "active"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(45)
        self.reader.join(45)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Members:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quorum = ",".join(f"{node}@127.0.0.1:{free_port()}" for node in (1, 2, 3))
        self.all: list[Member] = []
        self.by_node: dict[int, Member] = {}
        for node in (1, 2, 3):
            self.start(node)

    def start(self, node: int) -> Member:
        member = self.by_node[node] = Member(self.folder, node, self.quorum)
        self.all.append(member)
        return member

    def leader(self, *but: Member) -> Member:
        """The one that is active, once there is one."""
        found: list[Member] = []

        def is_there() -> bool:
            found[:] = [m for m in self.by_node.values() if m not in but and m.is_active]
            return len(found) == 1

        wait_until(is_there, WITHIN, what="one is active")
        return found[0]

    def goes_on(self, *members: Member) -> None:
        """Each of them gets answers that it asked for now."""
        before = {member: len(member.said("created")) for member in members}
        wait_until(
            lambda: all(len(m.said("created")) > before[m] + 2 for m in members),
            WITHIN,
            what="answers",
        )


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    made = Members(tmp_path)
    try:
        yield made
    finally:
        for member in made.by_node.values():
            member.kill()


def nothing_is_lost(members: Members) -> None:
    """What was answered is so in every image, once nothing more is asked."""
    running = members.by_node.values()
    for word, number in (("still", signal.SIGUSR1), ("topics", signal.SIGTERM)):
        for member in running:
            member.process.send_signal(number)
        for member in running:
            wait_until(partial(member.said, word), WITHIN, what=word)
    lines = [line for member in members.all for line in list(member.lines)]
    created = {line[1] for line in lines if line[0] == "created"}
    deleted = {line[1] for line in lines if line[0] == "deleted"}
    unsure = {line[1] for line in lines if line[0] == "deletes"} - deleted
    assert created
    assert deleted
    for member in running:
        [said] = member.said("topics")
        found = set(said[1:])
        assert created - deleted - unsure <= found
        assert not deleted & found


def terms_have_one_leader(members: Members) -> None:
    claims = [(line[1], member.node) for member in members.all for line in member.said("active")]
    for term, found in itertools.groupby(sorted(set(claims)), key=lambda claim: claim[0]):
        assert len(list(found)) == 1, f"term {term}"


def test_the_leader_is_killed_and_another_one_goes_on(members):
    for _ in range(2):
        first = members.leader()
        members.goes_on(*members.by_node.values())
        killed_at = time.monotonic()
        first.kill()
        second = members.leader(first)
        assert float(second.said("active")[-1][2]) - killed_at < NEW_LEADER_WITHIN
        others = [m for m in members.by_node.values() if m is not first]
        members.goes_on(*others)
        again = members.start(first.node)
        members.goes_on(again, *others)
    terms_have_one_leader(members)
    nothing_is_lost(members)


def test_a_leader_that_was_stopped_for_long_does_not_lead_when_it_goes_on(members):
    members.goes_on(*members.by_node.values())
    first = members.leader()
    first.process.send_signal(signal.SIGSTOP)
    second = members.leader(first)
    term = int(second.said("active")[-1][1])
    members.goes_on(*(m for m in members.by_node.values() if m is not first))
    said = len(first.lines)
    continued_at = time.monotonic()
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: first.said("idle", said), WITHIN, what="it leads no more")
    idle_at = float(first.said("idle", said)[0][2])
    # Whatever it was answered since was decided by the second one.
    assert idle_at - continued_at < NEW_LEADER_WITHIN
    assert all(float(line[2]) >= continued_at for line in first.said("created", said))
    members.goes_on(*members.by_node.values())
    assert all(int(line[1]) > term for line in first.said("active", said)), (
        "if it was elected again"
    )
    terms_have_one_leader(members)
    nothing_is_lost(members)
