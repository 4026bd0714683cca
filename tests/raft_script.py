"""Raft by script: a text file of commands, and below each what the nodes did.

    propose 1 x
    ----
    1 stores term=1 vote=1 2/1 "x"

    deliver
    ----
    1 > 2 Append term=1 after=1/1 2/1 "x" commit=1
    ...

As in the files of etcd-io/raft's `testdata`. An entry is index/term and what it holds. A script is
made again by `PENSTOCK_REWRITE=1 pytest tests/unit/cluster/test_raft_scenarios.py`.

Owns the commands (see `Script`) and how messages read; the nodes are those of `raft_fixture`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from raft_fixture import Group, Wire, logged
from sim.raft_world import replayed

from penstock.cluster.raft import Effects, LogEntry, Members, Raft, RaftConfig, Saved, Write, fresh
from penstock.cluster.raft.messages import (
    DATA,
    NOOP,
    Accepted,
    Append,
    Install,
    PreVote,
    RaftMessage,
    Rejected,
    TimeoutNow,
    Vote,
    VoteReply,
)
from penstock.core.errors import PenstockError

RULE: Final = "----"
MEMBERS: Final = msgspec.msgpack.Decoder(Members)


def run(text: str, machine: type[Raft] = Raft) -> str:
    """The script with what the nodes do now below each command."""
    script, parts = Script(machine), []
    for comment, command in commands(text):
        parts.append("\n".join([*comment, command, RULE, *script.carry_out(command)]))
    return "\n\n".join(parts) + "\n"


def commands(text: str) -> Iterable[tuple[list[str], str]]:
    """Each with the lines of comment above it."""
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        head = lines[: lines.index(RULE)] if RULE in lines else lines
        comment = [line for line in head if line.startswith("#")]
        [command] = [line for line in head if not line.startswith("#")]
        yield comment, command


class Script:
    """The commands. Numbers are those of nodes.

    nodes COUNT [KEY=VALUE]    so many fresh ones, all with a vote; keys are fields of `RaftConfig`
    node N TERMS [TERM] [of COUNT]  before `start`: one with a log of these terms, such as 1,1,2
    start [KEY=VALUE]          those that were named by `node`; "-" for TERMS waits to be added
    elect N                    N's time is over, everything is delivered; tells who is what then
    tick SECONDS [N ...]       time passes, for these or for all; nothing is delivered
    deliver [drop=KIND] [to=N] what is under way, and what follows; some of it may get lost
    isolate N | cut N M | heal
    stall N | store N | mend N a disk that does nothing; its next write; all of them from now on
    propose N DATA | change N VOTERS [LEARNERS] | transfer N M | compact N INDEX | gone N M
    say N M MESSAGE [FIELD ...] N tells M something, in the fields of `messages`
    restart N [KEPT]           with what it stored, or only so many of the entries
    status                     everybody's role, term, commit and log
    """

    def __init__(self, machine: type[Raft] = Raft) -> None:
        self._machine = machine
        self._saved: dict[int, Saved] = {}
        self._group: Traced | None = None

    @property
    def group(self) -> Traced:
        assert self._group is not None, "no nodes yet"
        return self._group

    def carry_out(self, command: str) -> list[str]:
        name, *words = shlex.split(command)
        try:
            getattr(self, f"_do_{name}")(*words)
        except PenstockError as error:
            self.group.lines.append(f"{type(error).__name__}: {error}")
        if self._group is None:
            return ["ok"]
        told, self._group.lines = self._group.lines, []
        return told or ["ok"]

    # --- who there is ---
    def _do_nodes(self, count: str, *config: str) -> None:
        everybody = range(1, int(count) + 1)
        self._saved = {number: fresh(*everybody) for number in everybody}
        self._do_start(*config)

    def _do_node(self, number: str, terms: str, *more: str) -> None:
        if terms == "-":
            self._saved[int(number)] = fresh()
            return
        voters = int(more[more.index("of") + 1])
        term = int(more[0]) if more[0] != "of" else None
        log = [] if terms == "none" else [int(each) for each in terms.split(",")]
        self._saved[int(number)] = logged(log, voters, term)

    def _do_start(self, *config: str) -> None:
        given = dict(each.split("=") for each in config)
        made: dict[str, Any] = {"election_timeout": 1.0, "heartbeat": 0.2}
        made |= {name: type(getattr(RaftConfig(), name))(text) for name, text in given.items()}
        self._group = Traced(self._saved, self._machine, RaftConfig(**made))

    def _do_restart(self, number: str, kept: str = "") -> None:
        node = int(number)
        saved = replayed(self.group.written[node], self.group.saved[node])
        if kept:
            saved = Saved(saved.snapshot, saved.term, saved.vote, saved.entries[: int(kept)])
        self.group.saved[node], self.group.written[node] = saved, []
        self.group.pending[node].clear()
        self.group.committed[node].clear()
        self.group.nodes[node] = self.group._start(node, saved)
        self.group.look(node)

    # --- time, network, disks ---
    def _do_elect(self, number: str) -> None:
        group = self.group
        before = {each: group.role(each) for each in group.nodes}
        group.elect(int(number))
        group.lines = [
            f"{each} is {group.role(each)}"
            for each, role in before.items()
            if group.role(each) != role
        ]

    def _do_tick(self, seconds: str, *numbers: str) -> None:
        self.group.pass_time(float(seconds), *map(int, numbers))

    def _do_deliver(self, *words: str) -> None:
        given = dict(each.split("=") for each in words)

        def keep(item: Wire) -> bool:
            if "drop" not in given or type(item[2]).__name__ != given["drop"]:
                return True
            return "to" in given and item[1] != int(given["to"])

        self.group.deliver(keep)

    def _do_isolate(self, number: str) -> None:
        self.group.isolate(int(number))

    def _do_cut(self, sender: str, receiver: str) -> None:
        self.group.cut.add((int(sender), int(receiver)))

    def _do_heal(self) -> None:
        self.group.cut.clear()

    def _do_stall(self, number: str) -> None:
        self.group.stores.discard(int(number))

    def _do_store(self, number: str) -> None:
        self.group.store(int(number))

    def _do_mend(self, number: str) -> None:
        self.group.stores.add(int(number))
        self.group.do(int(number), Effects())

    # --- what nodes are asked ---
    def _do_propose(self, number: str, data: str) -> None:
        self.group.propose(int(number), data.encode())

    def _do_change(self, number: str, voters: str, learners: str = "") -> None:
        members = Members(numbers_of(voters), numbers_of(learners))
        node = self.group.nodes[int(number)]
        self.group.do(int(number), node.change_members(self.group.now, members)[1])

    def _do_transfer(self, number: str, to: str) -> None:
        node = self.group.nodes[int(number)]
        self.group.do(int(number), node.transfer(self.group.now, int(to)))

    def _do_compact(self, number: str, index: str) -> None:
        node = self.group.nodes[int(number)]
        data = f"up to {index}".encode()
        self.group.do(int(number), node.compacted(data, int(index)))

    def _do_gone(self, number: str, who: str) -> None:
        node = self.group.nodes[int(number)]
        self.group.do(int(number), node.gone(self.group.now, int(who)))

    def _do_say(self, sender: str, to: str, kind: str, *fields: str) -> None:
        group = self.group
        values = [{"true": True, "false": False}.get(field, field) for field in fields]
        message: RaftMessage
        if kind == "Append":  # term, index, index_term, commit, then indexes of the sender's log
            term, index, index_term, commit, *wanted = map(int, fields)
            log = group.nodes[int(sender)].log
            entries = tuple(e for i in wanted for e in log.entries(i, i + 1))
            message = Append(term, index, index_term, entries, commit)
        elif kind == "Install":
            message = Install(int(fields[0]), group.nodes[int(sender)].log.snapshot)
        else:
            made = {"PreVote": PreVote, "Vote": Vote, "Rejected": Rejected, "Accepted": Accepted}
            typed = [each if isinstance(each, bool) else int(each) for each in values]
            message = made[kind](*typed)
        group.tell(int(sender), int(to), message)

    def _do_status(self) -> None:
        for number, node in self.group.nodes.items():
            log = node.log
            terms = ",".join(map(str, self.group.terms(number))) or "none"
            since = f" from {log.first_index}" if log.first_index > 1 else ""
            self.group.lines.append(
                f"{number} {self.group.role(number)} commit={node.commit} log={terms}{since} "
                f"members={members_of(node.members)}"
            )


class Traced(Group):
    """A group that writes down what it does."""

    def __init__(self, saved: dict[int, Saved], machine: type[Raft], config: RaftConfig) -> None:
        self.lines: list[str] = []
        self._seen: dict[int, str] = {}
        super().__init__(saved, machine, config)
        self._seen = {number: self.role(number) for number in self.nodes}

    def do(self, number: int, effects: Effects) -> None:
        self.look(number)
        if effects.restore is not None:
            self.lines.append(f"{number} restores {effects.restore.data.decode()!r}")
        if effects.committed:
            self.lines.append(f"{number} commits {entries_of(effects.committed)}")
        super().do(number, effects)

    def store(self, number: int) -> None:
        self.lines.append(f"{number} stores {written(self.pending[number][0])}")
        super().store(number)

    def deliver(self, keep=lambda _: True) -> None:
        while self.wire:
            sender, to, message = item = self.wire.popleft()
            if keep(item) and (sender, to) not in self.cut and to in self.nodes:
                self.tell(sender, to, message)
            else:
                self.lines.append(f"{sender} x {to} {told(message)}")

    def tell(self, sender: int, to: int, message: RaftMessage) -> None:
        self.lines.append(f"{sender} > {to} {told(message)}")
        self.do(to, self.nodes[to].receive(self.now, sender, message))

    def look(self, number: int) -> None:
        """Note what it has become."""
        if self._seen.get(number) != (role := self.role(number)):
            self._seen[number] = role
            self.lines.append(f"{number} is {role}")

    def role(self, number: int) -> str:
        node = self.nodes[number]
        kind = type(node.role).__name__.lower()
        if node.is_leader:
            return f"leader term={node.term}"
        return f"{kind} term={node.term} leader={node.leader or 'unknown'}"


# --- how things read ---
def numbers_of(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def members_of(members: Members) -> str:
    learning = f" learners={','.join(map(str, members.learners))}" if members.learners else ""
    return ",".join(map(str, members.voters)) + learning


def entry_of(entry: LogEntry) -> str:
    place = f"{entry.index}/{entry.term}"
    if entry.kind == NOOP:
        return f"{place} noop"
    if entry.kind == DATA:
        return f'{place} "{entry.data.decode()}"'
    return f"{place} members={members_of(MEMBERS.decode(entry.data))}"


def entries_of(entries: Iterable[LogEntry]) -> str:
    return ", ".join(map(entry_of, entries))


def written(write: Write) -> str:
    parts = [f"term={write.term} vote={write.vote or 'nobody'}"]
    if write.snapshot is not None:
        parts.append(f"snapshot={write.snapshot.index}/{write.snapshot.term}")
    return " ".join([*parts, entries_of(write.entries)]).rstrip()


def told(message: RaftMessage) -> str:
    head = f"{type(message).__name__} term={message.term}"
    match message:
        case PreVote(last_index=index, last_term=term):
            return f"{head} last={index}/{term}"
        case Vote(last_index=index, last_term=term, forced=forced):
            return f"{head} last={index}/{term}" + (" forced" if forced else "")
        case VoteReply(is_pre=is_pre, granted=granted):
            return ("Pre" if is_pre else "") + head + (" granted" if granted else " refused")
        case Append(index=index, index_term=term, entries=entries, commit=commit):
            what = " ".join(filter(None, [f"after={index}/{term}", entries_of(entries)]))
            return f"{head} {what} commit={commit}"
        case Install(snapshot=snapshot):
            return f"{head} snapshot={snapshot.index}/{snapshot.term}"
        case Accepted(index=index):
            return f"{head} index={index}"
        case Rejected(index=index, hint_index=hint, hint_term=term):
            return f"{head} index={index} hint={hint}/{term}"
        case TimeoutNow():
            return head
    raise AssertionError(message)


def scripts(folder: Path) -> dict[str, Path]:
    """By name."""
    return {path.stem: path for path in sorted(folder.glob("*.txt"))}


def check(run: Callable[[str], str], script: Path) -> None:
    """It leads to what it says. With PENSTOCK_REWRITE set, it says then what it leads to."""
    text = script.read_text()
    found = run(text)
    if os.environ.get("PENSTOCK_REWRITE"):
        script.write_text(found)
    else:
        assert found.splitlines() == text.splitlines()
