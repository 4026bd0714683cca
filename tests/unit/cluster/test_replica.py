"""Replicas step by step, and the scenarios behind KIP-101, KIP-279, KIP-320 and KIP-966 (the last
replica standing) as scripts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.cluster.replica import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    IsrChanged,
    LogEnds,
    PartitionAssignment,
    Replica,
    ReplicaConfig,
    ReplicaFollower,
    ReplicaLeader,
    ReplicaRefusal,
)
from penstock.core.epochs import EpochCache

CONFIG = ReplicaConfig(lag_time=1.0, retry=0.2)


class Cluster:
    """Replicas of one partition, with their records; `word` is the controller's."""

    def __init__(self, *logs: str, isr: tuple[int, ...] | None = None, min_insync: int = 1) -> None:
        """Each log as the leader epochs of its records, "0011" for two of each."""
        self.now = 0.0
        self.numbers = 0
        self.brokers = dict.fromkeys(range(1, len(logs) + 1), 1)
        self.logs: dict[int, list[int]] = {}
        self.replicas: dict[int, Replica] = {}
        for broker, log in enumerate(logs, 1):
            self.logs[broker] = [int(epoch) for epoch in log]
            self.start(broker)
        everybody = tuple(self.brokers)
        self.word = PartitionAssignment(None, 0, 0, everybody, isr or everybody, min_insync)

    def start(self, broker: int, high_watermark: int = 0) -> Replica:
        log, epochs = self.logs[broker], EpochCache()
        for offset, epoch in enumerate(log):
            epochs.assign(epoch, offset) if not epochs.entries or epoch > epochs.latest else None
        ends = LogEnds(0, len(log), high_watermark, epochs)
        self.replicas[broker] = Replica(broker, ends, CONFIG, self.brokers)
        return self.replicas[broker]

    def tell(self, *brokers: int, leader: int | None, isr: tuple[int, ...] | None = None) -> None:
        """Elect, and tell these brokers of it."""
        word = self.word
        epoch = word.leader_epoch + (leader != word.leader)
        self.word = PartitionAssignment(
            leader, epoch, word.partition_epoch + 1, word.replicas, isr or word.isr, word.min_insync
        )
        for broker in brokers or self.replicas:
            self.replicas[broker].assign(self.now, self.word)

    def leader(self, broker: int) -> ReplicaLeader:
        role = self.replicas[broker].role
        assert isinstance(role, ReplicaLeader)
        return role

    def append(self, broker: int, count: int = 1) -> None:
        self.logs[broker] += [self.replicas[broker].leader_epoch] * count
        self.replicas[broker].appended(len(self.logs[broker]))

    def fetch(self, broker: int, count: int = 100) -> Fetched | Diverged | FetchRefused:
        """One request and its answer."""
        replica = self.replicas[broker]
        role = replica.role
        assert isinstance(role, ReplicaFollower)
        assert role.leader is not None
        self.numbers += 1
        request = role.request(self.numbers, self.brokers[broker])
        assert request is not None
        answer = self.replicas[role.leader].fetch(self.now, request)
        log = self.logs[broker]
        match answer:
            case Diverged():
                end = role.diverged(answer)
                del log[end:]
            case Fetched():
                came = self.logs[role.leader][answer.offset :][:count]
                ends = [(answer.offset + i, epoch) for i, epoch in enumerate(came, 1)]
                assert role.fetched(answer, ends)
                log += came
            case FetchRefused():
                role.refused(answer)
        assert replica.log.log_end == len(log)
        return answer

    def agree(self, broker: int) -> list[str]:
        """Fetch until there is nothing more: what happened."""
        told = []
        while True:
            before = len(self.logs[broker])
            answer = self.fetch(broker)
            told.append(type(answer).__name__)
            if isinstance(answer, Fetched) and len(self.logs[broker]) == before:
                return told


# --- the high watermark ---------------------------------------------------------------------------
@pytest.mark.rule(23)
def test_what_all_of_the_isr_have_is_committed():
    at = Cluster("", "", "")
    at.tell(leader=1)
    at.append(1, 3)
    log = at.replicas[1].log
    at.fetch(2)
    at.fetch(3, 2)
    assert log.high_watermark == 0  # nobody has said that it has anything
    at.fetch(2)
    assert log.high_watermark == 0
    at.fetch(3)
    assert log.high_watermark == 2
    at.fetch(3)
    assert log.high_watermark == 3
    at.fetch(2)
    assert at.replicas[2].log.high_watermark == 3


