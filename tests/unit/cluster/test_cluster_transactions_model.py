"""The transaction machine against a model of what its clients and partitions may ever see.

Holders of ids keep their identity for ever, so most of them are zombies soon; ends are repeated and
arrive late; the machine is made again from its log, whole or compacted, at any moment.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from seeds import seed_of
from transaction_fixture import T, U, World

from penstock.cluster.transactions import ConsumedOffsets, TransactionLimits
from penstock.cluster.transactions.records import Stage
from penstock.core.errors import (
    ProducerFencedError,
    ResourceLimitError,
    StageDecidedError,
    TransactionError,
)

PLACES = st.lists(st.sampled_from([(T, 0), (T, 1), (U, 0)]), min_size=1, max_size=3)
NAMES = st.sampled_from(["a", "b"])
PICK = st.integers(0, 1 << 16)
EXAMPLES = int(os.environ.get("PENSTOCK_MACHINE_EXAMPLES", "60"))
LIMITS = TransactionLimits(endings_max=3, tick_max=2, stages_max=6)


class Holder:
    """A client that got an identity once, and follows the answers it gets from then on."""

    def __init__(self, name: str, producer_id: int, epoch: int) -> None:
        self.name = name
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_newest = True

    @property
    def who(self) -> tuple[int, int]:
        return (self.producer_id, self.epoch)


class TransactionsModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(LIMITS)
        self.holders: list[Holder] = []
        self.ends: list[tuple[str, tuple[int, int], bool]] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.registered: set[tuple[tuple[int, int], tuple[bytes, int]]] = set()
        self.markers: dict[tuple[tuple[int, int], tuple[bytes, int]], bool] = {}
        self.offsets: dict[int, tuple[int, int]] = {}
        self.stages: dict[str, tuple[tuple[int, int], int]] = {}  # name -> (who, epoch)
        self.begun: tuple[int, int] | None = None  # by the last rule that wanted to begin a stage
        self.listed: dict[int, set[str]] = {}  # decided epoch -> the stages it listed
        self.decided: dict[int, bool] = {}

    # --- what anybody learns ---
    def learn(self, who: tuple[int, int], committed: bool) -> None:
        assert self.outcomes.setdefault(who, committed) == committed, f"{who} went both ways"

    def learn_markers(self) -> None:
        for marking in self.world.machine.unmarked():
            self.learn((marking.producer_id, marking.epoch), marking.commit)

    def holder(self, pick: int) -> Holder:
        return self.holders[pick % len(self.holders)]

    # --- producers ---
    @rule(name=NAMES)
    def init(self, name: str) -> None:
        given = {holder.who for holder in self.holders if holder.name == name}
        producer_id, epoch = self.world.init(name)
        assert all((producer_id, epoch) > who for who in given if who[0] == producer_id)
        for holder in self.holders:
            holder.is_newest &= holder.name != name
        self.holders.append(Holder(name, producer_id, epoch))

    @precondition(lambda self: self.holders)
    @rule(pick=PICK, places=PLACES)
    def add(self, pick: int, places: list[tuple[bytes, int]]) -> None:
        holder = self.holder(pick)
        try:
            self.world.add(holder.who, *places, name=holder.name)
        except TransactionError:
            # It timed out or expired under a living holder; a zombie gets nothing else.
            assert not holder.is_newest or self.is_over(holder)
            return
        except ResourceLimitError:
            assert self.world.machine.is_marking(holder.name)
            return
        assert holder.is_newest, "a zombie wrote"
        assert holder.who not in self.outcomes, "a partition joined what is decided"
        self.registered |= {(holder.who, place) for place in places}

    def is_over(self, holder: Holder) -> bool:
        """Decided already (its markers may be held back, so nobody saw one), or forgotten."""
        try:
            decision = self.world.machine.end(self.world.now, holder.name, *holder.who, False)
        except TransactionError:
            return True
        return not decision.records

    @precondition(lambda self: self.holders)
    @rule(pick=PICK, commit=st.booleans(), offsets=st.integers(0, 2), stale=st.booleans())
    def end(self, pick: int, commit: bool, offsets: int, stale: bool) -> None:
        holder = self.holder(pick)
        numbers = [len(self.offsets) + more for more in range(offsets)]
        self.offsets |= dict.fromkeys(numbers, holder.who)
        self.world.offsets.stale = {"m"} if stale else set()
        consumed = [ConsumedOffsets("g", "m", numbers)]
        machine, now = self.world.machine, self.world.now
        try:
            decision = machine.end(now, holder.name, *holder.who, commit, consumed)
        except (ProducerFencedError, TransactionError):
            assert not holder.is_newest or "not known here" in self.refusal(holder)
            return
        ended, known = self.world.run(decision), not decision.records
        assert known or holder.is_newest, "a zombie decided"
        assert known or holder.who not in self.outcomes, "decided twice"
        assert known or ended.committed == (commit and not stale)
        self.learn(holder.who, ended.committed)
        self.ends.append((holder.name, holder.who, commit))
        if known:  # the offsets of a repetition are not looked at: they count if the first did
            for number in numbers:
                del self.offsets[number]
        holder.epoch = ended.next_epoch

    def refusal(self, holder: Holder) -> str:
        try:
            self.world.machine.add_partitions(self.world.now, holder.name, *holder.who, [(T, 9)])
        except TransactionError as error:
            return str(error)
        return ""

    @precondition(lambda self: self.ends)
    @rule(pick=PICK, commit=st.booleans())
    def end_again(self, pick: int, commit: bool) -> None:
        name, who, _ = self.ends[pick % len(self.ends)]
        try:
            decision = self.world.machine.end(self.world.now, name, *who, commit)
        except TransactionError:
            return
        assert decision.records == (), "a late end decided something"
        self.learn(who, decision.answer.committed)

    @precondition(lambda self: self.holders)
    @rule(pick=PICK, places=PLACES, commits=st.lists(st.booleans(), min_size=2, max_size=3))
    def whole_transactions(
        self, pick: int, places: list[tuple[bytes, int]], commits: list[bool]
    ) -> None:
        """Several in a row: their markers are missing at the same time."""
        for commit in commits:
            self.add(pick, places)
            self.end(pick, commit, offsets=0, stale=False)

    @precondition(lambda self: self.holders)
    @rule(pick=PICK)
    def abandon(self, pick: int) -> None:
        self.world.run(self.world.machine.abandon(self.world.now, self.holder(pick).producer_id))

    # --- stages ---
    def epoch(self, ahead: int) -> int:
        return max(0, max(self.decided, default=0) + ahead)

    def open_stages(self) -> dict[str, Stage]:
        return {
            key[2]: value
            for key, value in self.world.machine.state().items()
            if isinstance(value, Stage) and value.commit is None
        }

    @rule(
        ahead=st.integers(-1, 2),
        places=PLACES,
        writes=st.booleans(),
        attempt=st.sampled_from("123"),
    )
    def begin_stage_of_an_attempt(
        self, ahead: int, places: list[tuple[bytes, int]], writes: bool, attempt: str
    ) -> None:
        before = self.open_stages()
        self.begin_stage(ahead, places, writes, attempt)
        epoch = self.epoch(ahead)
        left = {
            name
            for name, stage in before.items()
            if stage.epoch <= epoch and "" < stage.attempt < attempt
        }
        ended = before.keys() - self.open_stages().keys()
        if list(self.stages.values())[-1:] == [(self.begun, epoch)]:
            assert ended <= left
            assert len(ended) == min(len(left), LIMITS.tick_max)
        else:
            assert not ended, "it was refused"
        for name in ended:
            self.learn(self.stages[name][0], False)

    @rule(picks=st.sets(PICK, max_size=3))
    def end_stages(self, picks: set[int]) -> None:
        names = [name for place, name in enumerate(self.stages) if place in picks]
        before = self.open_stages()
        self.world.end_stages("never heard of", *names)
        for name in before.keys() & set(names):
            self.learn(self.stages[name][0], False)
        assert self.open_stages().keys() == before.keys() - set(names)

    @rule(ahead=st.integers(-1, 2), places=PLACES, writes=st.booleans())
    def begin_stage(
        self, ahead: int, places: list[tuple[bytes, int]], writes: bool, attempt: str = ""
    ) -> None:
        epoch = self.epoch(ahead)
        name = f"stage-{len(self.stages)}"
        self.begun = None
        try:
            who = self.begun = self.world.begin_stage(epoch, name, attempt=attempt)
        except StageDecidedError:
            assert epoch <= max(self.decided)
            return
        except ResourceLimitError:
            return
        assert epoch > max(self.decided, default=-1)
        self.stages[name] = (who, epoch)
        if writes:
            self.world.add(who, *places, name="s")
            self.registered |= {(who, place) for place in places}

    @rule(
        ahead=st.integers(-1, 2),
        leave_out=st.sets(st.integers(0, 3), max_size=2),
        commit=st.booleans(),
    )
    def commit_stages(self, ahead: int, leave_out: set[int], commit: bool) -> None:
        epoch = self.epoch(ahead)
        there = [name for name, (_, of) in self.stages.items() if of == epoch]
        listed = {name for place, name in enumerate(there) if place not in leave_out}
        aborted = {name for name in listed if self.outcomes.get(self.stages[name][0]) is False}
        try:
            answer = self.world.commit_stages(epoch, *listed, commit=commit)
        except TransactionError:
            assert aborted or self.gone(listed), "refused though all of it was there"
            assert epoch not in self.decided
            return
        last = max(self.decided, default=-1)
        if epoch <= last:
            assert answer == (self.decided.get(epoch, False), last)
            return
        assert answer == (commit, epoch)
        self.decided[epoch] = commit
        self.listed[epoch] = listed if commit else set()
        for name, (who, of) in self.stages.items():
            if of <= epoch and who not in self.outcomes:
                self.learn(who, of == epoch and name in self.listed[epoch])

    @rule(
        places=PLACES,
        ahead=st.integers(1, 2),
        count=st.integers(1, 3),
        leave_out=st.sets(st.integers(0, 3), max_size=2),
    )
    def whole_epoch(
        self, places: list[tuple[bytes, int]], ahead: int, count: int, leave_out: set[int]
    ) -> None:
        for _ in range(count):
            self.begin_stage(ahead, places, writes=True)
        self.commit_stages(ahead, leave_out, commit=True)

    def gone(self, names: set[str]) -> set[str]:
        """Stages that were swept before they wrote anything: no marker ever told of them."""
        shown = {key[2] for key in self.world.machine.state() if key[0] == "stage"}
        return names - shown

    @precondition(lambda self: self.stages)
    @rule(pick=PICK)
    def give_up_stage(self, pick: int) -> None:
        who, _ = list(self.stages.values())[pick % len(self.stages)]
        try:
            ended = self.world.end(who, commit=False, name="s")
        except TransactionError:
            return
        self.learn(who, ended.committed)

    # --- the world ---
    @rule(pick=PICK, places=PLACES)
    def mark(self, pick: int, places: list[tuple[bytes, int]]) -> None:
        if markings := list(self.world.machine.unmarked()):
            marking = markings[pick % len(markings)]
            self.write_markers(marking, marking.places & set(places))

    def write_markers(self, marking: Any, places: frozenset[tuple[bytes, int]]) -> None:
        who = (marking.producer_id, marking.epoch)
        for place in places:
            assert (who, place) in self.registered, "a marker where nothing was opened"
            for (producer_id, epoch), where in self.registered:
                if producer_id == who[0] and where == place and epoch < who[1]:
                    assert ((producer_id, epoch), place) in self.markers, "a marker overtook"
            assert self.markers.setdefault((who, place), marking.commit) == marking.commit
        self.world.run(self.world.machine.marked(*who, places))

    @rule(seconds=st.sampled_from([1.0, 61.0, 901.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(self.world.now + seconds)

    @rule()
    def a_long_time_passes(self) -> None:
        """Ids that are not used are forgotten with what they were: nobody repeats anything then."""
        if not list(self.world.machine.unmarked()):
            self.world.tick(self.world.now + 8 * 86_400)

    @rule(how=st.sampled_from(["whole", "compacted", "twice"]))
    def reload(self, how: str) -> None:
        log = self.world.compacted() if how == "compacted" else self.world.log
        before = self.world.machine
        self.world.machine = self.world.replayed(log * 2 if how == "twice" else log)
        after = self.world.machine
        assert after.state() == before.state()
        assert after.deadline() == before.deadline()
        assert sorted(map(str, after.unmarked())) == sorted(map(str, before.unmarked()))

    @invariant()
    def nothing_is_staged_up_to_the_last_decided_epoch(self) -> None:
        for value in self.world.machine.state().values():
            if isinstance(value, Stage) and value.commit is None:
                assert value.epoch > max(self.decided, default=-1)

    @invariant()
    def ids_are_those_that_any_table_names(self) -> None:
        machine = self.world.machine
        assert list(machine.ids()) == sorted({key[1] for key in machine.state()})

    @invariant()
    def one_outcome_each(self) -> None:
        self.learn_markers()

    @invariant()
    def open_is_what_was_registered_and_has_no_marker(self) -> None:
        for who, place in self.registered:
            if (who, place) not in self.markers:
                assert self.world.machine.is_open(*who), f"{who} hangs in {place}"

    @invariant()
    def offsets_are_committed_with_their_transaction(self) -> None:
        keys = [msgspec.msgpack.decode(record.key) for record in self.world.log]
        there = {key[2] for key in keys if key[0] == "offset"}
        wanted = {number for number, who in self.offsets.items() if self.outcomes.get(who)}
        assert there == wanted

    def teardown(self) -> None:
        """What heals: time passes, partitions come back. Then each partition that was ever
        registered has its marker, and nothing is open."""
        self.world.tick(self.world.now + 1000)
        for _ in range(LIMITS.endings_max):
            for marking in list(self.world.machine.unmarked()):
                self.learn((marking.producer_id, marking.epoch), marking.commit)
                self.write_markers(marking, marking.places)
        assert list(self.world.machine.unmarked()) == []
        assert self.markers.keys() == self.registered
        assert all(self.outcomes[who] == said for (who, _), said in self.markers.items())
        for name, (who, epoch) in self.stages.items():
            if who in self.outcomes:
                assert self.outcomes[who] == (name in self.listed.get(epoch, ()))


def run(model: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    seeded = seed(seed_of("transactions"))(model)
    run_state_machine_as_test(
        seeded, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


def test_each_transaction_has_one_outcome_and_every_partition_learns_it() -> None:
    run(TransactionsModel, EXAMPLES, steps=50)
