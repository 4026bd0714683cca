"""The transaction machine: producer ids, open transactions, decisions, and missing markers.

**Theory.** A transactional id has one producer id and an epoch that only grows. Each transaction
has its own epoch. Its data and the BEGIN in each partition carry `e`, and its COMMIT or ABORT
marker carries `e + 1`. So a partition refuses late batches of `e` (rule 19). A decision, the
consumed offsets that belong to it and the jobs that it has done are one batch of the coordinator's
log: either all of them are there or none. A producer that takes an id over gets an epoch beyond all
that its predecessor ever got. So the old one is refused at every place.

| state of an id: next epoch | request | decides | then |
|---|---|---|---|
| unknown | init | a fresh producer id at epoch 0 | 0 |
| e | init | | e+1 |
| e, open e | add_partitions e | the partitions, none twice | open e |
| e, open e | end e, commit, all of it current | COMMIT of e, offsets, jobs | e+1, marking e |
| e, open e | end e, commit, a grant or lease is stale | ABORT of e (`stale`) | e+1, marking e |
| e, open e | end e, abort | ABORT of e | e+1, marking e |
| open e | timeout passed | ABORT of e (`timeout`) | e+1, marking e |
| open e | abandon: its producer is gone | ABORT of e (`gone`) | e+1, marking e |
| open e | init | ABORT of e (`taken over`) | e+2, marking e |
| any | end of the last decided epoch | nothing: the first outcome is answered again | as it was |
| any | anything of another epoch or producer id | nothing: refused | as it was |
| marking e | marked in some partitions | the rest of them | marking e, or not any more |
| e, nothing to mark | not used for `idle_max` | forgotten | unknown |

Also an end without partitions uses its epoch up: a late repetition of it must not end the next
transaction. While e misses markers e+1 may be open already, and even be decided. In each partition
its marker is not sent before that of e is there. Stages have a module of their own.

Duties of the shell: it sends markers, and gives answers, when the records of the decision are on
the device (`durable`). It answers an empty decision after all decisions before it. A marker is
`marked` only when it is on the device itself, and until then `wrote`. After a power cut that takes
the marker, no log here may say that it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.transactions import records as rec
from penstock.cluster.transactions.answers import (
    ConsumedOffsets,
    EndedTransaction,
    JobKeeper,
    Listed,
    Marking,
    OffsetKeeper,
    ProducerIdentity,
    StagesDecided,
)
from penstock.cluster.transactions.ids import Ids
from penstock.cluster.transactions.limits import TransactionLimits
from penstock.cluster.transactions.records import Ending, Outcome, Place, Stage, Transactional
from penstock.cluster.transactions.stages import Stages
from penstock.cluster.transactions.state import State
from penstock.core.errors import (
    ConfigError,
    GroupError,
    ProducerFencedError,
    ResourceLimitError,
    StaleGenerationError,
    TransactionError,
    UnknownMemberError,
)

EPOCH_LAST: Final = 2**32 - 2
"""The last epoch of a producer id that a transaction may have: its marker carries the next one, and
the field has 32 bits."""
_NOTHING: Final[Decision[None]] = Decision((), None)


class TransactionMachine:
    """All transactions of a coordinator. Handlers decide; `replay` alone changes what is so."""

    def __init__(
        self, groups: OffsetKeeper, shares: JobKeeper, limits: TransactionLimits | None = None
    ) -> None:
        self._limits = limits or TransactionLimits()
        self._groups = groups
        self._shares = shares
        self._state = State(self._limits)
        self.doubt = 0.0
        """Seconds by which `now` may be ahead of the time that passed: ids that are not used stay
        so much longer. The shell says so."""
        self.counts: Counter[str] = Counter()
        """Decisions and refusals since this machine was made, by kind."""
        self._stages = Stages(self._state, self._limits, self.counts)

    def replay(self, record: Record) -> None:
        """The only mutator. Records of other machines are passed over."""
        self._state.replay(record)

    # --- producers --------------------------------------------------------------------------------
    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether `init` will take the new producer id that it is given."""
        known = self._state.transactional.get(transactional_id)
        return known is None or known.epoch + 2 > EPOCH_LAST

    def init(
        self, now: float, transactional_id: str, timeout: float, new_producer_id: int
    ) -> Decision[ProducerIdentity]:
        """Take an id over. The answer waits until `is_marking` is false, too."""
        self._stages.check_name("transactional_id", transactional_id)
        if not 0 < timeout <= self._limits.timeout_max:
            raise ConfigError(
                f"the timeout of {transactional_id!r} is {timeout!r} s; it must be above 0 and at "
                f"most timeout_max={self._limits.timeout_max:g}"
            )
        known = self._state.transactional.get(transactional_id)
        if known is None:
            self._stages.check_room(transactional_id, of_stages=False)
            value = Transactional(new_producer_id, 0, timeout, used_at=now)
        else:
            if known.opened_at is not None:
                known = self._ended(known, now, commit=False, why=rec.TAKEN_OVER)
            producer_id, epoch = known.producer_id, known.epoch + 1
            if epoch > EPOCH_LAST:
                producer_id, epoch = new_producer_id, 0
                self.counts["producer_ids_renewed"] += 1
            value = Transactional(
                producer_id, epoch, timeout, now, endings=known.endings, last=known.last
            )
        self.counts["inits"] += 1
        records = (_record(transactional_id, value),)
        return Decision(records, ProducerIdentity(value.producer_id, value.epoch), durable=True)

    def add_partitions(
        self,
        now: float,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[Place],
    ) -> Decision[None]:
        """Open the transaction there. Then the shell has BEGIN written to all of `partitions` (some
        may have it already, by an earlier try), and answers."""
        if self._stages.owns(transactional_id, producer_id):
            return self._stages.add_partitions(transactional_id, producer_id, epoch, partitions)
        known = self._current(transactional_id, producer_id, epoch)
        places = rec.pack((*rec.unpack(known.places), *partitions))
        if places == known.places:
            return _NOTHING
        if len(known.endings) >= self._limits.endings_max:
            self._limit(
                f"{len(known.endings)} decided transactions of {transactional_id!r} still wait for "
                f"markers in their partitions (endings_max={self._limits.endings_max}): try later"
            )
        if rec.count_of(places) > self._limits.transaction_partitions_max:
            self._limit(
                f"a transaction of {transactional_id!r} would span {rec.count_of(places)} "
                "partitions, over transaction_partitions_max="
                f"{self._limits.transaction_partitions_max}: end it before, or raise that"
            )
        opened_at = now if known.opened_at is None else known.opened_at
        value = Transactional(
            *(producer_id, epoch, known.timeout, now),
            *(opened_at, places, known.endings, known.last),
        )
        return Decision((_record(transactional_id, value),), None)

    def end(
        self,
        now: float,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        offsets: Sequence[ConsumedOffsets] = (),
        partitions: int = 0,
        done: Sequence[Any] = (),
    ) -> Decision[EndedTransaction]:
        """Decides the transaction of this epoch, once. `answer.error()` is the error for a producer
        that wanted a commit where the first decision was another.

        `partitions`: the number of partitions that it was opened on, as its producer knows. The
        record of their registration is not synced, so a producer on another host may outlive it.
        The shell then sweeps its records there (see `is_open`), and they must not count as
        committed.
        """
        if self._stages.owns(transactional_id, producer_id):
            return self._stages.end(transactional_id, producer_id, epoch, commit)
        known = self._state.transactional.get(transactional_id)
        if (
            known
            and (last := known.last)
            and (last.producer_id, last.epoch)
            == (
                producer_id,
                epoch,
            )
        ):
            self.counts["ends_repeated"] += 1
            answer = EndedTransaction(last.committed, epoch + 1, last.why)
            return Decision((), answer, durable=True)
        known = self._current(transactional_id, producer_id, epoch)
        why, detail = rec.ASKED, ""
        if commit and rec.count_of(known.places) < partitions:
            commit, why = False, rec.FORGOTTEN
        if commit:
            try:
                for consumed in offsets:
                    self._groups.check_offsets(consumed.group, consumed.member_id, consumed.offsets)
                self._shares.check_done(done)
            except (StaleGenerationError, UnknownMemberError, GroupError) as error:
                commit, why, detail = False, rec.STALE, str(error)
        records = [_record(transactional_id, self._ended(known, now, commit, why))]
        notify: frozenset[str] = frozenset()
        if commit:
            for consumed in offsets:
                records += self._groups.offset_records(now, consumed.group, consumed.offsets)
            accepted, notify = self._shares.done_records(done)
            records += accepted
        ended = EndedTransaction(commit, epoch + 1, why, detail)
        return Decision(tuple(records), ended, notify, durable=True)

    def abandon(self, now: float, producer_id: int) -> Decision[None]:
        """Its process died or closed: abort what it has open, after its lane was drained and closed
        (rule 19). Stages stay, their data is complete or will not be listed."""
        match self._state.owner(producer_id):
            case (rec.TRANSACTION, name):
                known = self._state.transactional[name]
                if known.opened_at is not None and known.producer_id == producer_id:
                    value = self._ended(known, now, commit=False, why=rec.GONE)
                    return Decision((_record(name, value),), None, durable=True)
        return _NOTHING

    def _ended(self, known: Transactional, now: float, commit: bool, why: str) -> Transactional:
        """The value after the decision: the next epoch, and this one's markers to send."""
        self.counts["commits" if commit else f"aborts_{why.replace(' ', '_') or 'asked'}"] += 1
        endings = known.endings
        if known.places:
            endings += (Ending(known.producer_id, known.epoch, commit, known.places),)
        return Transactional(
            *(known.producer_id, known.epoch + 1, known.timeout, now),
            endings=endings,
            last=Outcome(known.producer_id, known.epoch, commit, why),
        )

    def _current(self, transactional_id: str, producer_id: int, epoch: int) -> Transactional:
        """The id, if this is its producer and the epoch of the transaction that is open or next."""
        who = f"producer {producer_id} at epoch {epoch} of {transactional_id!r}"
        known = self._state.transactional.get(transactional_id)
        if known is None:
            self._refuse(TransactionError(f"{who} is not known here, or not any more: begin again"))
        if producer_id != known.producer_id or epoch + 1 < known.epoch:
            self._refuse(
                ProducerFencedError(
                    f"{who} is fenced: the id is producer {known.producer_id} at epoch "
                    f"{known.epoch} by now; end this one"
                )
            )
        if epoch < known.epoch:
            last = known.last
            if last is None or (last.producer_id, last.epoch) != (producer_id, epoch):
                self._refuse(ProducerFencedError(f"{who} is fenced: the id was taken over"))
            how = "committed" if last.committed else f"aborted ({last.why or 'asked'})"
            self._refuse(TransactionError(f"{who} was {how}: begin the next transaction"))
        if epoch > known.epoch:
            self._refuse(TransactionError(f"{who} was never given out: init the id again"))
        if epoch > EPOCH_LAST:
            self._refuse(TransactionError(f"{who} has no epochs left: init the id again"))
        return known

    # --- stages -----------------------------------------------------------------------------------
    def begin_stage(
        self,
        now: float,
        transactional_id: str,
        epoch: int,
        new_producer_id: int,
        stage: str,
        attempt: str = "",
    ) -> Decision[ProducerIdentity]:
        return self._stages.begin(now, transactional_id, epoch, new_producer_id, stage, attempt)

    def end_stages(
        self, now: float, transactional_id: str, stages: Sequence[str]
    ) -> Decision[None]:
        return self._stages.end_named(transactional_id, stages)

    def commit_stages(
        self,
        now: float,
        transactional_id: str,
        epoch: int,
        stages: Sequence[str],
        commit: bool,
        is_last: bool = False,
    ) -> Decision[StagesDecided]:
        return self._stages.decide(now, transactional_id, epoch, stages, commit, is_last)

    def ids(self) -> Ids:
        """All ids there are."""
        return self._state.ids

    # --- time -------------------------------------------------------------------------------------
    def tick(self, now: float) -> Decision[None]:
        """Decides the transactions that timed out, `tick_max` or about `tick_bytes_max` at once:
        `deadline` tells whether there is more."""
        records: list[Record] = []
        size = 0
        for key in self._state.due(now, self.doubt):
            if records:
                size += len(records[-1].value or b"")
            if size >= self._limits.tick_bytes_max:
                break
            value = self._state.get(key)
            if isinstance(value, Stage):
                records.append(self._stages.swept(key, value))
            elif isinstance(value, Transactional) and value.opened_at is not None:
                ended = self._ended(value, now, commit=False, why=rec.TIMEOUT)
                records.append(rec.record_of(key, ended))
            else:
                self.counts["ids_expired"] += 1
                records.append(rec.record_of(key, None))
        return Decision(tuple(records), None, durable=bool(records))

    def deadline(self) -> float | None:
        """When `tick` is wanted next; it may be in the past."""
        return self._state.deadline(self.doubt)

    # --- markers ----------------------------------------------------------------------------------
    def unmarked(self) -> Iterator[Marking]:
        """Markers to send, also of decisions that are not acknowledged yet. After `wrote` there may
        be others: in each partition the markers of an id go out one after the other."""
        return self._state.unmarked()

    def is_marking(self, transactional_id: str) -> bool:
        known = self._state.transactional.get(transactional_id)
        return known is not None and self._state.is_marking(known)

    def wrote(self, producer_id: int, epoch: int, place: Place) -> None:
        """This partition has its marker, which a power cut may still take back. Not a decision: who
        loads the log does not know it and has the marker sent again."""
        self._state.wrote(producer_id, epoch, place)

    def marked(self, producer_id: int, epoch: int, partitions: Iterable[Place]) -> Decision[None]:
        """These partitions have their marker on the device, or are deleted. Nobody waits for the
        record: without it the markers are sent again, which changes nothing."""
        gone = frozenset(partitions)
        key = self._state.owner(producer_id)
        if key is None or not gone:
            return _NOTHING
        value = self._state.get(key)
        if isinstance(value, Stage):
            return self._stages.marked(key, value, epoch, gone)
        if not isinstance(value, Transactional):
            return _NOTHING
        endings = []
        for ending in value.endings:
            if (ending.producer_id, ending.epoch) == (producer_id, epoch):
                places = rec.pack(rec.unpack(ending.places) - gone)
                ending = Ending(producer_id, epoch, ending.commit, places)
            if ending.places:
                endings.append(ending)
        if tuple(endings) == value.endings:
            return _NOTHING
        value = Transactional(
            *(value.producer_id, value.epoch, value.timeout, value.used_at),
            *(value.opened_at, value.places, tuple(endings), value.last),
        )
        return Decision((rec.record_of(key, value),), None)

    # --- questions --------------------------------------------------------------------------------
    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Returns whether this transaction may still be open in a partition: it is open, or its
        marker is on its way. Any other is hung, and the shell aborts it there."""
        if (key := self._state.owner(producer_id)) is None:
            return False
        value = self._state.get(key)
        if isinstance(value, Stage):
            return epoch == value.producer_epoch
        if not isinstance(value, Transactional):
            return False
        if value.opened_at is not None and (value.producer_id, value.epoch) == (producer_id, epoch):
            return True
        return any((e.producer_id, e.epoch) == (producer_id, epoch) for e in value.endings)

    def listed(self, transactional_id: str) -> Listed | None:
        """The state of that id; None: there is none."""
        known = self._state.transactional.get(transactional_id)
        if known is not None:
            return _listed(transactional_id, known, self._state.is_marking(known))
        is_there = transactional_id in self._state.ids
        return self._stages.listed(transactional_id) if is_there else None

    def state(self) -> dict[tuple[str, ...], object]:
        """Everything the records said, by key: what is the same after a replay."""
        return dict(self._state.values())

    # --- refusals ---------------------------------------------------------------------------------
    def _refuse(self, error: TransactionError) -> NoReturn:
        fenced = isinstance(error, ProducerFencedError)
        self.counts["fenced" if fenced else "refused"] += 1
        raise error

    def _limit(self, message: str) -> NoReturn:
        self.counts["limited"] += 1
        raise ResourceLimitError(message)


def _record(transactional_id: str, value: Transactional) -> Record:
    return rec.record_of((rec.TRANSACTION, transactional_id), value)


def _listed(name: str, known: Transactional, is_marking: bool) -> Listed:
    state = "ready"
    if known.opened_at is not None:
        state = "open"
    elif is_marking:
        state = "committing" if known.endings[0].commit else "aborting"
    all_places = [known.places]
    if is_marking:
        all_places += [each.places for each in known.endings]
    partitions = sum(map(rec.count_of, all_places))
    topics = rec.topics_of(all_places)
    return Listed(name, state, known.producer_id, known.epoch, partitions, known.opened_at, topics)
