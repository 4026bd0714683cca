"""What processes wrote down about records, read into columns: the histories that checkers judge.

A history is a file of JSON lines for each process. `e` says what happened and `t` when, in
nanoseconds of the machine's monotonic clock. A line is written *before* what it announces and
*after* what it states; a torn last line counts as not written. Places are [topic, partition].

    hello      who reads or writes here: role, group, guarantee, isolation, topics, outputs
    sends      before: r=[[value, topic]...], txn=n where they belong to a transaction
    acks       after:  r=[[value, topic, partition, offset]...]; offset -1 where none is promised
    fails      after:  r=[value...] that are surely in no log; whose fate is open is never named
    begin      before: transaction n
    inputs     before: transaction n consumed r=[[topic, partition, start, end]...]
    ending     before: commit=true|false is asked for transaction n
    ended      after:  outcome="committed"|"aborted" of n; nothing is said where it is unknown
    assigned   after:  r=[place...] are this reader's from here on; `asked`: it was given them then
                       or later, while it was stopped they may have become another's
    revoked    before: r=[place...] are not
    polls      after:  r=[[topic, partition, [offset...], [value...], [source...]|null]...] came
    committed  after:  r=[[topic, partition, offset]...] is acknowledged as the group's place, which
                       was asked for at `asked`
    claimed    after:  the same, as somebody saw it committed before what is below was handed out
    reset      after:  r=[[topic, partition, from, to]...] of the group was moved by hand, which was
                       asked for at `asked`
    sought     after:  r=[place...] this reader goes on elsewhere, on its own account
    ends       after:  r=[[topic, partition, end]...] and this reader has read all below
    dying      before: it kills itself
    left       after:  it ended in good order
    drained    after:  the group has nothing left to read, and its dead letters were told;
                       r=[[topic, partition, committed]...], as it was `asked` for then

Workers of share groups say hello with the guarantee "shared", `max_deliveries` (0: no end) and the
group's `order`.

    taken      after:  r=[[topic, partition, offset, value, lease, deliveries, key]...] were handed
                       to it
    answers    before: it answers for r=[[topic, partition, offset, lease]...] by `by`: "ack",
                       "nack", "release" or "reject"
    kept       after:  the coordinator has all answers so far; `late` of those since the last such
                       line came to nothing, as the worker was told
    dead       after:  r=[[topic, partition, offset, value, deliveries, failures]...] were found in
                       the topic of dead letters of `group`: which record each tells of, how often
                       that was delivered, and how many failures its story has

Values are unique over a run: the writer's number << 32 | the number of the record there, so the
order of one writer's sends is the order of its values. `source` is the input's value of a record
that a transform made. Owns the format; never judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WRITER_SHIFT: Final = 32
OFFSET_BITS: Final = 40
"""A place is partition << OFFSET_BITS | offset."""
NOTHING: Final = -1

SHARED: Final = "shared"

PLAIN, COMMITTED, ABORTED, UNKNOWN = range(4)
"""Fates of a value: outside of transactions, or as its transaction ended."""


def value_name(value: int) -> str:
    """As evidence shows it."""
    return f"{value >> WRITER_SHIFT}.{value & 0xFFFFFFFF}"


class Columns:
    """A growing table of integers; `col` gives a finished column."""

    def __init__(self, *names: str) -> None:
        self._parts: dict[str, list[int]] = {name: [] for name in names}
        self._done: dict[str, Ints] = {}

    def extend(self, count: int, **columns: int | Iterable[int]) -> None:
        """Rows; a single integer stands for all of them."""
        for name, column in columns.items():
            part = self._parts[name]
            part.extend([column] * count if isinstance(column, int) else column)

    def __len__(self) -> int:
        return len(next(iter(self._parts.values())))

    def col(self, name: str) -> Ints:
        found = self._done.get(name)
        if found is None or len(found) != len(self):
            found = self._done[name] = np.array(self._parts[name], np.int64)
        return found


@dataclass(slots=True)
class Reader:
    """One consumer, or the transforming half of a job."""

    who: str
    group: str | None
    guarantee: str | None
    read_committed: bool
    role: str
    topics: frozenset[str]
    outputs: frozenset[str]
    """Where a job writes what it makes of `topics`."""
    max_deliveries: int = 0
    order: str = ""


class Commit(NamedTuple):
    """A group's place in a partition, acknowledged at `time`."""

    group: str
    partition: int
    offset: int
    time: int
    asked: int


