"""One partition with a replica on this broker: the machine, its page, and its writer's role.

    assigned --its writer has it open--> turning --the writer's answer--> leading | following | idle
                                            ^------- another role, another life of the writer ----'

A partition whose page says that its log is offline loses its role, once the controller says that
another broker leads, or nobody. It gets a role again when a writer has opened it. While it is to
lead, it can still be read.

The writer gets a role first, in its lane, behind all frames of the role before; its answer gives
the log's end then. Only with that the machine takes the role. So the lane has no frame any more
that it does not know of, and no producer appends where it does not lead.

Owns the change of roles, and the writer's knowledge of high watermark and log start. `leader_fetch`
and `follower_fetch` own the batches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from penstock.cluster.replica import (
    IsrChange,
    IsrChanged,
    LogEnd,
    LogEnds,
    PartitionAssignment,
    Replica,
    ReplicaConfig,
    ReplicaFollower,
    ReplicaLeader,
)
from penstock.core.epochs import EpochCache, load_epochs
from penstock.core.errors import DataFolderError, ErrorCode
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.lane import Ack
from penstock.ipc.state import PageIdentity, StatePage
from penstock.server.replicator.lanes import Lanes
from penstock.server.replicator.messages import Assign

logger = logging.getLogger("penstock.replicator")

UNHEARD_MAX: Final = 4
"""Frames about high watermark and log start that may wait for its writer's answer."""
OPEN: Final = (lo.STATUS_ONLINE, lo.STATUS_FOLLOWING, lo.STATUS_FULL)


class ReplicaHost(Protocol):
    """The process of a partition, as the partition uses it."""

    number: int
    config: ReplicaConfig
    storage: Storage
    lanes: Lanes

    @property
    def living(self) -> Mapping[int, int]: ...

    @property
    def now(self) -> float: ...

    def high_watermark(self, topic_id: bytes, partition: int) -> int:
        """Returns the high watermark from an earlier life; 0 if none was written down."""

    def turned(self, partition: ReplicatedPartition) -> None:
        """Its writer has taken a role, another one or the one that it had."""

    def leaderless(self, partition: ReplicatedPartition, end: LogEnd) -> None:
        """It follows nobody, since nobody leads, and has this."""

    def turns(self, partition: ReplicatedPartition) -> None:
        """Its writer is to take a role, and has not answered yet: look again until it has."""

    def moved(self, partition: ReplicatedPartition) -> None:
        """Its writer is to be told how far it may be read, at the end of the turn."""