def test_alone_everything_is_committed_at_once():
    at = Cluster("")
    at.tell(leader=1)
    at.append(1, 3)
    assert at.replicas[1].log.high_watermark == 3


def test_who_is_away_leaves_the_isr_of_an_empty_log_too():
    """Otherwise nobody could join: a change with one in it that is fenced is refused."""
    at = Cluster("", "", "")
    del at.brokers[3]
    at.tell(1, 2, leader=1)
    leader = at.leader(1)
    at.now = 0.5
    leader.tick(at.now)
    assert leader.isr_change(at.now) is None
    at.now = 1.5
    leader.tick(at.now)
    change = leader.isr_change(at.now)
    assert change is not None
    assert [member for member, _ in change.isr] == [1, 2]


@pytest.mark.rule(23)
def test_who_lags_leaves_the_isr_when_the_controller_agrees():
    at = Cluster("", "", "")
    at.tell(leader=1)
    leader, log = at.leader(1), at.replicas[1].log
    at.append(1)
    at.agree(2)
    at.now = 1.5
    at.agree(2)
    leader.tick(at.now)
    change = leader.isr_change(at.now)
    assert change is not None
    assert [member for member, _ in change.isr] == [1, 2]
    assert log.high_watermark == 0  # 3 may be in the ISR still
    assert leader.isr_change(at.now) is None  # asked for
    assert leader.isr_change(at.now + 0.3) == change  # and again
    leader.isr_changed(at.now, change, IsrChanged(2, (1, 2)))
    assert leader.isr == (1, 2)
    assert log.high_watermark == 1


def test_who_caught_up_is_counted_from_the_request_on():
    at = Cluster("", "", "", isr=(1, 2))
    at.tell(leader=1)
    leader, log = at.leader(1), at.replicas[1].log
    at.append(1)
    at.agree(2)
    at.agree(3)
    change = leader.isr_change(at.now)
    assert change is not None
    assert set(dict(change.isr)) == {1, 2, 3}
    at.append(1)
    at.agree(2)
    assert log.high_watermark == 1  # 3 may be in the ISR by now, and does not have it
    leader.isr_changed(at.now, change, IsrChanged(0, (), ReplicaRefusal.OLD_PARTITION_EPOCH))
    assert leader.wanted is not None  # that tells nothing of the change
    leader.isr_changed(at.now, change, IsrChanged(9, (1, 2), ReplicaRefusal.NOT_ELIGIBLE))
    assert leader.wanted is None
    assert log.high_watermark == 2


def test_nobody_joins_before_it_has_what_the_leader_began_with():
    at = Cluster("00", "00", "", isr=(1, 2))
    at.tell(leader=1)
    at.fetch(3, 1)
    at.fetch(3, 1)
    assert at.leader(1).wanted is None  # at 1, where the leader's epoch begins at 2
    at.fetch(3)
    at.fetch(3)
    assert at.leader(1).wanted == (1, 2, 3)


@pytest.mark.rule(23)
def test_another_life_of_a_follower_has_what_it_says_now():
    at = Cluster("", "")
    at.tell(leader=1)
    at.append(1, 2)
    at.agree(2)
    assert at.replicas[1].log.high_watermark == 2
    at.brokers[2] = 2
    at.logs[2].clear()
    at.start(2).assign(at.now, at.word)
    at.append(1)
    at.fetch(2, 0)
    assert at.leader(1)._stored(2) == 0
    at.brokers[2] = 1  # a request of the old life, late
    assert at.fetch(2) == FetchRefused(at.numbers, ReplicaRefusal.OLD_BROKER, at.word.leader_epoch)


def test_an_answer_about_the_isr_does_not_hide_what_else_changed_with_it():
    """A reassignment came to its end with that change: the answer names the ISR alone."""
    at = Cluster("0", "", "", isr=(1, 3))
    at.tell(leader=1)
    leader = at.leader(1)
    at.agree(2)
    change = leader.isr_change(at.now)
    assert change is not None
    epoch = at.word.partition_epoch + 1
    leader.isr_changed(at.now, change, IsrChanged(epoch, (1, 2)))
    at.word = replace(at.word, partition_epoch=epoch, replicas=(1, 2), isr=(1, 2), min_insync=2)
    at.append(1)
    at.now += 2.0
    leader.tick(at.now)
    assert leader.wanted == (1,)
    assert not leader.is_short
    at.replicas[1].assign(at.now, at.word)
    assert leader.is_short, "it knows what has to be in sync"
    assert leader.wanted == (1,), "and what it asked for since"
    assert leader.isr_change(at.now) is not None
    request = FetchRequest(99, 3, 1, at.word.leader_epoch, 0, None, 0)
    refused = leader.fetch(at.now, request)
    assert isinstance(refused, FetchRefused)
    assert refused.why == ReplicaRefusal.NOT_A_REPLICA


