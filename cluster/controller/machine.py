"""The controller: the brokers of a cluster, and the leader and followers of each partition.

**Theory.** Its state is an `Image`, replayed from the log of the quorum. The broker that leads the
quorum is active. Its handlers decide records against an image that is ahead of the log by earlier
decisions, and the answer waits until the records are committed. If they never are, the shell throws
the machine away and makes it again from the log (`penstock.cluster.decisions`).

A broker registers with each start and gets a broker epoch, which fences late actions of its last
life. It is fenced until it says by heartbeats that it has replayed the log up to its own
registration. It is fenced again when nothing is heard for `session_timeout`. A fenced one leads
nothing. Only heartbeats are not in the log: a new active controller gives every broker a whole
session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.cluster.controller import elections as el
from penstock.cluster.controller import records as rec
from penstock.cluster.controller.balance import MOVES_MAX, Balancer
from penstock.cluster.controller.draft import Draft
from penstock.cluster.controller.image import Image, Place
from penstock.cluster.controller.placement import place
from penstock.cluster.controller.reassigning import targets
from penstock.cluster.controller.records import BrokerRegistration, Partition, Topic
from penstock.cluster.controller.recovery import LeaderRecovery
from penstock.cluster.decisions import Decision, Record
from penstock.cluster.replica.messages import IsrChange, IsrChanged, LogEnd, ReplicaRefusal
from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    PenstockTimeout,
    ResourceLimitError,
    StaleBrokerEpochError,
    TopicExistsError,
)

_NOTHING: Final = Decision((), None)


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The controller's settings.

    Args:
        session_timeout: seconds without a heartbeat after which a broker is fenced.
        partitions_max: of all topics together.
        brokers_max: registered at a time.
        balance_interval: seconds between two searches for preferred leaders; 0: never.
    """

    session_timeout: float = 2.0
    partitions_max: int = 100_000
    brokers_max: int = 250
    balance_interval: float = 300.0


class Registered(NamedTuple):
    """`ask_again`: nothing has changed; that is the epoch of the life that is known."""

    broker_epoch: int
    id_block: int
    ask_again: bool = False


class Heard(NamedTuple):
    """`may_stop`: a broker that is leaving leads nothing any more, and is in no ISR with others."""

    is_fenced: bool
    may_stop: bool


