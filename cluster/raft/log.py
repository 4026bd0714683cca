"""The log of a raft node as it is in memory: a snapshot, and the entries behind it.

Knows which members each place of the log says. Pure; what is on stable storage is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.cluster.raft.messages import MEMBERS, LogEntry, Members, Snapshot

_members = msgspec.msgpack.Decoder(Members)


class RaftLog:
    """Entries `first_index` to `last_index`; empty where the last is one below the first."""

    def __init__(self, snapshot: Snapshot, entries: Iterable[LogEntry] = ()) -> None:
        self._begin(snapshot, entries)

    def _begin(self, snapshot: Snapshot, entries: Iterable[LogEntry]) -> None:
        self.snapshot = snapshot
        self._entries: list[LogEntry] = []
        self._members: list[tuple[int, Members]] = [(snapshot.index, snapshot.members)]
        self.append(entries)

    @property
    def first_index(self) -> int:
        return self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    @property
    def members(self) -> Members:
        """Of the newest entry that says any, committed or not."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        """Where they were said."""
        return self._members[-1][0]

    def members_at(self, index: int) -> Members:
        """Of the log up to `index`, which is not below the snapshot."""
        return next(members for at, members in reversed(self._members) if at <= index)

    def term_at(self, index: int) -> int | None:
        """None where the log does not reach, in either direction."""
        if index == self.snapshot.index:
            return self.snapshot.term
        place = index - self.first_index
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def entries(self, first: int, stop: int, bytes_max: int | None = None) -> tuple[LogEntry, ...]:
        """From `first` up to `stop` (exclusive); at least one of them, and no more than about so
        many bytes."""
        found = self._entries[first - self.first_index : stop - self.first_index]
        if bytes_max is not None:
            size = 0
            for count, entry in enumerate(found):
                size += len(entry.data)
                if size > bytes_max and count:
                    return tuple(found[:count])
        return tuple(found)

    def is_behind(self, index: int, term: int) -> bool:
        """Whether a log that ends so is at least as new as this one."""
        return (term, index) >= (self.last_term, self.last_index)

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Returns the last place at or below `index` whose term is not above `term`. This log
        cannot agree behind it with a log that has `term` at `index`. The second value is the term
        there, 0 where it is not known any more."""
        index = min(index, self.last_index)
        while index >= self.first_index and self._entries[index - self.first_index].term > term:
            index -= 1
        return index, self.term_at(index) or 0

    # --- changes ---
    def append(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, f"{entry} behind {self.last_index}"
            assert entry.term >= self.last_term, f"{entry} behind term {self.last_term}"
            self._entries.append(entry)
            if entry.kind == MEMBERS:
                self._members.append((entry.index, _members.decode(entry.data)))

    def conflict(self, entries: Sequence[LogEntry]) -> int:
        """How many of these entries, which follow one that is here, are here already."""
        for count, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                return count
        return len(entries)

    def truncate(self, index: int) -> None:
        """The log ends before `index`."""
        assert index > self.snapshot.index, f"{index} is in the snapshot"
        del self._entries[index - self.first_index :]
        while self._members[-1][0] >= index:
            self._members.pop()

    def compact(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of all entries up to its own, and of all where that is not
        here with its term."""
        if self.term_at(snapshot.index) == snapshot.term:
            kept = self.entries(snapshot.index + 1, self.last_index + 1)
        else:
            kept = ()
        self._begin(snapshot, kept)