def test_who_is_to_join_is_the_life_that_has_caught_up():
    """The next one, after a power cut say, may have less, and be the one that the controller knows
    when it is asked."""
    at = Cluster("0", "0", "", isr=(1, 2))
    at.tell(leader=1)
    at.agree(3)
    assert at.leader(1).wanted == (1, 2, 3)
    at.brokers[3] = 2
    at.logs[3].clear()
    at.start(3).assign(at.now, at.word)
    at.fetch(3, 0)
    change = at.leader(1).isr_change(at.now)
    assert change is not None
    assert dict(change.isr)[3] == 1


def test_records_count_where_they_are_fsynced():
    at = Cluster("", "")
    for replica in at.replicas.values():
        replica.log.synced = 0
    at.tell(leader=1)
    at.append(1, 2)
    at.agree(2)
    log = at.replicas[1].log
    assert log.high_watermark == 0
    at.replicas[2].synced(2)
    at.fetch(2)
    assert log.high_watermark == 0
    at.replicas[1].synced(1)
    assert log.high_watermark == 1


def test_acks_all_needs_min_insync_replicas():
    at = Cluster("", "", "", isr=(1,), min_insync=2)
    at.tell(leader=1)
    assert at.leader(1).is_short
    at.append(1)
    assert at.replicas[1].log.high_watermark == 0, "nothing counts, and nothing is answered"


def test_the_last_replica_standing_commits_nothing_alone():
    """KIP-966: 2 and 3 leave the ISR, then 1 loses its disk. What counted is on 2 or 3, too."""
    at = Cluster("", "", "", min_insync=2)
    at.tell(leader=1)
    at.append(1)
    at.agree(2)
    at.agree(3)
    log = at.replicas[1].log
    assert log.high_watermark == 1
    at.tell(leader=1, isr=(1,))
    at.append(1, 5)
    assert log.high_watermark == 1
    assert min(len(at.logs[2]), len(at.logs[3])) >= log.high_watermark


# --- epochs ---------------------------------------------------------------------------------------
def test_kip_101_a_restart_before_the_hw_came_loses_nothing():
    """B has the record and not yet the high watermark, restarts, and A dies. B must not cut."""
    at = Cluster("0", "0")
    at.tell(leader=1)
    at.append(1)
    at.fetch(2)
    at.fetch(2)
    assert at.replicas[1].log.high_watermark == 2
    assert at.replicas[2].log.high_watermark <= 2
    at.start(2, high_watermark=1).assign(at.now, at.word)
    assert at.agree(2) == ["Fetched"]
    assert at.logs[2] == [0, 1]
    at.tell(2, leader=2, isr=(2,))
    at.start(1, high_watermark=1).assign(at.now, at.word)
    assert at.agree(1) == ["Fetched"]
    assert at.logs[1] == at.logs[2] == [0, 1]


def test_kip_101_logs_that_went_apart_after_both_died_agree_again():
    """Both die, B comes back first and writes. A's records of the older epoch go."""
    at = Cluster("00", "0")
    at.tell(2, leader=2, isr=(2,))
    at.append(2)
    at.start(1, high_watermark=2).assign(at.now, at.word)
    assert at.agree(1)[0] == "Diverged"
    assert at.logs[1] == at.logs[2] == [0, 1]


def test_kip_279_two_fast_elections_do_not_leave_logs_apart():
    """The last common epoch of both lies below what either wrote alone: an epoch at a time."""
    at = Cluster("0002", "00011", "000113")
    at.word = PartitionAssignment(None, 4, 0, (1, 2, 3), (3,), 1)
    at.tell(leader=3)
    assert at.agree(1) == ["Diverged", "Fetched", "Fetched"]
    assert at.agree(2)[0] == "Fetched"
    assert at.logs[1] == at.logs[2] == at.logs[3]


def test_a_log_of_epochs_that_nobody_else_has_agrees_in_the_end():
    at = Cluster("00022244", "0001113335")
    at.word = PartitionAssignment(None, 5, 0, (1, 2), (2,), 1)
    at.tell(leader=2)
    told = at.agree(1)
    assert told.count("Diverged") == 2
    assert at.logs[1] == at.logs[2]


