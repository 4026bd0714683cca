"""Elects leaders and changes ISRs when brokers come and go. Pure functions of a partition's record.

| what happens | ISR | leader |
|---|---|---|
| a broker is fenced or leaves | without it, if somebody of it is there | another of it, or nobody |
| a broker comes back and lost data (rule 23) | without it, in any case | the same |
| a broker may lead again | the same | if it is in the ISR, and nobody leads or an offline log: it |
| a replica's log goes offline (decision 0046) | without it, if somebody of it is there | likewise |
| that log is open again | as it is | if nobody leads and it is in the ISR: it |
| the leader asks for another ISR | that one | as it is |
| all of a reassignment's target are in it, and there | those of the target | one of the target |
| nobody is in it, and all of the last ISR are back | the one who leads | the one with most |
| an unclean election, and nobody leads | the one who leads | the one with most that is there |
| its leader is drained | the same | another of the ISR that could lead and is not drained |

Each change raises the partition epoch by one, and each election the leader epoch. While nobody of
the ISR is there it stays as it is. Each member has all committed records, and may lead when it is
back.

A broker that leaves the ISR by the controller's decision belongs to the *last ISR*. It does so
until the leader asks for another ISR or is heard for a while. Brokers that lose power at once are
missed one by one, and register one by one. Each of them may have records that the others lost.
Where all have registered and none could be trusted, the one with the highest leader epoch and then
the longest log leads. An operator could do no more, and a note names the records that may be
missing (`UncleanRecovery`). A broker without any data (`blank`) does not count as back: then the
operator decides to go on without it.

A broker that is *drained* leads nothing that another in-sync replica could lead. It stays in the
ISR, and leads what nobody else could: a drain loses no record, and no partition its leader.

A replica with an offline log is never elected. Its broker keeps leading only while nobody else of
the ISR is there: then readers can still read it. Others that catch up from it join the ISR, which
it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from penstock.cluster.controller.records import Partition, UncleanRecovery
from penstock.cluster.replica.messages import LogEnd

MayLead = Callable[[int], bool]


def changed(
    partition: Partition,
    may_lead: MayLead,
    *,
    isr: Iterable[int] | None = None,
    replicas: tuple[int, ...] | None = None,
    **others: tuple[int, ...],
) -> Partition:
    """The partition with these, and a leader of its ISR, the same one where that is possible."""
    among = set(partition.isr if isr is None else isr)
    replicas = partition.replicas if replicas is None else replicas
    ill = others.pop("offline", partition.offline)
    last = others.pop("last_isr", (*partition.isr, *partition.last_isr))
    blank = others.pop("blank", partition.blank)
    offline = tuple(broker for broker in replicas if broker in ill)
    fit = {broker for broker in among if broker not in offline and may_lead(broker)}
    if fit:
        among.difference_update(offline)
    order = [broker for broker in replicas if broker in among]
    leader = partition.leader
    stays = leader in fit or (not fit and leader in among and may_lead(leader))
    if not stays:
        leader = next((broker for broker in order if broker in fit), None)
    return replace(
        partition,
        replicas=replicas,
        isr=tuple(order),
        leader=leader,
        offline=offline,
        last_isr=tuple(b for b in dict.fromkeys(last) if b in replicas and b not in among),
        blank=tuple(broker for broker in replicas if broker in blank),
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
        **others,
    )


def without(partition: Partition, broker: int, may_lead: MayLead) -> Partition | None:
    """It is fenced, or on its way out; None: that changes nothing here."""
    others = [member for member in partition.isr if member != broker]
    if not any(may_lead(member) and member not in partition.offline for member in others):
        others = list(partition.isr)
    if partition.leader != broker and len(others) == len(partition.isr):
        return None
    return changed(partition, lambda b: b != broker and may_lead(b), isr=others)


def distrusted(
    partition: Partition, broker: int, may_lead: MayLead, *, is_blank: bool = False
) -> Partition | None:
    """It came back without all that it had, and is in no ISR until it has caught up. `is_blank`: it
    has nothing at all, or what an older copy has."""
    blank = partition.blank
    if is_blank and broker not in blank:
        blank = (*blank, broker)
    if broker not in partition.isr and blank == partition.blank:
        return None
    others = [member for member in partition.isr if member != broker]
    return changed(partition, may_lead, isr=others, blank=blank)


def revived(partition: Partition, broker: int, may_lead: MayLead) -> Partition | None:
    """It may lead again."""
    if broker not in partition.isr or broker in partition.offline or not may_lead(broker):
        return None
    is_led = partition.leader is not None and partition.leader not in partition.offline
    if is_led and not partition.target:
        return None
    return progressed(changed(partition, may_lead), may_lead)


def noted(
    partition: Partition, broker: int, may_lead: MayLead, *, is_offline: bool
) -> Partition | None:
    """Its log is offline, or open again."""
    if broker not in partition.replicas or is_offline == (broker in partition.offline):
        return None
    if is_offline:
        return changed(partition, may_lead, offline=(*partition.offline, broker))
    left = tuple(member for member in partition.offline if member != broker)
    return progressed(changed(partition, may_lead, offline=left), may_lead)


def preferred(partition: Partition, may_lead: MayLead) -> Partition | None:
    """Have the first replica lead, if it can."""
    first = partition.replicas[0]
    if partition.leader == first or first not in partition.isr or not may_lead(first):
        return None
    if first in partition.offline:
        return None
    return replace(
        partition,
        leader=first,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def successors(
    partition: Partition, may_lead: MayLead, is_drained: Callable[[int], bool]
) -> list[int]:
    """Returns the brokers that could lead in place of a drained leader, the first replica first."""
    return [
        broker
        for broker in partition.replicas
        if broker in partition.isr
        and broker not in partition.offline
        and may_lead(broker)
        and not is_drained(broker)
    ]


def relieved(
    before: Partition, now: Partition, may_lead: MayLead, is_drained: Callable[[int], bool]
) -> Partition | None:
    """Have another one lead instead of one that is drained; None: it is not, or nobody could.
    `before`: as it was before this change, of which this is a part."""
    if now.leader is None or not is_drained(now.leader):
        return None
    fit = successors(now, may_lead, is_drained)
    if not fit:
        return None
    return replace(
        now,
        leader=fit[0],
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )


def recovered(
    partition: Partition, may_lead: MayLead, ends: Mapping[int, LogEnd], clock: float
) -> Partition | None:
    """Let the one with most lead, once all of the last ISR are back and none of them is clean.
    `ends`: what each replica has that has told."""
    if partition.leader is not None or partition.isr or not partition.last_isr:
        return None
    out = {*partition.offline, *partition.blank}
    if not all(b in ends and may_lead(b) and b not in out for b in partition.last_isr):
        return None
    order = [broker for broker in partition.replicas if broker in partition.last_isr]
    return _unclean(partition, order, may_lead, ends, clock)


def unclean(
    partition: Partition, may_lead: MayLead, ends: Mapping[int, LogEnd], clock: float
) -> Partition | None:
    """Elects a leader that may lack committed records, on an operator's request: of the present
    replicas the one with most. Changes nothing where a leader with an online log leads."""
    if partition.leader is not None and partition.leader not in partition.offline:
        return None
    order = dict.fromkeys((*partition.isr, *partition.last_isr, *partition.replicas))
    fit = [broker for broker in order if broker not in partition.offline and may_lead(broker)]
    return _unclean(partition, fit, may_lead, ends, clock) if fit else None


def _unclean(
    partition: Partition,
    candidates: Iterable[int],
    may_lead: MayLead,
    ends: Mapping[int, LogEnd],
    clock: float,
) -> Partition:
    """Elects the candidate with the highest leader epoch and then the longest log, as far as they
    have told; else the first. A blank one comes behind all others."""

    def worth(broker: int) -> tuple[bool, int, int]:
        end = ends.get(broker, LogEnd(0, None, -1))
        epoch = -1 if end.last_epoch is None else end.last_epoch
        return broker not in partition.blank, epoch, end.log_end

    chosen = max(candidates, key=worth)
    made = changed(partition, may_lead, isr=(chosen,), last_isr=(), blank=())
    known = max((max(it.log_end, it.high_watermark) for it in ends.values()), default=0)
    first = ends[chosen].log_end if chosen in ends else None
    note = UncleanRecovery(chosen, made.leader_epoch, first, max(known, first or 0), clock)
    return progressed(replace(made, unclean=note), may_lead)


def reassigned(
    partition: Partition, target: tuple[int, ...], may_lead: MayLead
) -> Partition | None:
    """These are to be its replicas: they join, catch up, and then the others leave. The present
    ones as a target take an unfinished reassignment back."""
    if target == (partition.target or partition.replicas):
        return None
    # A new replica has nothing yet. It comes last, also as a candidate of an unclean election.
    both = (*partition.replicas, *(broker for broker in target if broker not in partition.replicas))
    wanted = changed(partition, may_lead, isr=partition.isr, replicas=both, target=target)
    return progressed(wanted, may_lead)


def progressed(partition: Partition, may_lead: MayLead) -> Partition:
    """Completes a reassignment whose target is in sync, once each of its members could lead. After
    a power cut of all brokers the ISR names some that may never be back."""
    target = partition.target
    fit = {b for b in partition.isr if b not in partition.offline and may_lead(b)}
    if not target or not fit.issuperset(target):
        return partition
    done = changed(
        partition, lambda b: b in target and may_lead(b),
        isr=[member for member in partition.isr if member in target], replicas=target, target=(),
    )  # fmt: skip
    return replace(done, partition_epoch=partition.partition_epoch)  # one change with the ISR's