class Controller:
    """Handlers decide; `replay` alone changes the image."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig()
        self.image = Image()
        self.counts: Counter[str] = Counter()
        self._heard_at: dict[int, float] = {}
        self._balancer = Balancer(self.config.balance_interval)
        self._recovery = LeaderRecovery(self.counts)
        self._clock = 0.0

    def replay(self, record: Record) -> Place | None:
        """Make it so; which partition that is about, if it is about one."""
        place = self.image.replay(record)
        if place is not None:
            self._recovery.changed(place, self.image.partitions.get(place))
        return place

    def lead(self, now: float, clock: float = 0.0) -> None:
        """This broker's controller is active from now on, or was held up and heard nobody. `clock`:
        seconds since 1970."""
        self._clock = clock
        self._heard_at = dict.fromkeys(self.image.brokers, now)
        self._balancer.unsettle()
        self._recovery.begin(self.image)

    # --- brokers ---
    def register(
        self,
        now: float,
        broker: int,
        incarnation: bytes,
        folder: bytes,
        endpoints: tuple[str, ...],
        rack: str = "",
        *,
        was_clean: bool,
        after: int | None = None,
        lost: Iterable[Place] = (),
        offline: Iterable[Place] = (),
        keeps_count: bool = False,
        instead_of: int | None = None,
    ) -> Decision[Registered]:
        """Registers a broker that starts. `was_clean`: its logs still have all that they ever told
        others; after a power cut only synced records are sure. `after`: the epoch of the last life
        that its folder knows of (0: none). One that misses a life in which it spoke to others is an
        older copy, and lacks later synced records too (KIP-966 has the idea). `lost`: logs that
        were there in an earlier life and are gone. `offline`: logs that take nothing.
        `keeps_count`: the folder was closed cleanly, and continues its count from its last run. Any
        other folder may be a copy that was made while a broker ran. That one, a new one and an
        older one give producer ids of a new block, regardless of their count. `instead_of`: the
        epoch of the life that this one follows, as far as it knows. If the controller knows another
        one, it has the broker ask again and name that. So a late message of a past life changes
        nothing.

        Raises `AttachRefusedError` where another one with the same id, of another folder, is alive;
        `PenstockTimeout` where a later life of it is; `ResourceLimitError`.
        """
        known = self.image.brokers.get(broker)
        if known is None and len(self.image.brokers) >= self.config.brokers_max:
            raise ResourceLimitError(f"there are {self.config.brokers_max} brokers (brokers_max)")
        if known is not None:
            if known.incarnation == incarnation:  # a repetition
                self._heard_at[broker] = now
                return Decision((), Registered(known.epoch, known.id_block))
            if known.folder != folder and not known.is_fenced:
                raise AttachRefusedError(
                    f"broker {broker} is up at {', '.join(known.endpoints)} with another data "
                    "folder: give this one another --node-id"
                )
            if after is not None and after < known.kept and not known.is_fenced:
                # Asked by a life that is over, and heard late; an older copy asks again.
                raise PenstockTimeout(
                    f"broker {broker} is up with epoch {known.epoch}, of which the folder that "
                    "registers knows nothing: it waits until that one is down"
                )
            if instead_of is not None and instead_of != known.epoch:
                self.counts["registrations_asked_again"] += 1
                return Decision((), Registered(known.epoch, 0, ask_again=True))
        draft = Draft(self.image)
        epoch = draft.count(rec.BROKER_EPOCHS)
        is_other = known is not None and known.folder != folder
        if known is not None and after is not None:
            is_other = is_other or after < known.kept
        kept = 0 if known is None else epoch if is_other else known.kept
        # A folder that does not know of the registration before may not be the one that got its.
        keeps_count = keeps_count and known is not None and after in (None, known.epoch)
        keeps_block = known is not None and known.id_block and keeps_count and not is_other
        id_block = known.id_block if known is not None and keeps_block else _new_block(draft)
        draft.put_broker(
            broker,
            BrokerRegistration(
                epoch, incarnation, folder, endpoints, rack, kept=kept, id_block=id_block
            ),
        )
        gone, ill = set(lost), set(offline)
        for at in sorted(self.image.places.get(broker, ())):
            is_trusted = was_clean or self.image.topics[at[0]].is_synced
            if is_other or not is_trusted or at in gone:
                draft.change(at, partial(
                    el.distrusted, broker=broker, may_lead=draft.may_lead,
                    is_blank=is_other or at in gone,
                ))  # fmt: skip
            self._note(draft, broker, at, is_offline=at in ill)
            # Also a member that stays as the last one does not lead until its new life is up.
            draft.change(at, lambda it: el.without(it, broker, draft.may_lead))
        self._heard_at[broker] = now
        self.counts["registrations"] += 1
        self.counts["unclean_registrations"] += not was_clean
        self.counts["logs_lost"] += len(gone)
        return Decision(draft.records(), Registered(epoch, id_block))

    def heartbeat(
        self, now: float, broker: int, epoch: int, *, is_current: bool, is_leaving: bool
    ) -> Decision[Heard]:
        """It is there; `is_current`: it has replayed its own registration. Raises
        `StaleBrokerEpochError`."""
        known = self._broker(broker, epoch)
        self._heard_at[broker] = now
        draft = Draft(self.image)
        if is_leaving and not known.is_leaving:
            known = replace(known, is_leaving=True)
            draft.put_broker(broker, known)
            draft.each(broker, lambda it: el.without(it, broker, draft.may_lead))
            self.counts["leavings"] += 1
        elif known.is_fenced and is_current and not is_leaving:
            known = replace(known, is_fenced=False, kept=epoch)
            draft.put_broker(broker, known)
            draft.each(broker, lambda it: el.revived(it, broker, draft.may_lead))
            self.counts["unfenced"] += 1
        held = [draft.partition(at) for at in self.image.places.get(broker, ())]
        may_stop = known.is_leaving and all(it.leader != broker for it in held)
        return Decision(draft.records(), Heard(known.is_fenced, may_stop))

    def logs(
        self, broker: int, epoch: int, offline: Iterable[Place] = (), online: Iterable[Place] = ()
    ) -> Decision[None]:
        """Logs of that broker take nothing any more (`offline`), or are open again (`online`).
        Raises `StaleBrokerEpochError`."""
        self._broker(broker, epoch)
        draft = Draft(self.image)
        held = self.image.places.get(broker, set())
        for places, is_offline in ((offline, True), (online, False)):
            for at in sorted(held.intersection(places)):
                self._note(draft, broker, at, is_offline=is_offline)
        return Decision(draft.records(), None)

    def _note(self, draft: Draft, broker: int, at: Place, *, is_offline: bool) -> None:
        is_news = draft.change(
            at, lambda it: el.noted(it, broker, draft.may_lead, is_offline=is_offline)
        )
        self.counts["logs_offline" if is_offline else "logs_online"] += is_news

    def log_ends(
        self, broker: int, epoch: int, ends: Iterable[tuple[Place, LogEnd]]
    ) -> Decision[None]:
        """Takes the log ends of that broker's replicas, for partitions that nobody leads. Where all
        of the last ISR are back and none is clean, the one with most leads. Raises
        `StaleBrokerEpochError`."""
        self._broker(broker, epoch)
        self._recovery.tell(self.image, broker, epoch, ends)
        draft = Draft(self.image)
        self._recovery.recover(self.image, draft, self._clock)
        return Decision(draft.records(), None)

    def gone(self, broker: int) -> None:
        """Its host says that nothing listens for it any more: it is not waited for. Unless it is
        heard again before the next tick."""
        if broker in self._heard_at:
            self._heard_at[broker] = float("-inf")

    def tick(self, now: float, clock: float = 0.0) -> Decision[None]:
        """Fence who is silent; have partitions go on that lost all who could be trusted. `clock`:
        seconds since 1970."""
        self._clock = clock
        draft = Draft(self.image)
        self._fence_silent(now, draft)
        self._recovery.recover(self.image, draft, self._clock)
        self._recovery.settle(now, draft, self._heard_at, self.config.session_timeout)
        self._relieve(draft)
        return Decision(draft.records(), None)

    def _fence_silent(self, now: float, draft: Draft) -> None:
        silent = [
            broker
            for broker, known in self.image.brokers.items()
            if not known.is_fenced
            and now - self._heard_at.setdefault(broker, now) > self.config.session_timeout
        ]
        for broker in silent:
            self.counts["fenced"] += 1
            draft.put_broker(broker, replace(self.image.brokers[broker], is_fenced=True))
        for broker in silent:
            draft.each(broker, lambda it, b=broker: el.without(it, b, draft.may_lead))  # type: ignore[misc]

    # --- maintenance ---
    def drain(
        self, broker: int, *, undo: bool = False, before: int | None = None
    ) -> Decision[None]:
        """Have other in-sync replicas lead what it leads, `MOVES_MAX` partitions at a time, and let
        it lead nothing that they could until this is undone. `before`: undo only what was asked
        before it registered with this epoch. Raises `ConfigError`."""
        known = self.image.brokers.get(broker)
        if known is None:
            raise ConfigError(f"there is no broker {broker}")
        since = self.image.drained_in(broker)
        if undo and (since is None or (before is not None and since >= before)):
            return _NOTHING
        if not undo and since == known.epoch:
            return _NOTHING
        draft = Draft(self.image)
        others = (b for b in self.image.brokers if b != broker)
        if not undo and since is None and not any(map(draft.may_be_given, others)):
            raise ConfigError(
                f"broker {broker} cannot be drained: no other broker is up and not drained itself, "
                "so nobody could take over what it leads"
            )
        draft.drain(broker, None if undo else known.epoch)
        self.counts["undrained" if undo else "drained"] += 1
        self._relieve(draft)
        return Decision(draft.records(), None)

    def _relieve(self, draft: Draft) -> None:
        """Give away what drained brokers lead, some at a time."""
        moved = 0
        for broker in self.image.brokers:
            if not draft.is_drained(broker):
                continue
            places = self.image.places.get(broker, ())
            for at in sorted(at for at in places if draft.partition(at).leader == broker):
                it = draft.partition(at)
                now = draft.relieved(at, it)
                if now is not it:
                    draft.put(at, now)
                    moved += 1
                    self.counts["relieved"] += 1
                if moved == MOVES_MAX:
                    return

    def deadline(self) -> float:
        """When `tick` is due."""
        heard = [
            self._heard_at.get(broker, float("-inf"))
            for broker, known in self.image.brokers.items()
            if not known.is_fenced
        ]
        return min(heard, default=float("inf")) + self.config.session_timeout

    def forget(self, broker: int) -> Decision[None]:
        """Take a broker off the list. Raises `ConfigError` while it is up or has replicas."""
        known = self.image.brokers.get(broker)
        held = self.image.places.get(broker)
        if known is None or not known.is_fenced or held:
            raise ConfigError(
                f"broker {broker} cannot be removed: "
                + ("nobody knows it" if known is None else f"it has {len(held or ())} replicas")
                + "; stop it, and reassign its partitions first"
            )
        draft = Draft(self.image)
        draft.add(rec.record(rec.BROKER, broker, value=None))
        if self.image.is_drained(broker):
            draft.drain(broker, None)
        return Decision(draft.records(), None)

    # --- topics ---
    def create_topic(
        self,
        name: str,
        topic_id: bytes,
        partitions: int,
        replication_factor: int,
        min_insync: int,
        config: bytes,
        *,
        is_synced: bool = False,
    ) -> Decision[bytes]:
        """Raises `TopicExistsError`, `ConfigError`, `ResourceLimitError`. A topic that has that id
        already is the one that was asked for: the asker did not hear the answer."""
        if self.image.ids.get(name) == topic_id:
            return Decision((), topic_id)
        if name in self.image.ids:
            raise TopicExistsError(f"there is a topic {name!r} already")
        if not 1 <= min_insync <= replication_factor:
            raise ConfigError(
                f"min_insync_replicas={min_insync} of {name!r} must be from 1 to its "
                f"replication_factor={replication_factor}"
            )
        draft = Draft(self.image)
        topic = Topic(name, partitions, min_insync, config, is_synced)
        draft.add(rec.record(rec.TOPIC, topic_id, value=topic))
        self._add_partitions(draft, topic_id, name, range(partitions), replication_factor)
        return Decision(draft.records(), topic_id)

    def add_partitions(self, name: str, total: int) -> Decision[None]:
        """Raises `UnknownTopicError`, `ConfigError`, `ResourceLimitError`."""
        topic_id, topic = self.image.topic(name)
        if total <= topic.partitions:
            raise ConfigError(
                f"{name!r} has {topic.partitions} partitions; {total} is not more, and partitions "
                "cannot be taken away"
            )
        factor = self.image.replication_factor(topic_id)
        draft = Draft(self.image)
        draft.add(rec.record(rec.TOPIC, topic_id, value=replace(topic, partitions=total)))
        self._add_partitions(draft, topic_id, name, range(topic.partitions, total), factor)
        return Decision(draft.records(), None)

    def configure_topic(
        self, name: str, min_insync: int, config: bytes, *, was: bytes | None = None
    ) -> Decision[None]:
        """Give it other settings; `was`: if it still has these. Raises `UnknownTopicError`,
        `ConfigError`."""
        topic_id, topic = self.image.topic(name)
        if config == topic.config and min_insync == topic.min_insync:
            return _NOTHING
        if was is not None and was != topic.config:
            raise ConfigError(f"somebody else changed {name!r} just now: look at it, and try again")
        factor = self.image.replication_factor(topic_id)
        if not 1 <= min_insync <= factor:
            raise ConfigError(
                f"min_insync_replicas={min_insync} of {name!r} must be from 1 to its "
                f"replication_factor={factor}"
            )
        draft = Draft(self.image)
        value = replace(topic, min_insync=min_insync, config=config)
        draft.add(rec.record(rec.TOPIC, topic_id, value=value))
        for at in self.image.partitions_of(topic_id):  # brokers hear of it by a new epoch
            it = self.image.partitions[at]
            draft.put(at, replace(it, partition_epoch=it.partition_epoch + 1))
        return Decision(draft.records(), None)

    def delete_topic(self, name: str) -> Decision[None]:
        """Raises `UnknownTopicError`."""
        topic_id, _ = self.image.topic(name)
        gone = [
            rec.record(rec.PARTITION, *at, value=None) for at in self.image.partitions_of(topic_id)
        ]
        return Decision((*gone, rec.record(rec.TOPIC, topic_id, value=None)), None)

    def _add_partitions(
        self, draft: Draft, topic_id: bytes, name: str, numbers: range, factor: int
    ) -> None:
        total = len(self.image.partitions) + len(numbers)
        if total > self.config.partitions_max:
            raise ResourceLimitError(
                f"{name!r} would bring {total} partitions; partitions_max is "
                f"{self.config.partitions_max}"
            )
        living = {b: it.rack for b, it in self.image.brokers.items() if self.image.may_lead(b)}
        first = topic_id[0] + numbers.start
        for number, replicas in zip(
            numbers, place(living, len(numbers), factor, first), strict=True
        ):
            leader = next((b for b in replicas if not self.image.is_drained(b)), replicas[0])
            draft.put((topic_id, number), Partition(replicas, replicas, leader))

    # --- partitions ---
    def change_isr(self, at: Place, asked: IsrChange) -> Decision[IsrChanged]:
        """A leader asks."""
        it = self.image.partitions.get(at)
        if it is None:
            return Decision((), IsrChanged(0, (), ReplicaRefusal.NOT_A_REPLICA))
        if it.leader != asked.leader or it.leader_epoch != asked.leader_epoch:
            return Decision((), IsrChanged(it.partition_epoch, it.isr, ReplicaRefusal.OLD_EPOCH))
        if it.partition_epoch != asked.partition_epoch:
            return Decision(
                (), IsrChanged(it.partition_epoch, it.isr, ReplicaRefusal.OLD_PARTITION_EPOCH)
            )
        draft = Draft(self.image)
        why = self._unfit(it, asked)
        if why is not None:
            self.counts["isr_refused"] += 1
            draft.put(at, replace(it, partition_epoch=it.partition_epoch + 1))
            return Decision(draft.records(), IsrChanged(it.partition_epoch + 1, it.isr, why))
        isr = [member for member, _ in asked.isr]
        # All copy from the leader:
        wanted = el.changed(it, draft.may_lead, isr=isr, last_isr=(), blank=())
        now = draft.relieved(at, el.progressed(wanted, draft.may_lead))
        draft.put(at, now)
        return Decision(draft.records(), IsrChanged(now.partition_epoch, now.isr))

    def _unfit(self, it: Partition, asked: IsrChange) -> ReplicaRefusal | None:
        for member, epoch in asked.isr:
            known = self.image.brokers.get(member)
            if member not in it.replicas or known is None:
                return ReplicaRefusal.NOT_A_REPLICA
            if known.epoch != epoch:
                return ReplicaRefusal.OLD_BROKER
            if not self.image.may_lead(member):
                return ReplicaRefusal.NOT_ELIGIBLE
            if member in it.offline and member not in it.isr:
                return ReplicaRefusal.NOT_ELIGIBLE
        return None if asked.leader in dict(asked.isr) else ReplicaRefusal.NOT_A_REPLICA

    def elect(self, places: Iterable[Place], *, is_unclean: bool = False) -> Decision[int]:
        """Lets preferred leaders lead. With `is_unclean`, lets any present replica lead where
        nobody leads: records that it does not have are lost. The answer is how many changed, of
        those that exist."""
        draft = Draft(self.image)
        known = [at for at in places if at in self.image.partitions]
        if is_unclean:
            count = self._recovery.elect(self.image, draft, known, self._clock)
        else:
            may = draft.may_be_given
            count = sum(draft.change(at, lambda it: el.preferred(it, may)) for at in known)
        self.counts["unclean_elections" if is_unclean else "preferred_elections"] += count
        return Decision(draft.records(), count)

    def balance(self, now: float) -> Decision[int]:
        """Have preferred replicas lead again, some at a time and when it is due: how many do."""
        places = self._balancer.due(now, self.image)
        if not places:
            return Decision((), 0)
        decision = self.elect(places)
        self.counts["balance_rounds"] += 1
        self.counts["balanced"] += decision.answer
        return decision

    def reassign(
        self, places: Iterable[Place], target: tuple[int, ...] = (), *, replication_factor: int = 0
    ) -> Decision[None]:
        """Move partitions to these brokers, or have so many replicas of each: who is new joins and
        catches up, and then the others leave. The present replicas as a target take an unfinished
        one back. Raises `ConfigError`, `UnknownTopicError`."""
        draft = Draft(self.image)
        for at, wanted in targets(self.image, places, target, replication_factor).items():
            draft.change(at, lambda it, to=wanted: el.reassigned(it, to, draft.may_lead))  # type: ignore[misc]
        return Decision(draft.records(), None)

    # --- the rest ---
    def set(
        self, kind: str, name: str, value: bytes | None, *, was: bytes | None = None,
        is_checked: bool = False,
    ) -> Decision[None]:  # fmt: skip
        """Access, quotas, limits: whatever the brokers share and the controller does not read.
        `is_checked`: only if it still is what it `was`. Raises `ConfigError`."""
        now = self.image.settings.get((kind, name))
        if is_checked and now == value:
            return _NOTHING
        if is_checked and now != was:
            raise ConfigError(f"somebody else changed {kind} just now: look at it, and try again")
        return Decision((rec.record(rec.SETTING, kind, name, value=value),), None)

    def coordinator_epoch(self) -> Decision[int]:
        """A number that is higher than all that were given before (rule 17)."""
        draft = Draft(self.image)
        epoch = draft.count(rec.COORDINATOR_EPOCHS)
        return Decision(draft.records(), epoch)

    def pages(self, count: int) -> Decision[int]:
        """The same for numbers of pages, which brokers take round by round."""
        draft = Draft(self.image)
        first = draft.count(rec.PAGES, count)
        return Decision(draft.records(), first)

    def _broker(self, broker: int, epoch: int) -> BrokerRegistration:
        known = self.image.brokers.get(broker)
        if known is None or known.epoch != epoch:
            raise StaleBrokerEpochError(
                f"broker {broker} is not registered with epoch {epoch}: "
                + ("register it" if known is None else f"its later life has {known.epoch}")
            )
        return known


def _new_block(draft: Draft) -> int:
    """Of producer ids. Raises `ResourceLimitError`."""
    block = draft.count(rec.PRODUCER_IDS)
    if block >= rec.ID_BLOCKS:
        raise ResourceLimitError(
            f"the {rec.ID_BLOCKS} blocks of producer ids of this cluster are used up: brokers that "
            "were not closed, and new ones, cannot join it any more. Copy its topics to another"
        )
    return block