def test_kip_320_a_follower_of_another_epoch_is_told_so():
    at = Cluster("0", "0", "0")
    at.tell(leader=1)
    at.tell(1, 2, leader=2)  # 3 has not heard
    answer = at.fetch(3)
    assert isinstance(answer, FetchRefused)
    assert answer.why == ReplicaRefusal.NOT_LEADER
    at.word = PartitionAssignment(2, 2, 9, (1, 2, 3), (1, 2, 3), 1)
    at.replicas[3].assign(at.now, PartitionAssignment(2, 1, 3, (1, 2, 3), (1, 2, 3), 1))
    answer = at.fetch(3)
    assert isinstance(answer, FetchRefused)
    assert answer.why == ReplicaRefusal.OLD_EPOCH
    role = at.replicas[3].role
    assert isinstance(role, ReplicaFollower)
    assert role.is_waiting
    at.tell(3, leader=2)
    assert isinstance(at.fetch(3), Fetched)


def test_a_leader_that_was_deposed_commits_nothing_more():
    at = Cluster("", "", "")
    at.tell(leader=1)
    at.append(1)
    at.tell(2, 3, leader=2)  # 1 has not heard
    at.agree(3)
    for broker in (2, 3):
        role = at.replicas[broker].role
        if isinstance(role, ReplicaFollower):
            request = role.request(99, 1)
            assert request is not None
            answer = at.replicas[1].fetch(at.now, request)
            assert isinstance(answer, FetchRefused)
    assert at.replicas[1].log.high_watermark == 0
    at.tell(leader=2, isr=(2, 3))
    at.agree(1)
    assert at.logs[1] == []


def test_what_a_broker_led_without_a_record_is_not_in_its_log():
    """It led epoch 2, wrote nothing, and then takes records of epoch 1 from another."""
    at = Cluster("0", "01")
    at.word = PartitionAssignment(None, 1, 0, (1, 2), (1, 2), 1)
    at.tell(leader=1)
    at.tell(leader=2)
    at.append(2)
    assert at.agree(1)[0] == "Fetched"
    assert at.logs[1] == at.logs[2] == [0, 1, 3]
    assert at.replicas[1].log.epochs.entries == at.replicas[2].log.epochs.entries


# --- answers, and words ---------------------------------------------------------------------------
def test_a_late_or_doubled_answer_is_left_alone():
    at = Cluster("00", "0")
    at.tell(leader=1)
    role = at.replicas[2].role
    assert isinstance(role, ReplicaFollower)
    request = role.request(7, 1)
    assert request is not None
    answer = at.replicas[1].fetch(0.0, request)
    assert isinstance(answer, Fetched)
    assert role.fetched(answer, [(2, 0)])
    assert not role.fetched(answer, [(3, 0)])
    assert role.diverged(Diverged(7, role.epoch, 0, 0)) is None
    assert at.replicas[2].log.log_end == 2


def test_who_is_below_the_leaders_log_begins_anew():
    at = Cluster("00000", "0")
    at.tell(leader=1, isr=(1,))
    at.append(1)
    at.replicas[1].log.trim(4)
    at.logs[1][:4] = [-1] * 4
    role = at.replicas[2].role
    assert isinstance(role, ReplicaFollower)
    request = role.request(7, 1)
    assert request is not None
    answer = at.replicas[1].fetch(0.0, request)
    assert answer == Fetched(7, at.word.leader_epoch, 4, 6, 4)
    assert role.fetched(answer, [(6, 1)])
    log = at.replicas[2].log
    assert (log.log_start, log.log_end, log.high_watermark) == (4, 6, 6)


def test_who_parted_from_the_leader_before_its_log_start_is_told_where():
    """Retention went by while it was away: what it has below that was never committed either."""
    at = Cluster("000000000", "000")
    at.tell(leader=2, isr=(2,))
    at.append(2, 10)
    at.replicas[2].log.trim(6)
    role = at.replicas[1].role
    assert isinstance(role, ReplicaFollower)
    request = role.request(7, 1)
    assert request is not None
    first = at.replicas[2].fetch(0.0, request)
    assert first == Diverged(7, at.word.leader_epoch, 0, 3)
    assert role.diverged(first) == 3
    request = role.request(8, 1)
    assert request is not None
    then = at.replicas[2].fetch(0.0, request)
    assert isinstance(then, Fetched)
    assert (then.offset, then.log_start) == (6, 6), "it begins again there"


