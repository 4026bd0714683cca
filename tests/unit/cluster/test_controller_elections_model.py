"""Whatever happens to brokers and partitions: who could lead leads, and nobody else."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from msgspec.structs import replace
from seeds import seed_of
from unit.cluster.test_controller import Quorum, T

from penstock.cluster.controller import ControllerConfig, Place
from penstock.cluster.controller.records import Partition
from penstock.cluster.replica import LogEnd
from penstock.core.errors import PenstockError

RUNS = 150
STEPS = 60


class Ordeal:
    """A cluster, and all that may happen to it."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.numbers = range(1, draw.choice([3, 4, 5]) + 1)
        interval = draw.choice([0.0, 1.0])
        self.at = Quorum(len(self.numbers), ControllerConfig(balance_interval=interval))
        self.at.do(
            self.at.controller.create_topic(
                "t", T, draw.choice([1, 2]), 3, draw.choice([1, 2]), b"c",
                is_synced=draw.random() < 0.3,
            )
        )  # fmt: skip
        self.steps: list[str] = []
        self.told: dict[tuple[int, Place], LogEnd] = {}
        self.recovered = 0

    def step(self) -> None:
        draw, at, controller = self.random, self.at, self.at.controller
        broker = draw.choice(self.numbers)
        place = draw.choice(list(controller.image.partitions))
        events: dict[str, Callable[[], object]] = {
            "restart": lambda: at.start(broker, beat=draw.random() < 0.8),
            "power cut": lambda: at.start(broker, was_clean=False, beat=draw.random() < 0.8),
            "lost log": lambda: at.start(broker, lost=[place], beat=draw.random() < 0.8),
            "other folder": lambda: at.start(broker, folder=b"%d" % draw.randrange(100)),
            "older copy": lambda: at.start(broker, after=0),
            "away": lambda: at.lose(*draw.sample(self.numbers, draw.choice(self.numbers))),
            "leaving": lambda: at.beat(broker, leaving=True),
            "back": lambda: at.beat(broker),
            "isr": lambda: self._isr(place),
            "isr again": lambda: self._isr(place),
            "offline": lambda: at.logs(broker, offline=[place]),
            "tells": lambda: self._tells(broker, place),
            "all tell": lambda: self._all_tell(place),
            "time": self._time,
            "online": lambda: at.logs(broker, online=[place]),
            "preferred": lambda: at.do(controller.elect([place])),
            "unclean": lambda: at.do(controller.elect([place], is_unclean=True)),
            "named": lambda: at.do(controller.reassign([place], self._some())),
            "counted": lambda: at.do(
                controller.reassign([place], replication_factor=draw.randint(1, 3))
            ),
            "min_insync": lambda: at.do(
                controller.configure_topic("t", draw.choice([1, 2]), b"%d" % len(self.steps))
            ),
            "forgotten": lambda: at.do(controller.forget(broker)),
            "balance": lambda: at.do(controller.balance(at.now)),
        }
        kind = draw.choice(list(events))
        self.steps.append(f"{kind} {broker} {place[1]}")
        with contextlib.suppress(PenstockError, KeyError):  # refused, or of nobody
            events[kind]()

    def _some(self) -> tuple[int, ...]:
        return tuple(self.random.sample(self.numbers, self.random.randint(1, 3)))

    def _tells(self, broker: int, place: Place) -> None:
        """What it has, where nobody leads."""
        word = self.at.partition(place[1]).leader_epoch
        end = LogEnd(word, self.random.choice([None, 0, 1, 2]), self.random.randrange(50))
        self.told[broker, place] = end
        with contextlib.suppress(PenstockError, KeyError):
            epoch = self.at.controller.image.brokers[broker].epoch
            self.at.do(self.at.controller.log_ends(broker, epoch, [(place, end)]))

    def _all_tell(self, place: Place) -> None:
        for broker in self.numbers:
            self._tells(broker, place)

    def _time(self) -> None:
        """Goes by, and everybody that is up is heard."""
        at = self.at
        for _ in range(4):
            at.now += 1.0
            for broker, known in list(at.controller.image.brokers.items()):
                if not known.is_fenced:
                    at.beat(broker)
            at.do(at.controller.tick(at.now))

    def _isr(self, place: Place) -> None:
        it = self.at.partition(place[1])
        if it.leader is not None:
            joined = self.random.sample(it.replicas, self.random.randint(0, len(it.replicas)))
            self.at.ask(*dict.fromkeys((it.leader, *joined)), number=place[1])

    def check(self, before: dict[Place, Partition]) -> None:
        image = self.at.controller.image
        for place, it in image.partitions.items():
            what = (self.steps[-4:], before[place], it, image.brokers)
            known = {*it.isr, *it.target, *it.offline}
            assert known <= set(it.replicas), what
            fit = {b for b in it.isr if image.may_lead(b) and b not in it.offline}
            if fit:
                assert it.leader in fit, what
            else:
                assert it.leader is None or it.leader in it.isr, what
            assert it.leader is None or image.may_lead(it.leader), what
            assert not it.target or not fit.issuperset(it.target), what
            if it != replace(before[place], last_isr=it.last_isr):  # which may be forgotten
                assert it.partition_epoch > before[place].partition_epoch, what
            assert not set(it.last_isr) & set(it.isr), what
            assert {*it.last_isr, *it.blank} <= set(it.replicas), what
            if it.unclean != before[place].unclean and not self.steps[-1].startswith("unclean"):
                self.recovered += 1
                last = before[place].last_isr
                assert it.leader in last, what
                assert not before[place].isr, what
                assert not set(last) & {*before[place].blank, *before[place].offline}, what
                worths = {b: self.told[b, place] for b in last}
                most = max(
                    (-1 if e.last_epoch is None else e.last_epoch, e.log_end)
                    for e in worths.values()
                )
                mine = worths[it.leader]
                assert (-1 if mine.last_epoch is None else mine.last_epoch, mine.log_end) == most
            if it.leader != before[place].leader:
                assert it.leader_epoch > before[place].leader_epoch, what


def test_who_could_lead_leads_and_nobody_else():
    first = seed_of("elections")
    recovered = 0
    for seed in range(first, first + RUNS):
        ordeal = Ordeal(seed)
        for _ in range(STEPS):
            before = dict(ordeal.at.controller.image.partitions)
            ordeal.step()
            ordeal.check(before)
        recovered += ordeal.recovered
    assert recovered, "in no run all of a last ISR were back"
