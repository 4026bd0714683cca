"""What becomes of a partition when brokers come and go. Pure functions of its record.

| what happens | ISR | leader |
|---|---|---|
| a broker is fenced or leaves | without it, if somebody of it is there | another of it, or nobody |
| a broker comes back and lost data (rule 23) | without it, in any case | the same |
| a broker may lead again | the same | if it is in the ISR, and nobody leads or an offline log: it |
| a replica's log goes offline (decision 0046) | without it, if somebody of it is there | likewise |
| that log is open again | as it is | if nobody leads and it is in the ISR: it |
| the leader asks for another ISR | that one | as it is |
| all of a reassignment's target are in it, and there | those of the target | one of the target |
| an unclean election, and nobody leads | the one who leads | one who is there |

Each change makes the partition epoch one more, and each election the leader epoch. While nobody of
the ISR is there it stays as it is: each of them has all that counts, and may lead when it is back.
An offline log elects nobody to it. Its broker goes on leading only while nobody else of the ISR is
there: then it can still be read, and others that catch up from it join the ISR, which it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from penstock.cluster.controller.records import Partition

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
    partition: Partition, broker: int, may_lead: MayLead, *, comes_last: bool = False
) -> Partition | None:
    """It came back without all that it had, and is in no ISR until it has caught up. `comes_last`:
    it has nothing at all, or what an older copy has, and leads by an unclean election only where
    nobody else is there."""
    others = [member for member in partition.isr if member != broker]
    last = partition.last_isr
    if comes_last:
        order = (*partition.isr, *last, *partition.replicas)
        last = (*dict.fromkeys(member for member in order if member != broker), broker)
    elif broker in partition.isr and not any(map(may_lead, others)):
        last = (*dict.fromkeys((broker, *last)),)  # nobody goes on, and leaves it behind
    if broker not in partition.isr and last == partition.last_isr:
        return None
    return changed(partition, may_lead, isr=others, last_isr=last)


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


def unclean(partition: Partition, may_lead: MayLead) -> Partition | None:
    """Let somebody lead who may miss what counted, where nobody leads, or one whose log is offline:
    those of the last ISR first."""
    if partition.leader is not None and partition.leader not in partition.offline:
        return None
    order = (*partition.isr, *partition.last_isr, *partition.replicas)
    ill = partition.offline
    there = (broker for broker in order if broker in partition.replicas and broker not in ill)
    chosen = next((broker for broker in there if may_lead(broker)), None)
    if chosen is None:
        return None
    return progressed(changed(partition, may_lead, isr=(chosen,), last_isr=()), may_lead)


def reassigned(
    partition: Partition, target: tuple[int, ...], may_lead: MayLead
) -> Partition | None:
    """These are to be its replicas: they join, catch up, and then the others leave. The present
    ones as a target take an unfinished reassignment back."""
    if target == (partition.target or partition.replicas):
        return None
    # Who is new has nothing yet, and comes last, also where an unclean election looks for somebody.
    both = (*partition.replicas, *(broker for broker in target if broker not in partition.replicas))
    wanted = changed(partition, may_lead, isr=partition.isr, replicas=both, target=target)
    return progressed(wanted, may_lead)


def progressed(partition: Partition, may_lead: MayLead) -> Partition:
    """A reassignment whose target is in sync has come to its end, once each of it could lead: the
    ISR of those who all went down at once names some who may never be back."""
    target = partition.target
    fit = {b for b in partition.isr if b not in partition.offline and may_lead(b)}
    if not target or not fit.issuperset(target):
        return partition
    done = changed(
        partition, lambda b: b in target and may_lead(b),
        isr=[member for member in partition.isr if member in target], replicas=target, target=(),
    )  # fmt: skip
    return replace(done, partition_epoch=partition.partition_epoch)  # one change with the ISR's