def test_who_parted_and_ends_just_where_the_leaders_log_starts_is_told_so():
    """What it has would stand below that start for good, and what the leader has from there on may
    be of an older epoch, which it could never append."""
    at = Cluster("0000", "000000")
    at.tell(leader=1, isr=(1, 2))
    at.append(1)  # and 2 never hears of it
    at.tell(2, leader=2, isr=(2,))
    at.replicas[2].log.trim(5)
    at.tell(1, leader=2, isr=(2,))
    assert (at.replicas[1].log.log_end, at.replicas[1].log.last_epoch) == (5, 1)
    answer = at.fetch(1)
    assert isinstance(answer, Diverged)
    assert answer.epoch == 0
    assert at.logs[1] == [0, 0, 0, 0]
    role = at.replicas[1].role
    assert isinstance(role, ReplicaFollower)
    request = role.request(70, 1)
    assert request is not None
    then = at.replicas[2].fetch(0.0, request)
    assert isinstance(then, Fetched)
    assert (then.offset, then.log_start) == (5, 5), "it begins again there"


def test_who_ends_where_a_leader_began_anew_goes_on():
    """A leader that knows of no epoch below its log start has nothing to object."""
    at = Cluster("000", "000")
    at.replicas[2].log.restart(3)
    at.tell(leader=2, isr=(2,))
    at.replicas[2].appended(5)
    role = at.replicas[1].role
    assert isinstance(role, ReplicaFollower)
    request = role.request(7, 1)
    assert request is not None
    answer = at.replicas[2].fetch(0.0, request)
    assert isinstance(answer, Fetched)
    assert (answer.offset, answer.log_start) == (3, 3)


def test_older_words_change_nothing():
    at = Cluster("", "")
    at.tell(leader=1)
    old = at.word
    at.tell(leader=2)
    for broker in (1, 2):
        role = at.replicas[broker].role
        assert not at.replicas[broker].assign(at.now, old)
        assert at.replicas[broker].role is role
    gone = PartitionAssignment(2, 9, 9, (2,), (2,), 1)
    assert at.replicas[1].assign(at.now, gone)
    assert at.replicas[1].role is None


# --- words and answers that overtake each other ---------------------------------------------------
def test_an_older_word_does_not_undo_what_an_answer_told_of_the_isr():
    at = Cluster("", "", "")
    at.tell(leader=1)
    leader = at.leader(1)
    between = replace(at.word, partition_epoch=at.word.partition_epoch + 1)
    at.brokers.pop(3)
    at.now += 2.0
    at.fetch(2)
    leader.tick(at.now)
    asked = leader.isr_change(at.now)
    assert asked is not None
    told = IsrChanged(asked.partition_epoch + 2, (1, 2))
    leader.isr_changed(at.now, asked, told)
    assert leader.isr == (1, 2)
    at.replicas[1].assign(at.now, between)
    assert (leader.isr, leader.partition_epoch) == ((1, 2), told.partition_epoch)


def test_a_refusal_for_its_epoch_leaves_both_isrs_to_count():
    """The change may have been made, and its first answer lost."""
    at = Cluster("", "", "")
    at.tell(leader=1)
    leader = at.leader(1)
    at.brokers.pop(3)
    at.now += 2.0
    at.fetch(2)
    leader.tick(at.now)
    asked = leader.isr_change(at.now)
    assert asked is not None
    assert leader.wanted == (1, 2)
    refusal = IsrChanged(asked.partition_epoch + 1, (1, 2), ReplicaRefusal.OLD_PARTITION_EPOCH)
    leader.isr_changed(at.now, asked, refusal)
    assert leader.wanted == (1, 2)
    assert leader.maximal_isr == {1, 2, 3}
    at.append(1)
    at.fetch(2)
    at.fetch(2)
    assert at.replicas[1].log.high_watermark == 0, "3 may be in the ISR still"


def test_a_followers_hw_is_within_its_log():
    at = Cluster("", "")
    at.tell(leader=1, isr=(1,))
    at.append(1, 5)
    assert at.replicas[1].log.high_watermark == 5
    at.fetch(2, count=2)
    log = at.replicas[2].log
    assert (log.high_watermark, log.log_end) == (2, 2)
    at.fetch(2, count=2)
    assert (log.high_watermark, log.log_end) == (4, 4)