class ReplicatedPartition:
    """One replicated partition and its role."""

    def __init__(self, broker: ReplicaHost, order: Assign, state: StatePage) -> None:
        self._broker = broker
        self.page = order.page
        self.topic_id = order.topic_id
        self.partition = order.partition
        self.name = order.name
        self.folder = order.folder
        self.is_synced = order.synced
        self.state = state
        self.word = order.word
        self.replica: Replica | None = None
        self.is_gone = False
        self._turning: PartitionAssignment | None = None
        self._is_again = False
        self._was_committed = 0
        """Up to where, as it was written down before this life began."""
        self._told = (-1, -1)  # high watermark and log start, as its writer has them
        self._unheard = 0  # frames that tell of these, and are not answered yet

    def __str__(self) -> str:
        return self.name

    # --- what it is ---
    @property
    def is_open(self) -> bool:
        """Whether its page says that a writer has it."""
        return self.state.status in OPEN and self._is_its_page

    @property
    def is_offline(self) -> bool:
        """Whether its page says that its writer has given up on its log."""
        return self.state.status == lo.STATUS_OFFLINE and self._is_its_page

    @property
    def _is_its_page(self) -> bool:
        return self.state.identity == PageIdentity(self.topic_id, self.partition)

    @property
    def is_turning(self) -> bool:
        return self._turning is not None

    @property
    def has_turned(self) -> bool:
        """Whether machine and writer have the role that the controller said last."""
        return self._turning is None and not self._is_again and self.replica is not None

    @property
    def leader(self) -> ReplicaLeader | None:
        role = None if self.replica is None else self.replica.role
        return role if isinstance(role, ReplicaLeader) else None

    @property
    def follower(self) -> ReplicaFollower | None:
        role = None if self.replica is None else self.replica.role
        return role if isinstance(role, ReplicaFollower) else None

    @property
    def log(self) -> LogEnds:
        assert self.replica is not None
        return self.replica.log

    # --- roles ---
    def hear(self, order: Assign) -> None:
        """Takes the controller's assignment, maybe a repeated one."""
        if order.synced != self.is_synced:
            self.is_synced = order.synced
            if self.replica is not None:
                self.log.synced = self._synced(self.log.log_end)
        if _age(order.word) >= _age(self.word):
            self.word = order.word
            self.turn()

    def opened(self) -> None:
        """Its writer has opened it, and knows of no role."""
        self._is_again = True
        self.turn()

    def turn(self) -> None:
        """Have the writer take the role that the controller said last, if that is another one."""
        replica, word = self.replica, self.word
        if self._turning is not None or self.is_gone:
            return
        self._broker.turns(self)
        if word.leader != self._broker.number and self.is_offline:
            self._rest()
            return
        if replica is not None and not self._is_again and not self._is_another(replica):
            has_turned = replica.assign(self._broker.now, word)
            assert not has_turned, (word, replica.role)
            self.noted()
            return
        if not self.is_open:
            return
        self._is_again = False
        self._turning = word
        leads = word.leader == self._broker.number and self._broker.number in word.replicas
        order = ro.Lead(word.leader_epoch) if leads else ro.Follow(word.leader_epoch)
        self._broker.lanes.order(self, order, self._turned)

    def _rest(self) -> None:
        """No role until its log is open again, which begins from what is there then."""
        self._is_again = True
        if self.replica is not None:
            logger.warning("%s: its log is offline, it follows nobody", self)
            self.replica = None
            self._broker.turned(self)

    def _is_another(self, replica: Replica) -> bool:
        """Whether `replica.assign` would change the role."""
        word, role = self.word, replica.role
        is_same = word.leader_epoch == replica.leader_epoch
        if self._broker.number not in word.replicas:
            return role is not None
        if word.leader == self._broker.number:
            return not (is_same and isinstance(role, ReplicaLeader))
        return not (is_same and isinstance(role, ReplicaFollower) and role.leader == word.leader)

    def _turned(self, ack: Ack) -> None:
        """Its writer has answered."""
        word, self._turning = self._turning, None
        if self.is_gone:
            return
        assert word is not None
        if ack.error:
            # It has just been opened again, or cannot be: `opened` or the next look tries again.
            self._is_again = True
            logger.info(
                "%s: its writer takes no role in epoch %d yet: %s",
                self, word.leader_epoch, name_of(ack.error),
            )  # fmt: skip
            return
        if self.replica is None:
            self.replica = self._begin(ack.base_offset)
        else:
            self.agree(ack.base_offset)
        self._told = (-1, self.state.log_start)
        if self.replica.assign(self._broker.now, word):
            role = self.replica.role
            logger.info(
                "%s: %s in epoch %d from offset %d", self,
                "leads" if isinstance(role, ReplicaLeader)
                else "follows" if role else "has no replica",
                word.leader_epoch, ack.base_offset,
            )  # fmt: skip
        self._broker.turned(self)
        self.noted()
        if word.leader is None:
            log = self.log
            committed = max(self._was_committed, log.high_watermark)
            end = LogEnd(word.leader_epoch, log.last_epoch, log.log_end, committed)
            self._broker.leaderless(self, end)
        self.turn()  # the controller may have said something else meanwhile

    def _begin(self, end: int) -> Replica:
        """From the log, as it is before anything is added to it in this life."""
        broker, state = self._broker, self.state
        start = min(state.log_start, end)
        shown = state.high_watermark
        if shown <= start:  # of another boot: the page knows of none yet
            shown = max(start, broker.high_watermark(self.topic_id, self.partition))
        self._was_committed = shown
        ends = LogEnds(start, end, shown, self._epochs(end), self._synced(end))
        return Replica(broker.number, ends, broker.config, broker.living)

    def _epochs(self, end: int) -> EpochCache:
        found = load_epochs(self._broker.storage, self.folder) or EpochCache()
        found.truncate_end(end)
        return found

    def _synced(self, end: int) -> int | None:
        return min(self.state.durable, end) if self.is_synced else None

    def agree(self, end: int) -> None:
        """The log ends there, by the word of its writer. Raises where that is less than others were
        told of: the next life begins from what is there."""
        log = self.log
        if self.leader is not None:
            if end < log.log_end:
                raise DataFolderError(
                    f"{self}: its log ends at {end}, and ended at {log.log_end} a moment ago"
                )
            assert self.replica is not None
            if end > log.log_end:
                self.replica.appended(end)
            return
        # A follower's writer may have taken another part of what came than was thought, also where
        # that ends at the same place: a log that was begun again, and filled up to there again.
        log.truncate(min(end, log.log_end))
        log.epochs = self._epochs(end)
        log.log_start = min(self.state.log_start, end)
        log.log_end = end

    # --- leading ---
    def look(self) -> None:
        """The page may have moved."""
        replica, state = self.replica, self.state
        if replica is None or self.leader is None or self._turning is not None:
            return
        log_end = state.log_end
        if log_end > replica.log.log_end:
            replica.appended(log_end)
        self.refresh()
        self.noted()

    def isr_answer(self, change: IsrChange, answer: IsrChanged) -> None:
        leader = self.leader
        if leader is not None:
            leader.isr_changed(self._broker.now, change, answer)
            self.noted()

    # --- following ---
    def refresh(self) -> None:
        """Take in what only the page knows: how far it is durable, and where it starts."""
        replica, state = self.replica, self.state
        assert replica is not None
        log = replica.log
        if log.synced is not None:
            replica.synced(min(state.durable, log.log_end))
        if state.log_start > log.log_start:
            log.trim(state.log_start)

    # --- the writer's knowledge ---
    def noted(self) -> None:
        """The machine may know of another high watermark or log start."""
        log = self.log
        if self._told != (log.high_watermark, log.log_start):
            self._broker.moved(self)

    def tell(self) -> None:
        """Tell its writer how far it may be read, and where it begins: now, or when it has answered
        what it was told before."""
        if self.replica is None or self._turning is not None or self.is_gone:
            return
        if self._unheard >= UNHEARD_MAX:
            return
        log, (told, told_start) = self.log, self._told
        epoch, lanes = self.replica.leader_epoch, self._broker.lanes
        self._told = (log.high_watermark, log.log_start)
        is_late = self.follower is not None  # nobody reads here
        if told != log.high_watermark:
            self._unheard += 1
            order = ro.HighWatermark(epoch, log.high_watermark)
            lanes.note(self, order, self._heard, is_late=is_late)
        if told_start != log.log_start and self.follower is not None:
            self._unheard += 1
            lanes.note(self, ro.Trim(epoch, log.log_start), self._heard, is_late=is_late)

    def _heard(self, _: Ack) -> None:
        """Takes the writer's answer; the next role repeats a refused frame."""
        self._unheard -= 1
        if self.replica is not None:
            self.noted()

    def again(self) -> None:
        """Turns again after an unexpected answer of its writer, to learn where its log ends."""
        self._is_again = True
        self.turn()


def name_of(error: int) -> str:
    """Of what a writer answers."""
    return ErrorCode(error).name if error in ErrorCode._value2member_map_ else str(error)


def _age(word: PartitionAssignment) -> tuple[int, int]:
    return word.leader_epoch, word.partition_epoch
