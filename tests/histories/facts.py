"""What a history says when its lines are put together: who wrote what where, and what became of it.

Everything here is derived once, by sorts and merges, and shared by all checks. Never judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from histories.anomalies import contains, look_up
from histories.events import (
    ABORTED,
    COMMITTED,
    NOTHING,
    OFFSET_BITS,
    PLAIN,
    SHARED,
    UNKNOWN,
    History,
    Ints,
    value_name,
)


@dataclass(frozen=True, slots=True)
class View:
    """What readers of one isolation level have seen together."""

    name: str
    rows: Ints
    """Of `polls`."""
    values: Ints
    """Seen, sorted and unique."""
    highest: Ints
    """Of each partition: the largest place below which all came to somebody; -1 where none did.
    Members that may skip say nothing about what is below."""
    is_complete: bool
    """One of them read every partition to its end, after all was over."""


class Facts:
    """See the module."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.send_value, order = np.unique(history.sends.col("value"), return_index=True)
        self.send_txn = history.sends.col("txn")[order]
        self.send_time = history.sends.col("time")[order]
        self.ack_value = history.acks.col("value")
        self.ack_place = history.acks.col("place")
        self.ack_time = history.acks.col("time")
        self.poll_reader = history.polls.col("reader")
        self.poll_era = history.polls.col("era")
        self.poll_place = history.polls.col("place")
        self.poll_value = history.polls.col("value")
        self.poll_source = history.polls.col("source")
        self.poll_time = history.polls.col("time")
        readers = history.readers
        self.reader_is_committed = np.array([r.read_committed for r in readers] or [False])
        moved_on = {each.group for each in history.resets if each.to > each.start}
        self.may_skip = np.array(
            [r.guarantee in ("at-most-once", SHARED) or r.group in moved_on for r in readers]
            or [False]
        )
        """Readers that drop a claim, that share partitions with others, or whose group was moved
        forward by hand."""

    @cached_property
    def versions(self) -> tuple[Ints, Ints]:
        """(place, value) as anybody has them, sorted, each pair once."""
        known = self.ack_place != NOTHING
        places = np.concatenate((self.ack_place[known], self.poll_place))
        values = np.concatenate((self.ack_value[known], self.poll_value))
        order = np.lexsort((values, places))
        places, values = places[order], values[order]
        first = np.ones(len(places), np.bool_)
        first[1:] = (places[1:] != places[:-1]) | (values[1:] != values[:-1])
        return places[first], values[first]

    @cached_property
    def committed_view(self) -> View:
        return self._view("read_committed", True)

    @cached_property
    def uncommitted_view(self) -> View:
        return self._view("read_uncommitted", False)

    def _view(self, name: str, committed: bool) -> View:
        if not len(self.poll_reader):
            rows = np.empty(0, np.int64)
        else:
            rows = np.flatnonzero(self.reader_is_committed[self.poll_reader] == committed)
        highest = np.full(len(self.history.places), NOTHING, np.int64)
        steady = self.poll_place[rows[~self.may_skip[self.poll_reader[rows]]]]
        np.maximum.at(highest, steady >> OFFSET_BITS, steady)
        complete = False
        for (reader, partition), end in self.history.ends.items():
            if bool(self.reader_is_committed[reader]) == committed:
                complete = True
                if end > 0:
                    place = partition << OFFSET_BITS | (end - 1)
                    highest[partition] = max(int(highest[partition]), place)
        return View(name, rows, np.unique(self.poll_value[rows]), highest, complete)

    @cached_property
    def fates(self) -> Ints:
        """Of each transaction. One of unknown outcome is committed if somebody who sees only what
        is committed saw something of it."""
        fates = np.array([each.fate for each in self.history.transactions], np.int64)
        seen = self.txn_of(self.committed_view.values)
        seen = np.unique(seen[seen != NOTHING])
        if len(seen):
            open_ = seen[fates[seen] == UNKNOWN]
            fates[open_] = COMMITTED
        return fates

    def txn_of(self, values: Ints) -> Ints:
        return look_up(self.send_value, self.send_txn, values, NOTHING)

    def fate_of(self, values: Ints) -> Ints:
        """PLAIN, COMMITTED, ABORTED or UNKNOWN of each value."""
        txns = self.txn_of(values)
        if not len(self.fates):
            return np.full(len(values), PLAIN, np.int64)
        return np.where(txns == NOTHING, PLAIN, self.fates[txns])

    @cached_property
    def promised(self) -> tuple[Ints, Ints]:
        """(value, row of `acks` or -1) of what must be there for all to see: what was acknowledged
        outside of transactions, and whatever was sent in committed ones."""
        fate = self.fate_of(self.ack_value)
        alone = np.flatnonzero(fate == PLAIN)
        sent = self.send_value[self.fate_of(self.send_value) == COMMITTED]
        in_txn = np.flatnonzero(fate == COMMITTED)
        bare = sent[~contains(np.unique(self.ack_value[in_txn]), sent)]
        rows = np.concatenate((alone, in_txn))
        return (
            np.concatenate((self.ack_value[rows], bare)),
            np.concatenate((rows, np.full(len(bare), NOTHING, np.int64))),
        )

    # --- words ---
    def describe_poll(self, row: int) -> str:
        place, value = int(self.poll_place[row]), int(self.poll_value[row])
        reader = self.history.readers[int(self.poll_reader[row])].who
        return (
            f"{reader} read {value_name(value)} at {self.history.place_name(place)}, "
            f"t={int(self.poll_time[row])}"
        )

    def describe_value(self, value: int) -> str:
        """Everything that is known of one value."""
        said = [value_name(value)]
        at = int(np.searchsorted(self.send_value, value))
        if at < len(self.send_value) and self.send_value[at] == value:
            said.append(f"sent t={int(self.send_time[at])}")
            txn = int(self.send_txn[at])
            if txn != NOTHING:
                fate = ("plain", "committed", "aborted", "unknown")[int(self.fates[txn])]
                said.append(f"in {self.history.transactions[txn]} ({fate})")
        for row in np.flatnonzero(self.ack_value == value)[:3]:
            place = int(self.ack_place[row])
            where = "no offset" if place == NOTHING else self.history.place_name(place)
            said.append(f"acknowledged at {where} t={int(self.ack_time[row])}")
        for row in np.flatnonzero(self.poll_value == value)[:3]:
            reader = self.history.readers[int(self.poll_reader[row])].who
            said.append(f"read by {reader} at {self.history.place_name(int(self.poll_place[row]))}")
        return ", ".join(said)


__all__ = ["ABORTED", "COMMITTED", "PLAIN", "UNKNOWN", "Facts", "View"]
