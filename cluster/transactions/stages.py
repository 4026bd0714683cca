"""Stages: transactions that span several producers, and are decided by one commit (rule 20).

**Theory.** A stage is a transactional producer of its own, registered under (transaction id,
epoch). It has a fresh producer id at epoch 0, and its open records hold the last stable offset
back. One decision of (transaction id, epoch) commits the stages it lists and aborts every other
stage of the id up to this epoch. The decision and its effect on each stage are one batch of the
log. Epochs of an id are decided in growing order, each at most once.

| state of a stage | request | then |
|---|---|---|
| none, its epoch not decided | begin | open |
| none, its epoch decided | begin | refused: `StageDecidedError`, there is nothing left to do |
| open | add_partitions | open |
| open | commit of its epoch that lists it | committing |
| open | any decision of its epoch or a later one that does not commit it | aborting |
| open | end, abort: its own producer gives up | aborting |
| open | end_stages that names it: its owner gives it up | aborting |
| open | begin of a stage of a later attempt, at its epoch or a later one | aborting |
| open | `stage_timeout` passed | aborting |
| committing, aborting | marked everywhere | forgotten |

| last decided epoch d | request | answer |
|---|---|---|
| none, or d < e | commit e, all that is listed is open at e | decided: d = e |
| none, or d < e | commit e, something listed is not open at e | refused, and nothing is decided |
| d >= e | anything about e | the first decision of e; nothing changes |

An attempt is a try of an epoch. Stages of an attempt that sorts before another's are left from a
dead driver. Ending it decides nothing; attempts in the wrong order cost a try, not a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.transactions import records as rec
from penstock.cluster.transactions.answers import (
    EndedTransaction,
    Listed,
    ProducerIdentity,
    StagesDecided,
)
from penstock.cluster.transactions.limits import TransactionLimits
from penstock.cluster.transactions.records import Decided, Key, Place, Stage
from penstock.cluster.transactions.state import State
from penstock.core.errors import (
    ConfigError,
    PenstockError,
    ResourceLimitError,
    StageDecidedError,
    TransactionError,
)


class Stages:
    """The part of the transaction machine that decides about stages."""

    def __init__(self, state: State, limits: TransactionLimits, counts: Counter[str]) -> None:
        self._state = state
        self._limits = limits
        self._counts = counts

    def owns(self, transactional_id: str, producer_id: int) -> bool:
        match self._state.owner(producer_id):
            case (rec.STAGE, name, _):
                return name == transactional_id
        return False

    def begin(
        self,
        now: float,
        transactional_id: str,
        epoch: int,
        new_producer_id: int,
        stage: str,
        attempt: str,
    ) -> Decision[ProducerIdentity]:
        self.check_name("transactional_id", transactional_id)
        self.check_name("stage", stage)
        if attempt:
            self.check_name("attempt", attempt)
        self._check_epoch(transactional_id, epoch)
        self.check_room(transactional_id, of_stages=True)
        what = f"stage {stage!r} of {transactional_id!r} at epoch {epoch}"
        decided = self._state.decided.get(transactional_id)
        if decided is not None and epoch <= decided.epoch:
            self._refuse(
                StageDecidedError(
                    f"{what}: epochs up to {decided.epoch} are decided, what this stage would "
                    "write is to be left out"
                )
            )
        there = self._state.stages.get(transactional_id, {})
        if stage in there:
            self._refuse(TransactionError(f"{what} is there already: take another name"))
        left = [
            ((rec.STAGE, transactional_id, name), other)
            for name, other in there.items()
            if other.commit is None and other.epoch <= epoch and "" < other.attempt < attempt
        ][: self._limits.tick_max]  # the next to begin ends more of them
        if len(there) - len(left) >= self._limits.stages_max:
            self._counts["limited"] += 1
            raise ResourceLimitError(
                f"{what}: the id has {len(there)} stages that are not decided or not marked, and "
                f"stages_max={self._limits.stages_max}: decide some before, or raise that"
            )
        self._counts["stages_begun"] += 1
        value = Stage(new_producer_id, 0, epoch, begun_at=now, attempt=attempt)
        begun = rec.record_of((rec.STAGE, transactional_id, stage), value)
        self._counts["stages_superseded"] += len(left)
        records = (begun, *(_decided(key, other, False) for key, other in left))
        return Decision(records, ProducerIdentity(new_producer_id, 0), durable=bool(left))

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[Place]
    ) -> Decision[None]:
        key, value = self._open(transactional_id, producer_id, epoch)
        places = rec.pack((*rec.unpack(value.places), *partitions))
        if places == value.places:
            return Decision((), None)
        if rec.count_of(places) > self._limits.transaction_partitions_max:
            self._counts["limited"] += 1
            raise ResourceLimitError(
                f"stage {key[2]!r} of {transactional_id!r} would span {rec.count_of(places)} "
                "partitions, over transaction_partitions_max="
                f"{self._limits.transaction_partitions_max}: use more stages, or raise that"
            )
        value = msgspec.structs.replace(value, places=places)
        # Synced: who is to commit the stage may outlive a power cut, and then names a stage that
        # would have no partitions, whose records were swept.
        return Decision((rec.record_of(key, value),), None, durable=True)

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool
    ) -> Decision[EndedTransaction]:
        """A producer gives its own stage up; only the commit of its transaction can commit it."""
        if commit:
            self._refuse(
                TransactionError(
                    f"producer {producer_id} is a stage of {transactional_id!r}: it is committed "
                    "with the others of its epoch, by commit_transaction"
                )
            )
        found = self._find(producer_id)
        if found is not None and found[1].commit is not None:
            return Decision((), EndedTransaction(found[1].commit, epoch + 1), durable=True)
        key, value = self._open(transactional_id, producer_id, epoch)
        self._counts["stages_given_up"] += 1
        return Decision(
            (_decided(key, value, False),), EndedTransaction(False, epoch + 1), durable=True
        )

    def end_named(self, transactional_id: str, stages: Sequence[str]) -> Decision[None]:
        """Aborts these stages, where they are still open. A decided or missing stage stays as it
        is."""
        self.check_name("transactional_id", transactional_id)
        there = self._state.stages.get(transactional_id, {})
        records = [
            _decided((rec.STAGE, transactional_id, name), there[name], False)
            for name in dict.fromkeys(stages)
            if name in there and there[name].commit is None
        ]
        self._counts["stages_given_up"] += len(records)
        return Decision(tuple(records), None, durable=True)

    def decide(
        self,
        now: float,
        transactional_id: str,
        epoch: int,
        stages: Sequence[str],
        commit: bool,
        is_last: bool,
    ) -> Decision[StagesDecided]:
        self.check_name("transactional_id", transactional_id)
        self._check_epoch(transactional_id, epoch)
        self.check_room(transactional_id, of_stages=True)
        decided = self._state.decided.get(transactional_id)
        if decided is not None and epoch <= decided.epoch:
            return self._decided_before(transactional_id, epoch, decided)
        there = self._state.stages.get(transactional_id, {})
        listed = set(stages) if commit else set()
        missing = sorted(name for name in listed if not _is_open(there.get(name), epoch))
        if missing:
            self._refuse(
                TransactionError(
                    f"{len(missing)} of {len(listed)} stages of {transactional_id!r} are not open "
                    f"at epoch {epoch}, like {missing[0]!r}: given up, or swept after "
                    f"stage_timeout={self._limits.stage_timeout:g} s. Nothing was decided: write "
                    "them again as new stages, then commit those"
                )
            )
        value = (decided or Decided(-1, now)).after(
            epoch, commit, now, self._limits.ranges_max, is_last
        )
        records = [rec.record_of((rec.DECIDED, transactional_id), value)]
        for name, stage in there.items():
            if stage.commit is None and stage.epoch <= epoch:
                key = (rec.STAGE, transactional_id, name)
                records.append(_decided(key, stage, name in listed))
                self._counts["stages_committed" if name in listed else "stages_aborted"] += 1
        self._counts["staged_commits" if commit else "staged_aborts"] += 1
        return Decision(tuple(records), StagesDecided(commit, epoch), durable=True)

    def _decided_before(
        self, transactional_id: str, epoch: int, decided: Decided
    ) -> Decision[StagesDecided]:
        """No stage up to `decided.epoch` is open any more, so there is nothing to abort."""
        if epoch < decided.known_from:
            self._refuse(
                TransactionError(
                    f"epoch {epoch} of {transactional_id!r} was decided so long ago that only "
                    f"epochs from {decided.known_from} on are remembered "
                    f"(ranges_max={self._limits.ranges_max}); the last one is {decided.epoch}"
                )
            )
        self._counts["staged_repeated"] += 1
        answer = StagesDecided(decided.is_committed(epoch), decided.epoch)
        return Decision((), answer, durable=True)

    def swept(self, key: Key, value: Stage) -> Record:
        self._counts["stages_swept"] += 1
        return _decided(key, value, False)

    def marked(self, key: Key, value: Stage, epoch: int, gone: frozenset[Place]) -> Decision[None]:
        if value.commit is None or epoch != value.producer_epoch:
            return Decision((), None)
        places = rec.pack(rec.unpack(value.places) - gone)
        if places == value.places:
            return Decision((), None)
        left = Stage(
            *(value.producer_id, value.producer_epoch, value.epoch, value.begun_at),
            *(places, value.commit),
        )
        return Decision((rec.record_of(key, left if places else None),), None)

    def listed(self, name: str) -> Listed:
        stages = [
            stage
            for stage in self._state.stages.get(name, {}).values()
            if stage.commit is None or self._state.is_marking(stage)
        ]
        partitions = sum(rec.count_of(stage.places) for stage in stages)
        topics = rec.topics_of(stage.places for stage in stages)
        undecided = [stage for stage in stages if stage.commit is None]
        if undecided:
            oldest = min(undecided, key=lambda stage: stage.begun_at)
            shown = (oldest.producer_id, oldest.epoch, partitions, oldest.begun_at, topics)
            return Listed(name, "staged", *shown)
        decided = self._state.decided.get(name)
        state = "ready"
        if stages:
            state = "committing" if any(stage.commit for stage in stages) else "aborting"
        epoch = -1 if decided is None else decided.epoch
        return Listed(name, state, -1, epoch, partitions, None, topics)

    # --- checks -----------------------------------------------------------------------------------
    def check_name(self, what: str, name: str) -> None:
        if not 0 < len(name.encode("utf-8", "surrogatepass")) <= self._limits.name_bytes_max:
            raise ConfigError(
                f"{what} {name[:40]!r} has {len(name)} characters; it needs one at least and may "
                f"take name_bytes_max={self._limits.name_bytes_max} bytes"
            )

    def check_room(self, transactional_id: str, of_stages: bool) -> None:
        """An id is one producer's or that of stages, never both; and there is a bound for them."""
        state = self._state
        if transactional_id in (state.transactional if of_stages else state.ids):
            user = "a transactional producer" if of_stages else "stages"
            self._refuse(
                TransactionError(f"{transactional_id!r} is the id of {user}: take another one")
            )
        ids = state.ids
        if transactional_id not in ids and len(ids) >= self._limits.transactions_max:
            self._counts["limited"] += 1
            raise ResourceLimitError(
                f"{transactional_id!r} would be the {len(ids) + 1}th transactional id, over "
                f"transactions_max={self._limits.transactions_max}: use fewer ids, or raise that"
            )

    def _check_epoch(self, transactional_id: str, epoch: int) -> None:
        if not 0 <= epoch < 2**63:
            raise ConfigError(
                f"epoch {epoch} of {transactional_id!r}: it must be 0 or more, and have 63 bits"
            )

    def _find(self, producer_id: int) -> tuple[Key, Stage] | None:
        key = self._state.owner(producer_id)
        value = None if key is None else self._state.get(key)
        return (key, value) if key is not None and isinstance(value, Stage) else None

    def _open(self, transactional_id: str, producer_id: int, epoch: int) -> tuple[Key, Stage]:
        found = self._find(producer_id)
        if found is None or found[1].commit is not None or found[1].producer_epoch != epoch:
            self._refuse(
                TransactionError(
                    f"the stage of producer {producer_id} at epoch {epoch} of "
                    f"{transactional_id!r} is not open: it was decided, or timed out"
                )
            )
        return found

    def _refuse(self, error: PenstockError) -> NoReturn:
        self._counts["refused"] += 1
        raise error


def _is_open(stage: Stage | None, epoch: int) -> bool:
    return stage is not None and stage.commit is None and stage.epoch == epoch


def _decided(key: Key, stage: Stage, commit: bool) -> Record:
    """A stage that wrote nowhere needs no marker and is forgotten at once."""
    if not stage.places:
        return rec.record_of(key, None)
    value = Stage(
        *(stage.producer_id, stage.producer_epoch, stage.epoch, stage.begun_at),
        *(stage.places, commit),
    )
    return rec.record_of(key, value)
