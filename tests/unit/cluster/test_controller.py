"""The controller step by step: brokers, topics, elections, ISRs, reassignment, placement."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.cluster.controller import (
    Controller,
    ControllerConfig,
    Registered,
    UncleanRecovery,
    pack,
    unpack,
)
from penstock.cluster.controller.placement import place
from penstock.cluster.controller.records import BROKER, COUNTER, ID_BLOCKS, PRODUCER_IDS
from penstock.cluster.controller.records import record as made
from penstock.cluster.decisions import Decision
from penstock.cluster.replica import (
    Fetched,
    FetchRequest,
    IsrChange,
    LogEnd,
    LogEnds,
    Replica,
    ReplicaConfig,
    ReplicaLeader,
    ReplicaRefusal,
)
from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    PenstockTimeout,
    ResourceLimitError,
    StaleBrokerEpochError,
    TopicExistsError,
    UnknownTopicError,
)

T = b"t" * 16


class Quorum:
    """A controller whose decisions are replayed, as through the log."""

    def __init__(self, brokers: int = 3, config: ControllerConfig | None = None) -> None:
        self.controller = Controller(config)
        self.now = 0.0
        self.lives: dict[int, int] = {}
        for broker in range(1, brokers + 1):
            self.start(broker)

    def do(self, decision: Decision[Any]) -> Any:
        for record in unpack(pack(decision.records)):
            self.controller.replay(record)
        return decision.answer

    def start(
        self, broker: int, *, was_clean: bool = True, folder: bytes = b"f", beat=True,
        after: int | None = None, lost: Any = (), offline: Any = (),
        keeps_count: bool = False, instead_of: int | None = None,
    ) -> Any:  # fmt: skip
        life = self.lives[broker] = self.lives.get(broker, 0) + 1
        answer = self.do(
            self.controller.register(
                self.now,
                broker,
                b"%d" % life,
                folder,
                ("tcp://x",),
                was_clean=was_clean,
                after=after,
                lost=lost,
                offline=offline,
                keeps_count=keeps_count,
                instead_of=instead_of,
            )
        )
        if beat and not answer.ask_again:
            self.beat(broker)
        return answer.broker_epoch

    def beat(self, broker: int, *, leaving: bool = False):
        epoch = self.controller.image.brokers[broker].epoch
        return self.do(
            self.controller.heartbeat(self.now, broker, epoch, is_current=True, is_leaving=leaving)
        )

    def logs(self, broker: int, **places: Any) -> None:
        epoch = self.controller.image.brokers[broker].epoch
        self.do(self.controller.logs(broker, epoch, **places))

    def tell(
        self, broker: int, last_epoch: int | None, log_end: int, high_watermark: int = 0,
        *, leader_epoch: int | None = None,
    ) -> None:  # fmt: skip
        """What its log has."""
        epoch = self.controller.image.brokers[broker].epoch
        word = self.partition().leader_epoch if leader_epoch is None else leader_epoch
        end = LogEnd(word, last_epoch, log_end, high_watermark)
        self.do(self.controller.log_ends(broker, epoch, [((T, 0), end)]))

    def lose(self, *brokers: int) -> None:
        """Nothing is heard of these any more."""
        self.now += 3.0
        for broker in self.controller.image.brokers:
            if broker not in brokers and not self.controller.image.brokers[broker].is_fenced:
                self.beat(broker)
        self.do(self.controller.tick(self.now))

    def create(self, partitions: int = 1, factor: int = 3, **options):
        self.do(self.controller.create_topic("t", T, partitions, factor, 1, b"c", **options))
        replicas = (1, 2, 3)[:factor]
        if partitions == 1:
            self.do(self.controller.reassign([(T, 0)], replicas))
            self.do(self.controller.elect([(T, 0)]))
        return self.partition()

    def partition(self, number: int = 0):
        return self.controller.image.partitions[T, number]

    def ask(
        self, *isr: int, leader: int | None = None, partition_epoch: int | None = None,
        number: int = 0,
    ):  # fmt: skip
        it = self.partition(number)
        brokers = self.controller.image.brokers
        return self.do(
            self.controller.change_isr(
                (T, number),
                IsrChange(
                    it.leader if leader is None else leader,
                    it.leader_epoch,
                    it.partition_epoch if partition_epoch is None else partition_epoch,
                    tuple((member, brokers[member].epoch) for member in isr),
                ),
            )
        )


# --- brokers --------------------------------------------------------------------------------------
def test_a_broker_is_fenced_until_it_has_replayed_its_registration():
    at = Quorum(0)
    epoch = at.start(1, beat=False)
    beat = at.controller.heartbeat
    assert at.do(beat(0.0, 1, epoch, is_current=False, is_leaving=False)).is_fenced
    assert not at.do(beat(0.0, 1, epoch, is_current=True, is_leaving=False)).is_fenced
    assert at.controller.image.living() == {1: epoch}


@pytest.mark.rule(23)
def test_each_life_has_a_broker_epoch_and_the_last_one_is_refused():
    at = Quorum(1)
    first = at.controller.image.brokers[1].epoch
    again = at.controller.register(0.0, 1, b"1", b"f", (), was_clean=True)
    assert (again.records, again.answer.broker_epoch) == ((), first)
    second = at.start(1)
    assert second > first
    with pytest.raises(StaleBrokerEpochError, match="later life"):
        at.controller.heartbeat(0.0, 1, first, is_current=True, is_leaving=False)
    with pytest.raises(StaleBrokerEpochError, match="register it"):
        at.controller.heartbeat(0.0, 9, 1, is_current=True, is_leaving=False)


def test_what_is_said_to_one_life_is_heeded_by_no_other():
    at = Quorum(1)
    first = at.controller.image.brokers[1].epoch
    assert at.controller.image.is_current(1, first)
    second = at.start(1, after=first)
    assert at.controller.image.is_current(1, second)
    assert not at.controller.image.is_current(1, first), "a process that goes on beside its copy"
    assert not at.controller.image.is_current(1, second + 1)
    assert not at.controller.image.is_current(2, first)


def test_two_brokers_cannot_have_one_id():
    at = Quorum(1)
    with pytest.raises(AttachRefusedError, match="another --node-id"):
        at.controller.register(0.0, 1, b"x", b"other", (), was_clean=True)
    at.lose(1)
    at.do(at.controller.register(at.now, 1, b"x", b"other", (), was_clean=True))


def test_brokers_are_bounded_and_can_be_forgotten():
    at = Quorum(1, ControllerConfig(brokers_max=1))
    with pytest.raises(ResourceLimitError, match="brokers_max"):
        at.start(2)
    with pytest.raises(ConfigError, match="stop it"):
        at.controller.forget(1)
    at.lose(1)
    at.do(at.controller.forget(1))
    at.start(2)


def test_a_new_active_controller_gives_everybody_a_session():
    at = Quorum(2)
    other = Controller()
    for record in at.controller.image.records():
        other.replay(record)
    other.lead(100.0)
    assert not other.tick(101.0).records
    assert other.deadline() == 102.0
    assert other.tick(102.5).records


# --- elections ------------------------------------------------------------------------------------
def test_another_of_the_isr_leads_when_the_leader_dies():
    at = Quorum()
    before = at.create()
    assert before.leader == 1
    at.lose(1)
    it = at.partition()
    assert (it.leader, it.isr) == (2, (2, 3))
    assert it.leader_epoch == before.leader_epoch + 1
    at.start(1)
    assert at.partition() == it  # it has to catch up
    at.ask(2, 3, 1)
    at.do(at.controller.elect([(T, 0)]))
    assert at.partition().leader == 1


def test_the_isr_stays_while_nobody_of_it_is_there():
    at = Quorum()
    at.create()
    at.lose(1, 2, 3)
    it = at.partition()
    assert (it.leader, it.isr) == (None, (1, 2, 3))
    at.start(3)
    assert at.partition().leader == 3
    assert at.partition().leader_epoch > it.leader_epoch


@pytest.mark.rule(23)
def test_rule_23_who_lost_power_leaves_every_isr_before_it_may_lead():
    at = Quorum()
    at.create()
    at.start(1, was_clean=False)
    assert (at.partition().leader, at.partition().isr) == (2, (2, 3))
    at.lose(2, 3)
    assert at.partition().leader is None
    at.start(2, was_clean=False)
    assert (at.partition().leader, at.partition().isr) == (None, (3,))
    at.start(3, was_clean=False)
    it = at.partition()
    assert (it.leader, it.isr, it.last_isr) == (None, (), (3, 2, 1))
    assert at.do(at.controller.elect([(T, 0)])) == 0
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert (at.partition().leader, at.partition().isr) == (3, (3,))


def without_power(at: Quorum, *brokers: int, beat: bool = True) -> None:
    """They come back one after the other, with logs that lack something."""
    for broker in brokers:
        at.start(broker, was_clean=False, beat=beat)


@pytest.mark.rule(23)
def test_the_one_with_most_of_the_last_isr_leads_once_all_of_it_are_back():
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    it = at.partition()
    assert (it.leader, it.isr, set(it.last_isr)) == (None, (), {1, 2, 3})
    at.tell(1, 0, 70)
    at.tell(3, 0, 50, high_watermark=90)
    assert at.partition().leader is None, "one has not told yet"
    at.do(at.controller.tick(at.now, 1_000.0))
    at.tell(2, 0, 60)
    now = at.partition()
    assert (now.leader, now.isr, now.last_isr) == (1, (1,), ())
    assert now.leader_epoch == it.leader_epoch + 1
    assert now.unclean == UncleanRecovery(1, now.leader_epoch, 70, 90, 1_000.0)
    assert at.controller.counts["unclean_recoveries"] == 1
    assert at.controller.counts["offsets_missing"] == 20


@pytest.mark.parametrize("ends", [
    {1: (0, 99), 2: (1, 10), 3: (0, 99)},
    {1: (1, 9), 2: (1, 10), 3: (0, 99)},
    {1: (None, 0), 2: (None, 0), 3: (None, 0)},
])  # fmt: skip
def test_a_higher_leader_epoch_counts_more_than_a_longer_log(ends):
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    for broker, (epoch, end) in ends.items():
        at.tell(broker, epoch, end)
    assert at.partition().leader == (2 if ends[2][1] else 1), "else the first"


def test_a_member_of_the_last_isr_that_never_comes_back_is_waited_for():
    at = Quorum()
    at.create()
    at.lose(1, 2, 3)
    without_power(at, 1, 2)
    at.tell(1, 0, 70)
    at.tell(2, 0, 60)
    at.do(at.controller.tick(at.now))
    it = at.partition()
    assert (it.leader, it.isr) == (None, (3,)), "it may be clean"
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert (at.partition().leader, at.partition().isr) == (1, (1,)), "the one with most"


def test_one_that_is_back_and_away_again_is_waited_for_too():
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    at.tell(1, 0, 70)
    at.lose(1)
    at.tell(2, 0, 60)
    at.tell(3, 0, 60)
    assert at.partition().leader is None
    at.beat(1)
    at.do(at.controller.tick(at.now))
    assert at.partition().leader == 1, "the same life: what it told still holds"


def test_what_a_life_told_that_is_over_does_not_count():
    """The power is cut again in the middle of it."""
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    at.tell(1, 0, 70)
    at.tell(2, 0, 60)
    without_power(at, 1)
    at.tell(3, 0, 60)
    assert at.partition().leader is None
    at.tell(1, 0, 40)
    assert at.partition().leader == 2
    with pytest.raises(StaleBrokerEpochError):
        at.controller.log_ends(1, 1, [])


def test_what_was_told_of_an_earlier_time_without_a_leader_does_not_count():
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    for broker in (1, 2, 3):
        at.tell(broker, 0, 70, leader_epoch=at.partition().leader_epoch - 1)
    assert at.partition().leader is None


def test_who_has_lost_its_folder_does_not_count_as_back():
    at = Quorum()
    at.create()
    without_power(at, 1, 2)
    at.start(3, was_clean=False, lost=[(T, 0)])
    for broker in (1, 2, 3):
        at.tell(broker, 0, 70)
    it = at.partition()
    assert (it.leader, it.isr, it.blank) == (None, (), (3,))
    without_power(at, 3)
    at.tell(3, 0, 99)
    assert at.partition() == replace(it, partition_epoch=at.partition().partition_epoch)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert at.partition().leader in (1, 2)


def test_who_is_clean_leads_though_others_have_told_of_more():
    at = Quorum()
    at.create()
    without_power(at, 1, 2)
    at.lose(3)
    at.tell(1, 0, 70)
    at.tell(2, 0, 60)
    at.start(3)
    it = at.partition()
    assert (it.leader, it.isr, it.unclean) == (3, (3,), None)


def test_who_left_the_isr_as_all_lost_power_is_of_the_last_one():
    """Others than the brokers decide, and miss them one by one."""
    at = Quorum(5)
    at.create()
    for broker in (1, 2, 3):
        at.controller.gone(broker)
        at.do(at.controller.tick(at.now))
    assert (at.partition().isr, at.partition().last_isr) == ((3,), (2, 1))
    without_power(at, 3)
    at.tell(3, 0, 10)
    assert at.partition().leader is None
    without_power(at, 1, 2)
    at.tell(1, 0, 30)
    at.tell(2, 0, 20)
    assert at.partition().leader == 1


def test_who_left_the_isr_and_was_done_without_is_not_waited_for():
    at = Quorum()
    at.create()
    at.lose(1)
    assert at.partition().last_isr == (1,)
    at.do(at.controller.tick(at.now))
    before = at.partition()
    for _ in range(2):
        at.now += 1.5
        at.beat(2)
        at.beat(3)
        at.do(at.controller.tick(at.now))
    assert at.partition() == replace(before, last_isr=()), "its leader was heard since"
    without_power(at, 2, 3)
    at.tell(2, 1, 10)
    at.tell(3, 1, 20)
    assert (at.partition().leader, at.partition().isr) == (3, (3,))


def test_a_leader_that_is_only_said_to_be_there_proves_nothing():
    """The controller is new, and has heard nobody."""
    at = Quorum()
    at.create()
    without_power(at, 1, beat=False)
    assert (at.partition().leader, at.partition().last_isr) == (2, (1,))
    at.controller.lead(at.now)
    for _ in range(19):
        at.now += 0.1
        at.do(at.controller.tick(at.now))
    assert at.partition().last_isr == (1,)


def test_the_only_replica_leads_again_after_its_power_cut():
    at = Quorum(1)
    at.do(at.controller.create_topic("t", T, 1, 1, 1, b"c"))
    without_power(at, 1)
    assert at.partition().leader is None
    at.tell(1, 0, 5)
    assert at.partition().leader == 1


def test_a_new_controller_is_told_again():
    at = Quorum()
    at.create()
    without_power(at, 1, 2, 3)
    at.tell(1, 0, 70)
    at.controller.lead(at.now)
    at.tell(2, 0, 60)
    at.tell(3, 0, 60)
    assert at.partition().leader is None
    at.tell(1, 0, 70)
    assert at.partition().leader == 1


def test_a_leader_whose_log_is_offline_gives_its_partition_to_another_of_the_isr():
    at = Quorum()
    before = at.create()
    at.logs(1, offline=[(T, 0), (b"x" * 16, 0)])
    it = at.partition()
    assert (it.leader, it.isr, it.offline) == (2, (2, 3), (1,))
    assert it.leader_epoch == before.leader_epoch + 1
    word = at.controller.image.assignment((T, 0))
    assert word is not None
    assert word.offline == (1,)
    at.logs(1, offline=[(T, 0)])
    assert at.partition() == it, "said again, it is no news"


def test_an_offline_log_is_not_let_into_the_isr_nor_to_lead_until_it_is_open_again():
    at = Quorum()
    at.create()
    at.logs(1, offline=[(T, 0)])
    assert at.ask(2, 3, 1).refused is ReplicaRefusal.NOT_ELIGIBLE
    assert at.do(at.controller.elect([(T, 0)])) == 0
    at.lose(2, 3)
    assert at.partition().leader is None
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 0
    at.start(2)
    at.start(3)
    at.start(1, offline=[(T, 0)])
    assert at.partition().offline == (1,), "a new life does not open a log"
    at.logs(1, online=[(T, 0)])
    assert at.partition().offline == ()
    assert at.ask(2, 3, 1).refused is None
    assert at.do(at.controller.elect([(T, 0)])) == 1
    assert at.partition().leader == 1


def test_a_new_life_whose_log_is_open_is_offline_no_more():
    at = Quorum()
    at.create()
    at.logs(1, offline=[(T, 0)])
    at.start(1)
    assert at.partition().offline == ()
    assert at.ask(2, 3, 1).refused is None


def test_the_last_of_the_isr_leads_on_with_its_log_offline_until_another_has_caught_up():
    at = Quorum()
    at.create()
    at.ask(1)
    before = at.partition()
    at.logs(1, offline=[(T, 0)])
    it = at.partition()
    assert (it.leader, it.isr, it.leader_epoch) == (1, (1,), before.leader_epoch)
    answer = at.ask(1, 2)  # it has read all of what can still be read
    assert (answer.refused, answer.isr) == (None, (2,))
    assert (at.partition().leader, at.partition().isr) == (2, (2,))


def test_a_last_one_that_is_offline_and_comes_back_so_leads_only_once_its_log_is_open():
    at = Quorum()
    at.create()
    at.ask(1)
    at.logs(1, offline=[(T, 0)])
    at.start(1, offline=[(T, 0)])
    assert (at.partition().leader, at.partition().isr) == (None, (1,))
    at.logs(1, online=[(T, 0)])
    assert (at.partition().leader, at.partition().isr) == (1, (1,))


def test_an_operator_may_take_a_partition_from_a_last_one_that_is_offline():
    at = Quorum()
    at.create()
    at.ask(1)
    at.logs(1, offline=[(T, 0)])
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert (at.partition().leader, at.partition().isr) == (2, (2,))


def test_a_follower_whose_log_is_offline_leaves_the_isr_and_others_that_are_fenced_stay():
    at = Quorum()
    at.create()
    at.logs(3, offline=[(T, 0)])
    assert (at.partition().leader, at.partition().isr) == (1, (1, 2))
    at.lose(2)
    at.logs(1, offline=[(T, 0)])
    assert (at.partition().leader, at.partition().isr) == (1, (1,)), "the last one"
    at.start(2)
    assert at.ask(1, 2).isr == (2,)


def test_only_the_present_life_of_a_broker_speaks_of_its_logs():
    at = Quorum()
    at.create()
    old = at.controller.image.brokers[1].epoch
    at.start(1)
    with pytest.raises(StaleBrokerEpochError):
        at.controller.logs(1, old, offline=[(T, 0)])


def test_a_log_that_is_gone_is_distrusted_and_the_others_of_that_broker_are_not():
    at = Quorum()
    at.create(2, is_synced=True)
    lost, kept = at.partition(0), at.partition(1)
    at.start(1, lost=[(T, 0), (b"x" * 16, 7)])
    assert 1 not in at.partition(0).isr
    assert set(at.partition(0).isr) == set(lost.isr) - {1}
    at.lose(2, 3)
    at.start(1)
    assert at.partition(0).leader is None
    assert at.partition(1).leader in (None, *kept.isr)


def test_a_log_that_is_gone_and_was_the_last_one_waits_for_an_operator():
    at = Quorum(1)
    at.do(at.controller.create_topic("t", T, 1, 1, 1, b"c"))
    at.start(1, lost=[(T, 0)])
    it = at.partition()
    assert (it.leader, it.isr, it.last_isr) == (None, (), (1,))
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1


def test_who_has_nothing_is_taken_by_an_unclean_election_only_where_nobody_else_is_there():
    """All were down, and the first controller took the one whose folder is gone for the last of the
    ISR: the others may have what it lost."""
    at = Quorum()
    at.create(1)
    at.lose(2, 3)
    at.lose(1)
    assert at.partition().isr == (1,)
    at.start(1, lost=[(T, 0)])
    assert (at.partition().isr, at.partition().blank) == ((), (1,))
    at.start(3)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert at.partition().leader == 3


def test_who_has_lost_its_folder_after_it_was_distrusted_comes_last_too():
    at = Quorum()
    at.create(1)
    at.lose(2, 3)
    at.lose(1)
    at.start(1, was_clean=False)
    assert (at.partition().last_isr[0], at.partition().blank) == (1, ())
    at.start(1, lost=[(T, 0)])
    assert (at.partition().isr, at.partition().blank) == ((), (1,))


def test_who_has_lost_its_folder_outside_the_isr_comes_last_too():
    at = Quorum()
    at.create(1)
    at.ask(1)
    at.lose(2, 3)
    at.lose(1)
    at.start(2, lost=[(T, 0)])
    at.start(3)
    assert (at.partition().isr, at.partition().leader) == ((1,), None)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert at.partition().leader == 3
    assert at.ask(3, 2).refused is None
    assert at.partition().blank == (), "it has something again"


def test_an_older_copy_is_taken_by_an_unclean_election_only_where_nobody_else_is_there():
    """It was the last one in sync: the others lack a moment, and the copy may lack weeks."""
    at = Quorum()
    at.create()
    copied_after = at.controller.image.brokers[1].epoch
    at.start(1, after=copied_after)
    at.ask(at.partition().leader, 1)
    at.do(at.controller.elect([(T, 0)]))
    assert at.ask(1).refused is None
    at.lose(1)
    at.start(1, after=copied_after)
    assert (at.partition().isr, at.partition().leader) == ((), None)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert at.partition().leader == 2


def test_an_unclean_election_takes_who_was_in_the_isr_before_who_was_not():
    """It lost power when nobody else was left, but one who never came back."""
    at = Quorum()
    at.create()
    at.do(at.controller.reassign([(T, 0)], (3, 1, 2)))
    at.do(at.controller.elect([(T, 0)], is_unclean=False))
    at.lose(3)
    assert at.partition().isr == (1, 2)
    at.lose(1, 2)
    assert at.partition().isr == (1, 2)
    at.start(2, was_clean=False)
    at.start(3)
    it = at.partition()
    assert (it.isr, it.leader) == ((1,), None)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 1
    assert at.partition().leader == 2


def test_an_unclean_election_takes_nobody_who_has_no_replica_any_more():
    at = Quorum()
    at.create()
    at.lose(3)
    at.start(3, lost=[(T, 0)])
    assert at.partition().blank == (3,)
    at.do(at.controller.reassign([(T, 0)], (1, 2)))
    assert at.partition().replicas == (1, 2)
    for broker in (2, 1):
        at.start(broker, was_clean=False, beat=False)
    before = at.partition()
    assert (before.isr, before.leader) == ((), None)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 0
    assert at.partition() == before, "nor is it forgotten who comes first"


def test_who_comes_back_in_the_isr_takes_the_partition_from_a_leader_whose_log_is_offline():
    """All were down, so that all stayed in the ISR; the first one that is back leads."""
    at = Quorum()
    at.create()
    at.lose(1, 2, 3)
    at.start(1)
    assert (at.partition().leader, at.partition().isr) == (1, (1, 2, 3))
    at.logs(1, offline=[(T, 0)])
    assert at.partition().leader == 1, "nobody else is there"
    at.start(2)
    assert (at.partition().leader, at.partition().isr) == (2, (2, 3))


def test_records_that_were_fsynced_outlive_power_cuts():
    at = Quorum()
    at.create(is_synced=True)
    at.lose(1, 2, 3)
    for broker in (1, 2, 3):
        at.start(broker, was_clean=False)
    assert at.partition().leader == 1
    at.start(1, was_clean=False)
    assert (at.partition().leader, at.partition().isr) == (1, (1,))


def test_a_new_disk_is_trusted_with_nothing():
    at = Quorum()
    at.create(is_synced=True)
    at.lose(2, 3)
    at.lose(1, 2, 3)
    at.start(1, folder=b"another")
    assert at.partition().isr == ()
    assert at.partition().blank == (1,)


def test_a_broker_that_leaves_gives_its_leadership_away_first():
    at = Quorum()
    at.create()
    assert at.beat(1).may_stop is False
    assert at.beat(1, leaving=True).may_stop is True
    assert (at.partition().leader, at.partition().isr) == (2, (2, 3))
    assert at.ask(2, 3, 1).refused == ReplicaRefusal.NOT_ELIGIBLE


def test_who_is_on_its_way_out_is_asked_into_no_isr():
    """It goes on fetching until it stops; each request would be a change that is refused, and one
    more entry of the log."""
    at = Quorum()
    at.create()
    at.beat(3, leaving=True)
    image = at.controller.image
    brokers = image.living()
    assert set(brokers) == {1, 2}
    word = image.assignment((T, 0))
    assert word is not None
    assert word.isr == (1, 2)
    leader = Replica(1, LogEnds(), ReplicaConfig(), brokers)
    leader.assign(at.now, word)
    epoch = image.brokers[3].epoch
    fetch = FetchRequest(1, 3, epoch, word.leader_epoch, 0, None, 0)
    assert isinstance(leader.fetch(at.now, fetch), Fetched)
    assert isinstance(leader.role, ReplicaLeader)
    assert leader.role.wanted is None


def test_the_last_one_of_an_isr_waits_with_leaving_for_nobody():
    at = Quorum()
    at.create()
    at.lose(2, 3)
    assert at.partition().isr == (1,)
    assert at.beat(1, leaving=True).may_stop is True
    assert (at.partition().leader, at.partition().isr) == (None, (1,))


# --- the ISR --------------------------------------------------------------------------------------
def test_changes_of_the_isr_are_of_the_present():
    at = Quorum()
    at.create()
    assert at.ask(1, 2).refused is None
    assert at.partition().isr == (1, 2)
    epoch = at.partition().partition_epoch
    assert at.ask(1, 2, 3, partition_epoch=epoch - 1).refused == ReplicaRefusal.OLD_PARTITION_EPOCH
    assert at.ask(1, 2, 3, leader=2).refused == ReplicaRefusal.OLD_EPOCH
    assert at.ask(2, 3).refused == ReplicaRefusal.NOT_A_REPLICA  # without the leader
    gone = at.controller.change_isr((b"x" * 16, 0), IsrChange(1, 0, 0, ((1, 1),)))
    assert gone.answer.refused == ReplicaRefusal.NOT_A_REPLICA


def test_a_refusal_of_who_is_in_it_makes_the_same_request_old():
    at = Quorum()
    at.create()
    at.lose(3)
    asked = at.partition().partition_epoch
    answer = at.ask(1, 2, 3)
    assert answer.refused == ReplicaRefusal.NOT_ELIGIBLE
    assert answer.partition_epoch == asked + 1
    at.start(3)
    late = at.ask(1, 2, 3, partition_epoch=asked)
    assert late.refused == ReplicaRefusal.OLD_PARTITION_EPOCH
    assert at.ask(1, 2, 3).refused is None


def test_a_life_that_is_over_joins_no_isr():
    at = Quorum()
    it = at.create()
    at.lose(3)
    at.start(3)
    it = at.partition()
    asked = IsrChange(1, it.leader_epoch, it.partition_epoch, ((1, 1), (2, 2), (3, 3)))
    assert at.do(at.controller.change_isr((T, 0), asked)).refused == ReplicaRefusal.OLD_BROKER


# --- topics ---------------------------------------------------------------------------------------
def test_topics_are_made_grown_changed_and_deleted():
    at = Quorum()
    at.create(partitions=4, factor=2)
    image = at.controller.image
    assert image.topic("t")[1].partitions == 4
    with pytest.raises(TopicExistsError):
        at.controller.create_topic("t", b"u" * 16, 1, 1, 1, b"")
    at.do(at.controller.add_partitions("t", 6))
    assert len(image.partitions_of(T)) == 6
    with pytest.raises(ConfigError, match="is not more"):
        at.controller.add_partitions("t", 6)
    epochs = [image.partitions[at_].partition_epoch for at_ in image.partitions_of(T)]
    at.do(at.controller.configure_topic("t", 2, b"new"))
    assert image.topic("t")[1].config == b"new"
    word = image.assignment((T, 0))
    assert word is not None
    assert word.min_insync == 2
    after = [image.partitions[at_].partition_epoch for at_ in image.partitions_of(T)]
    assert after == [epoch + 1 for epoch in epochs]
    at.do(at.controller.delete_topic("t"))
    assert not image.partitions
    assert not any(image.places.values())
    with pytest.raises(UnknownTopicError):
        image.topic("t")


@pytest.mark.parametrize(
    ("factor", "min_insync", "message"),
    [
        (4, 1, "3 brokers are there"),
        (3, 4, "min_insync"),
        (3, 0, "min_insync"),
        (0, 1, "min_insync"),
    ],
)
def test_topics_that_cannot_be(factor, min_insync, message):
    at = Quorum()
    with pytest.raises(ConfigError, match=message):
        at.controller.create_topic("t", T, 1, factor, min_insync, b"")


def test_partitions_are_bounded():
    at = Quorum(1, ControllerConfig(partitions_max=3))
    with pytest.raises(ResourceLimitError, match="partitions_max"):
        at.controller.create_topic("t", T, 4, 1, 1, b"")


def test_a_reassignment_joins_before_it_leaves():
    at = Quorum(5)
    at.create()
    at.do(at.controller.reassign([(T, 0)], (4, 5, 1)))
    it = at.partition()
    assert set(it.replicas) == {1, 2, 3, 4, 5}
    assert set(it.isr) == {1, 2, 3}
    at.ask(1, 2, 3, 4)
    assert set(at.partition().replicas) == {1, 2, 3, 4, 5}
    at.ask(1, 2, 3, 4, 5)
    it = at.partition()
    assert (it.replicas, set(it.isr), it.target) == ((4, 5, 1), {4, 5, 1}, ())
    assert it.leader == 1  # it is in the target, and stays
    with pytest.raises(ConfigError, match="unknown"):
        at.controller.reassign([(T, 0)], (1, 9))
    with pytest.raises(UnknownTopicError):
        at.controller.reassign([(b"x" * 16, 0)], (1,))


def test_a_snapshot_says_the_same():
    at = Quorum(5)
    at.create(partitions=7)
    at.do(at.controller.set("quota", "ann", b"q"))
    assert at.do(at.controller.pages(1000)) == 1
    assert at.do(at.controller.pages(1000)) == 1001
    at.lose(2)
    other = Controller()
    for record in unpack(pack(tuple(at.controller.image.records()))):
        other.replay(record)
    assert vars(other.image) == {
        **vars(at.controller.image),
        "places": {b: p for b, p in at.controller.image.places.items() if p},
    }


# --- placement ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("brokers", "partitions", "factor"), [(3, 30, 3), (5, 40, 3), (7, 63, 2)])
def test_leaders_and_followers_are_spread(brokers, partitions, factor):
    found = place(dict.fromkeys(range(1, brokers + 1), ""), partitions, factor, 2)
    leaders = Counter(replicas[0] for replicas in found)
    held = Counter(broker for replicas in found for broker in replicas)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert max(held.values()) - min(held.values()) <= brokers
    assert all(len(set(replicas)) == factor for replicas in found)


def test_replicas_are_on_different_racks_as_far_as_there_are_some():
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for replicas in place(racks, 30, 3, 0):
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    for replicas in place({1: "a", 2: "a", 3: "b"}, 30, 3, 0):
        assert set(replicas) == {1, 2, 3}


def test_who_is_gone_for_certain_is_not_waited_for():
    quorum = Quorum()
    quorum.controller.gone(2)
    quorum.controller.gone(9)
    quorum.do(quorum.controller.tick(quorum.now))
    assert [b for b, it in quorum.controller.image.brokers.items() if it.is_fenced] == [2]
    quorum.beat(2)
    quorum.controller.gone(2)
    quorum.beat(2)  # it is there all the same
    assert quorum.controller.tick(quorum.now).records == ()


def test_a_topic_that_is_created_again_with_its_id_is_the_same():
    quorum = Quorum()
    arguments = ("orders", T, 3, 3, 2, b"")
    assert quorum.do(quorum.controller.create_topic(*arguments)) == T
    again = quorum.controller.create_topic(*arguments)
    assert again == Decision((), T)
    with pytest.raises(TopicExistsError):
        quorum.controller.create_topic("orders", b"u" * 16, 3, 3, 2, b"")


def test_epochs_of_coordinators_rise():
    quorum = Quorum(1)
    assert [quorum.do(quorum.controller.coordinator_epoch()) for _ in range(3)] == [1, 2, 3]


def test_an_election_of_what_is_not_there_changes_nothing():
    assert Quorum().controller.elect([(T, 0)]) == Decision((), 0)


def test_a_copy_of_an_image_says_the_same_and_goes_its_own_way():
    quorum = Quorum()
    quorum.do(quorum.controller.create_topic("orders", T, 3, 3, 2, b""))
    image = quorum.controller.image
    copy = image.copied()
    said = list(image.records())
    assert list(copy.records()) == said
    assert (copy.ids, copy.places) == (image.ids, image.places)
    quorum.do(quorum.controller.delete_topic("orders"))
    assert list(copy.records()) == said
    assert copy.places[1] == {(T, 0), (T, 1), (T, 2)}


@pytest.mark.parametrize("is_synced", [False, True])
def test_an_older_copy_of_a_folder_is_trusted_with_nothing(is_synced):
    at = Quorum()
    at.create(is_synced=is_synced)
    at.lose(2, 3)
    at.do(at.controller.change_isr((T, 0), alone(at)))
    copied_after = at.controller.image.brokers[1].epoch
    latest = at.start(1, after=copied_after)  # it led alone, and leads on
    assert at.partition().leader == 1
    at.lose(1)
    at.start(1, after=copied_after)
    assert at.partition().leader is None  # it may lack what was acknowledged since
    assert at.partition().blank == (1,)
    at.lose(1)
    at.start(1, after=latest)
    assert at.partition().leader is None


def test_an_unclean_election_takes_the_lead_from_nobody_who_is_there():
    at = Quorum()
    at.create()
    at.lose(2)
    at.lose(2, 3)
    before = at.partition()
    assert (before.leader, before.isr) == (1, (1,))
    at.start(2)
    assert at.do(at.controller.elect([(T, 0)], is_unclean=True)) == 0
    assert at.partition() == before


def test_a_leader_of_an_earlier_epoch_is_told_so_when_it_asks_for_an_isr():
    at = Quorum()
    at.create()
    old = at.partition()
    at.lose(1)
    at.start(1)
    at.ask(2, 3, 1)
    at.do(at.controller.elect([(T, 0)]))
    it = at.partition()
    assert it.leader == old.leader == 1
    epochs = tuple((b, at.controller.image.brokers[b].epoch) for b in (1, 2))
    asked = IsrChange(1, old.leader_epoch, it.partition_epoch, epochs)
    told = at.do(at.controller.change_isr((T, 0), asked))
    assert (told.refused, told.isr) == (ReplicaRefusal.OLD_EPOCH, it.isr)
    assert at.partition() == it


def test_of_two_changes_of_a_setting_at_once_the_second_is_refused():
    at = Quorum()
    controller = at.controller
    at.do(controller.set("access", "", b"one", was=None, is_checked=True))
    at.do(controller.set("access", "", b"two", was=b"one", is_checked=True))
    with pytest.raises(ConfigError, match="somebody else"):
        controller.set("access", "", b"three", was=b"one", is_checked=True)
    assert controller.image.settings["access", ""] == b"two"
    assert at.do(controller.set("access", "", b"two", was=b"one", is_checked=True)) is None
    at.do(controller.set("access", "", None))
    assert ("access", "") not in controller.image.settings


def test_what_an_earlier_life_asked_is_no_older_copy_when_it_is_heard_late():
    at = Quorum()
    at.create(is_synced=True)
    earlier = at.controller.image.brokers[1].epoch
    at.start(1, after=earlier)
    before = at.partition(), at.controller.image.brokers[1]
    with pytest.raises(PenstockTimeout, match="is up with epoch"):
        at.start(1, after=earlier - 1)
    assert (at.partition(), at.controller.image.brokers[1]) == before
    at.lose(1)
    at.start(1, after=earlier - 1)
    assert 1 not in at.partition().isr, "and now it is one"


def test_a_folder_that_did_not_hear_of_its_registration_lacks_nothing():
    at = Quorum()
    at.create()
    at.lose(2, 3)
    at.do(at.controller.change_isr((T, 0), alone(at)))
    heard = at.controller.image.brokers[1].epoch
    at.start(1, after=heard, beat=False)
    at.start(1, after=heard, beat=False)
    at.start(1, after=heard)
    assert at.partition().leader == 1


def id_block(at: Quorum, broker: int) -> int:
    return at.controller.image.brokers[broker].id_block


def test_producer_ids_are_of_a_block_that_nobody_else_has_had():
    at = Quorum()
    assert [id_block(at, broker) for broker in (1, 2, 3)] == [1, 2, 3]
    first = at.start(1, after=at.controller.image.brokers[1].epoch, keeps_count=True)
    assert id_block(at, 1) == 1, "it was closed, and counts on"
    second = at.start(1, after=first)
    at.lose(1)
    assert id_block(at, 1) == 4, "what was not closed may be a copy of what went on"
    at.start(1, after=second, keeps_count=True)
    at.lose(1)
    at.start(1, after=second, keeps_count=True)
    assert id_block(at, 1) == 5, "an older copy"
    at.lose(1)
    at.start(1, folder=b"g", keeps_count=True)
    assert id_block(at, 1) == 6, "another folder"
    at.lose(1)
    at.do(at.controller.forget(1))
    at.start(1, folder=b"g", keeps_count=True)
    assert id_block(at, 1) == 7, "nobody knows any more how far it counted"


def test_a_folder_that_does_not_know_of_the_last_registration_gets_another_block():
    """Two copies of a folder that was closed, or a broker that was taken for dead and its copy:
    both say that they counted on, and neither has spoken to anybody since."""
    at = Quorum()
    closed = at.controller.image.brokers[1].epoch
    at.lose(1)
    copied = at.start(1, after=closed, keeps_count=True, beat=False)
    assert id_block(at, 1) == 1
    at.start(1, after=closed, keeps_count=True, beat=False)
    assert id_block(at, 1) == 4
    at.start(1, after=copied, keeps_count=True, beat=False)
    assert id_block(at, 1) == 5


def test_who_registers_again_for_want_of_an_answer_hears_of_the_same_block():
    at = Quorum(1)
    known = at.controller.image.brokers[1]
    again = at.controller.register(
        at.now, 1, known.incarnation, known.folder, known.endpoints, was_clean=True
    )
    assert again == Decision((), Registered(known.epoch, known.id_block))


def test_what_a_life_asked_that_is_over_changes_nothing():
    """It is heard after the next one has registered, and before that one's first heartbeat."""
    at = Quorum()
    at.create()
    first = at.controller.image.brokers[1].epoch
    assert at.ask(1).refused is None
    at.lose(1)
    assert (at.partition().isr, at.partition().leader) == ((1,), None)
    second = at.start(1, after=first, instead_of=first, beat=False)
    before = at.controller.image
    known, partition = before.brokers[1], at.partition()
    for clean in ({}, {"was_clean": False}, {"lost": [(T, 0)]}, {"folder": b"old"}):
        assert at.start(1, after=first, instead_of=first, **clean) == second
        assert (at.controller.image.brokers[1], at.partition()) == (known, partition)
    assert at.controller.counts["registrations_asked_again"] == 4
    third = at.start(1, after=first, instead_of=second)
    assert third > second
    assert (at.partition().isr, at.partition().leader) == ((1,), 1)


def test_a_broker_of_a_time_before_the_blocks_gets_one():
    at = Quorum(1)
    known = at.controller.image.brokers[1]
    at.controller.replay(made(BROKER, 1, value=replace(known, id_block=0)))
    at.start(1, after=known.epoch, keeps_count=True)
    assert id_block(at, 1) == 2


def test_blocks_of_producer_ids_have_an_end():
    at = Quorum(1)
    at.controller.replay(made(COUNTER, PRODUCER_IDS, value=ID_BLOCKS - 1))
    epoch = at.start(1)
    assert id_block(at, 1) == ID_BLOCKS - 1
    with pytest.raises(ResourceLimitError, match="used up"):
        at.start(1)
    assert at.controller.image.brokers[1].epoch == epoch
    at.start(1, after=epoch, keeps_count=True)
    assert id_block(at, 1) == ID_BLOCKS - 1


def alone(at: Quorum) -> IsrChange:
    """Broker 1 leads, and asks to be the only one in the ISR."""
    it = at.partition()
    assert it.leader == 1
    epoch = at.controller.image.brokers[1].epoch
    return IsrChange(1, it.leader_epoch, it.partition_epoch, ((1, epoch),))