class Reset(NamedTuple):
    """A group's place in a partition was set by hand between `asked` and `time`."""

    group: str
    partition: int
    start: int
    to: int
    time: int
    asked: int


@dataclass(slots=True)
class Era:
    """One assignment of a partition to a reader, until it is revoked or the reader goes elsewhere.
    It was decided between `asked` and `start`; None: records that came without an assignment."""

    reader: int
    partition: int
    start: int | None
    asked: int | None


@dataclass(slots=True)
class Transaction:
    """As its own process saw it."""

    who: str
    number: int
    begun: int
    asked: int | None = None
    """When it was asked to commit."""
    outcome: str | None = None
    decided: int | None = None
    inputs: list[tuple[int, int, int]] = field(default_factory=list)
    """(partition, start, end) that were consumed with it."""

    @property
    def fate(self) -> int:
        if self.outcome is not None:
            return COMMITTED if self.outcome == "committed" else ABORTED
        return ABORTED if self.asked is None else UNKNOWN

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.who}"


@dataclass(slots=True)
class JobTaken:
    """A record that a worker of a share group was handed, by a lease."""

    reader: int
    place: int
    lease: int
    deliveries: int
    time: int
    answer: str | None = None
    answered: int = 0
    """When it answered, or did so a little later."""
    is_kept: bool = False
    """It was told that the coordinator has its answer."""
    key: str | None = None


class Dead(NamedTuple):
    """A dead letter: what it tells of its record."""

    group: str
    place: int
    value: int
    deliveries: int
    failures: int


class History:
    """Everything that the processes of a run wrote down. Made by `load`."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = []
        self.readers: list[Reader] = []
        self.eras: list[Era] = []
        self.transactions: list[Transaction] = []
        self.sends = Columns("value", "txn", "time")
        self.acks = Columns("value", "place", "time")
        self.fails = Columns("value")
        self.polls = Columns("reader", "era", "place", "value", "source", "time")
        self.commits: list[Commit] = []
        self.claims: list[Commit] = []
        self.resets: list[Reset] = []
        self.ends: dict[tuple[int, int], int] = {}
        """(reader, partition): the end up to which it read."""
        self.drained: dict[str, dict[int, int]] = {}
        """Groups that had nothing left to read, with their committed offsets."""
        self.drained_at: dict[str, int] = {}
        self.jobs: list[JobTaken] = []
        self.dead: list[Dead] = []
        self.lines = 0
        self._place_ids: dict[tuple[str, int], int] = {}

    def partition(self, topic: str, number: int) -> int:
        """The number of a partition in this history."""
        name = (topic, number)
        found = self._place_ids.get(name)
        if found is None:
            found = self._place_ids[name] = len(self.places)
            self.places.append(name)
        return found

    def place_name(self, place: int) -> str:
        topic, number = self.places[place >> OFFSET_BITS]
        return f"{topic}-{number}@{place & ((1 << OFFSET_BITS) - 1)}"

    def in_topics(self, places: Ints, topics: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Which places belong to these topics."""
        wanted = set(topics)
        mine = np.array([topic in wanted for topic, _ in self.places] or [False])
        return np.asarray(mine[places >> OFFSET_BITS], np.bool_)


