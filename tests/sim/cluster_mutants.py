"""A cluster with one fault each, which the world has to find: what proves that it looks."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace
from sim.cluster_broker import Broker

from penstock.cluster.controller import Controller, Image
from penstock.cluster.controller import elections as el
from penstock.cluster.controller.image import Place
from penstock.cluster.controller.records import Partition
from penstock.cluster.replica import LogEnds, ReplicaFollower, ReplicaLeader


class Mutant(NamedTuple):
    """What is wrong, and what to put in the place of what."""

    what: str
    where: Any
    name: str
    instead: Any


def truncates_to_the_high_watermark() -> Mutant:
    """What followers did before KIP-101."""
    original = Broker.heard_metadata

    def heard(self: Broker, places: Any) -> None:
        roles = {place: it.role for place, it in self.replicas.items()}
        original(self, places)
        for place, it in self.replicas.items():
            if isinstance(it.role, ReplicaFollower) and it.role is not roles.get(place):
                it.log.truncate(it.log.high_watermark)
                del self.logs[place].entries[it.log.log_end :]

    return Mutant("truncation to the high watermark", Broker, "heard_metadata", heard)


def _shrinks(self: ReplicaLeader, isr: tuple[int, ...]) -> None:
    self.isr = isr


def _looks_only_at_the_isr(self: ReplicaLeader) -> frozenset[int]:
    return frozenset(self.isr)


def _counts_itself_alone(self: ReplicaLeader) -> None:
    self._log.high_watermark = self._log.log_end


def _elects_anybody(partition: Partition, may_lead: el.MayLead, **others: Any) -> Partition:
    isr = set(others.pop("isr", None) or partition.isr)
    replicas = others.pop("replicas", None) or partition.replicas
    leader = partition.leader
    if leader is None or not may_lead(leader):
        leader = next((b for b in reversed(replicas) if may_lead(b)), None)
    isr |= {leader} - {None}
    return replace(
        partition, replicas=replicas, isr=tuple(b for b in replicas if b in isr), leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1, **others,
    )  # fmt: skip


def _always(*_: Any) -> bool:
    return True


def _prefers_anybody(partition: Partition, may_lead: el.MayLead) -> Partition | None:
    first = partition.replicas[0]
    if partition.leader == first or not may_lead(first):
        return None
    return replace(
        partition, leader=first, leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )  # fmt: skip


def _ends_at_once(partition: Partition, may_lead: el.MayLead) -> Partition:
    target = partition.target
    if not target:
        return partition
    return el.changed(partition, may_lead, isr=target, replicas=target, target=())


def _trusts(
    partition: Partition, broker: int, may_lead: el.MayLead, *, is_blank: bool = False
) -> Partition | None:
    return None


def _goes_unnoticed(self: Broker, place: Place) -> None:
    self.crash()
    self.logs.pop(place, None)


def _stays(*_: Any, **__: Any) -> None:
    return None


def _agrees(self: LogEnds, epoch: int) -> tuple[int, int]:
    return epoch, 1 << 60


def registers_as_closed() -> Mutant:
    """Whatever its folder counted."""
    original = Broker.on_start

    def on_start(self: Broker) -> None:
        self.was_closed = True
        original(self)

    return Mutant("producer ids of a block that was counted further", Broker, "on_start", on_start)


def trusts_older_copies() -> Mutant:
    """Whatever they missed since they were made."""
    original = Controller.register

    def register(self: Controller, *arguments: Any, **others: Any) -> Any:
        return original(self, *arguments, **(others | {"after": None}))

    return Mutant("trust in who is started on an older copy", Controller, "register", register)


def _waits_for_nobody(
    partition: Partition, may_lead: el.MayLead, ends: Any, clock: float
) -> Partition | None:
    if partition.leader is not None or partition.isr:
        return None
    there = [broker for broker in partition.last_isr if broker in ends and may_lead(broker)]
    return el._unclean(partition, there, may_lead, ends, clock) if there else None


MUTANTS = (
    truncates_to_the_high_watermark(),
    registers_as_closed(),
    trusts_older_copies(),
    Mutant("an ISR that shrinks without the controller", ReplicaLeader, "_want", _shrinks),
    Mutant(
        "a high watermark that forgets the ISR that was asked for", ReplicaLeader, "maximal_isr",
        property(_looks_only_at_the_isr),
    ),
    Mutant("a high watermark without followers", ReplicaLeader, "_advance", _counts_itself_alone),
    Mutant("elections from outside the ISR", el, "changed", _elects_anybody),
    Mutant("first replicas that lead out of sync", el, "preferred", _prefers_anybody),
    Mutant("reassignments that end before anybody caught up", el, "progressed", _ends_at_once),
    Mutant("assignments of earlier lives", Image, "is_current", _always),
    Mutant("trust in who lost power", el, "distrusted", _trusts),
    Mutant("the first one leads that is back without all it had", el, "recovered",
           _waits_for_nobody),
    Mutant("trust in who lost a folder", Broker, "folder_goes", _goes_unnoticed),
    Mutant("leaders that stay with their logs offline", el, "noted", _stays),
    Mutant("logs that are not compared by epochs", LogEnds, "end_of", _agrees),
    Mutant("records that count before they are synced", LogEnds, "stored",
           property(lambda self: self.log_end)),
    Mutant("answers that are taken late and twice", ReplicaFollower, "_is_due", _always),
    Mutant("followers in the ISR before all that counts is there", ReplicaLeader, "_fits", _always),
)  # fmt: skip