class _Source:
    """The lines of one process, taken into a history."""

    def __init__(self, history: History, who: str) -> None:
        self._history = history
        self._who = who
        self._reader = NOTHING
        self._eras: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._transactions: dict[int, int] = {}
        self._jobs: dict[tuple[int, int], JobTaken] = {}
        self._unkept: list[JobTaken] = []

    def take(self, line: Mapping[str, Any]) -> None:
        work: Callable[[Mapping[str, Any]], None] = getattr(self, "_" + line["e"])
        work(line)

    def _hello(self, line: Mapping[str, Any]) -> None:
        self._reader = len(self._history.readers)
        self._eras, self._jobs, self._unkept = {}, {}, []
        self._history.readers.append(
            Reader(
                line.get("who", self._who),
                line.get("group"),
                line.get("guarantee"),
                line.get("isolation") == "read_committed",
                line["role"],
                frozenset(line.get("topics", ())),
                frozenset(line.get("outputs", ())),
                line.get("max_deliveries", 0),
                line.get("order", ""),
            )
        )

    # --- writing ---
    def _sends(self, line: Mapping[str, Any]) -> None:
        rows = line["r"]
        number = line.get("txn")
        txn = NOTHING if number is None else self._transactions[number]
        values = map(itemgetter(0), rows)
        self._history.sends.extend(len(rows), value=values, txn=txn, time=line["t"])

    def _acks(self, line: Mapping[str, Any]) -> None:
        partition = self._history.partition
        rows = line["r"]
        self._history.acks.extend(
            len(rows),
            value=[row[0] for row in rows],
            place=[
                NOTHING if at < 0 else partition(topic, number) << OFFSET_BITS | at
                for _, topic, number, at in rows
            ],
            time=line["t"],
        )

    def _fails(self, line: Mapping[str, Any]) -> None:
        self._history.fails.extend(len(line["r"]), value=line["r"])

    # --- transactions ---
    def _begin(self, line: Mapping[str, Any]) -> None:
        self._transactions[line["n"]] = len(self._history.transactions)
        self._history.transactions.append(Transaction(self._who, line["n"], line["t"]))

    def _of(self, line: Mapping[str, Any]) -> Transaction:
        return self._history.transactions[self._transactions[line["n"]]]

    def _inputs(self, line: Mapping[str, Any]) -> None:
        partition = self._history.partition
        self._of(line).inputs.extend(
            (partition(t, p), start, end) for t, p, start, end in line["r"]
        )

    def _ending(self, line: Mapping[str, Any]) -> None:
        if line["commit"]:
            self._of(line).asked = line["t"]

    def _ended(self, line: Mapping[str, Any]) -> None:
        found = self._of(line)
        found.outcome, found.decided = line["outcome"], line["t"]

    # --- reading ---
    def _assigned(self, line: Mapping[str, Any]) -> None:
        for topic, number in line["r"]:
            partition = self._history.partition(topic, number)
            self._new_era(partition, line["t"], line.get("asked", line["t"]))

    def _revoked(self, line: Mapping[str, Any]) -> None:
        for topic, number in line["r"]:
            self._eras.pop(self._history.partition(topic, number), None)

    def _sought(self, line: Mapping[str, Any]) -> None:
        """It goes on elsewhere, in what was assigned to it when that was."""
        for topic, number in line["r"]:
            partition = self._history.partition(topic, number)
            era = self._eras.get(partition)
            if era is not None:
                known = self._history.eras[era]
                self._new_era(partition, known.start, known.asked)

    def _new_era(self, partition: int, start: int | None, asked: int | None) -> int:
        era = len(self._history.eras)
        self._history.eras.append(Era(self._reader, partition, start, asked))
        if start is None:
            self._lost[partition] = era
        else:
            self._eras[partition] = era
        return era

    def _polls(self, line: Mapping[str, Any]) -> None:
        polls = self._history.polls
        for topic, number, offsets, values, sources in line["r"]:
            partition = self._history.partition(topic, number)
            era = self._eras.get(partition)
            if era is None:
                era = self._lost.get(partition)
            if era is None:
                era = self._new_era(partition, None, None)
            base = partition << OFFSET_BITS
            polls.extend(
                len(offsets),
                reader=self._reader,
                era=era,
                place=[base | offset for offset in offsets],
                value=values,
                source=NOTHING if sources is None else sources,
                time=line["t"],
            )

    # --- share groups ---
    def _place(self, topic: str, number: int, offset: int) -> int:
        return self._history.partition(topic, number) << OFFSET_BITS | offset

    def _taken(self, line: Mapping[str, Any]) -> None:
        """Each is also a poll of its own: they come in no order."""
        history, time = self._history, line["t"]
        for topic, number, offset, value, lease, deliveries, *key in line["r"]:
            place = self._place(topic, number, offset)
            era = len(history.eras)
            history.eras.append(Era(self._reader, place >> OFFSET_BITS, time, time))
            history.polls.extend(
                1, reader=self._reader, era=era, place=place, value=value, source=NOTHING, time=time
            )
            taken = JobTaken(self._reader, place, lease, deliveries, time)
            taken.key = key[0] if key else None
            history.jobs.append(taken)
            self._jobs[place, lease] = taken

    def _answers(self, line: Mapping[str, Any]) -> None:
        """Only the first answer for a job counts."""
        for topic, number, offset, lease in line["r"]:
            taken = self._jobs[self._place(topic, number, offset), lease]
            if taken.answer is None:
                taken.answer, taken.answered = line["by"], line["t"]
                self._unkept.append(taken)

    def _kept(self, line: Mapping[str, Any]) -> None:
        """Which of them were late is not said: then nothing is known of any."""
        for taken in self._unkept:
            taken.is_kept = not line["late"]
        self._unkept = []

    def _dead(self, line: Mapping[str, Any]) -> None:
        self._history.dead += [
            Dead(line["group"], self._place(topic, number, offset), *rest)
            for topic, number, offset, *rest in line["r"]
        ]

    # --- groups' places ---
    def _group(self, line: Mapping[str, Any]) -> str:
        group = line.get("group") or self._history.readers[self._reader].group
        assert group is not None
        return str(group)

    def _at(self, line: Mapping[str, Any]) -> list[Commit]:
        group, partition, time = self._group(line), self._history.partition, line["t"]
        asked = line.get("asked", time)
        return [Commit(group, partition(t, n), at, time, asked) for t, n, at in line["r"]]

    def _committed(self, line: Mapping[str, Any]) -> None:
        self._history.commits.extend(self._at(line))

    def _claimed(self, line: Mapping[str, Any]) -> None:
        self._history.claims.extend(self._at(line))

    def _reset(self, line: Mapping[str, Any]) -> None:
        group, partition = self._group(line), self._history.partition
        time, asked = line["t"], line.get("asked", line["t"])
        self._history.resets.extend(
            Reset(group, partition(topic, n), start, to, time, asked)
            for topic, n, start, to in line["r"]
        )

    def _dying(self, line: Mapping[str, Any]) -> None:
        """Nothing follows; for whoever reads the file."""

    _left = _dying

    def _ends(self, line: Mapping[str, Any]) -> None:
        for topic, number, end in line["r"]:
            self._history.ends[self._reader, self._history.partition(topic, number)] = end

    def _drained(self, line: Mapping[str, Any]) -> None:
        group = self._group(line)
        self._history.drained[group] = {each.partition: each.offset for each in self._at(line)}
        self._history.drained_at[group] = line.get("asked", line["t"])


def load(sources: Mapping[str, Iterable[bytes]]) -> History:
    """The history of all processes; `sources` are their names with their lines."""
    history = History()
    decode = msgspec.json.Decoder().decode
    for who, lines in sources.items():
        source = _Source(history, who)
        torn: bytes | None = None
        for line in lines:
            if torn is not None:
                raise ValueError(f"{who}: {torn!r} is no event, and more follows")
            try:
                event = decode(line)
            except msgspec.DecodeError:
                torn = line
                continue
            source.take(event)
            history.lines += 1
    return history
