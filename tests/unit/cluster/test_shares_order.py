"""Share groups with an order of keys and with turns of tenants, held against plain models.

Of one key one record is leased at a time, and the next one only once all before it are over. Turns
are those of tenants with the fewest leased records. The log and a snapshot tell the same.
"""

from __future__ import annotations

import os
import random
from array import array
from collections import Counter

import msgspec
import pytest
from seeds import seed_of

from penstock.cluster.shares import ShareLimits, SharePartition, ShareSnapshot
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.keys import HashColumn, KeyOrder
from penstock.cluster.shares.state import Arrangement
from penstock.cluster.shares.window import BLOCK, LEASED
from penstock.core.errors import ConfigError

ROUNDS = int(os.environ.get("PENSTOCK_MACHINE_EXAMPLES", "60")) // 6
STEPS = 200
START = BLOCK - 40
MEMBERS = ("ann", "bob", "eve")
LIMITS = ShareLimits(max_deliveries=3, backoff_min=1.0, backoff_max=4.0, max_lease=4.0)
ENCODER = msgspec.msgpack.Encoder()
KEYED = Arrangement("key", "")
BOTH = Arrangement("key", "header:tenant")
FAIR = Arrangement("", "key")


def longest(low: float, high: float) -> float:
    return high


def data_of(hashes) -> bytes:
    return array("Q", hashes).tobytes()


def in_runs(runs) -> list[int]:
    return [offset for first, end in runs for offset in range(first, end)]


class Queue:
    """A partition of a group, what its log has, and what each record is known by."""

    def __init__(self, arrangement: Arrangement, limits: ShareLimits = LIMITS, start=0) -> None:
        self.live = SharePartition(start, longest, limits, arrangement)
        self.arrangement, self.limits, self.start = arrangement, limits, start
        self.log: list[bytes] = []
        self.base: tuple[ShareSnapshot | None, int] = (None, 0)
        self.keys: dict[int, int] = {}
        self.tenants: dict[int, int] = {}
        self.now_us = 1_000_000

    def decided(self, decision):
        data = rec.encode(decision.deltas)
        for delta in rec.decode(data):
            self.live.replay(delta)
        self.log.append(data)
        return decision.answer

    def tell(self, hashes, tenants=(), first=None, end=1 << 40):
        begun = self.live.frontier
        first = begun if first is None else first
        told = self.live.tell(first, data_of(hashes), data_of(tenants), end)
        fresh = self.decided(told)
        order, fair = self.arrangement
        for at in range(begun, begun + fresh):
            self.keys[at] = hashes[at - first] if order else 0
            self.tenants[at] = tenants[at - first] if fair else 0
        return fresh

    def lease(self, count=100, member="ann"):
        """The lease, and its offsets."""
        granted = self.decided(self.live.acquire(self.now_us, member, count, 1 << 40))
        return (0, []) if granted is None else (granted.lease, in_runs(granted.runs))

    def leased(self) -> dict[int, tuple[int, str]]:
        """By offset, its lease and member."""
        state = self.live._state
        return {
            offset: (number, lease.member)
            for number, lease in state.leases.items()
            for offset in in_runs(state.window.held(lease.runs, LEASED, number))
        }

    def accept(self, lease, *offsets):
        return self.decided(self.live.accept(lease, [(it, it + 1) for it in offsets]))

    def again(self) -> SharePartition:
        """As the log makes it, from the last snapshot on."""
        snapshot, read = self.base
        if snapshot is None:
            made = SharePartition(self.start, longest, self.limits, self.arrangement)
        else:
            made = SharePartition(snapshot, longest, self.limits)
        for data in self.log[read:]:
            for delta in rec.decode(data):
                made.replay(delta)
        return made

    def remember(self) -> None:
        data = ENCODER.encode(self.live.snapshot())
        self.base = msgspec.msgpack.decode(data, type=ShareSnapshot), len(self.log)


class OrderModel(Queue):
    """`over`: final or condemned. `waits`: by offset, when it is due."""

    def __init__(self, draw: random.Random, arrangement: Arrangement) -> None:
        super().__init__(arrangement, start=START)
        self.draw = draw
        self.begun_at = START
        self.over: set[int] = set()
        self.waits: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        verbs = [self.telling, self.leasing, self.answer, self.leave, self.wake, self.expire,
                 self.remember, self.seek]  # fmt: skip
        [verb] = self.draw.choices(verbs, [15, 30, 40, 3, 10, 4, 3, 1])
        verb()
        self.check()

    def telling(self) -> None:
        count = self.draw.randint(1, 30)
        before = self.draw.randint(0, min(5, self.live.frontier - START))
        told = [self.draw.choice((0, 1, 2, 3, self.draw.getrandbits(64))) for _ in range(count)]
        tenants = [self.draw.choice((0, 7, 8)) for _ in range(count)]
        first = self.live.frontier - before
        assert self.tell(told, tenants, first) == max(0, count - before)

    def leasing(self) -> None:
        suspects, held = self.live.suspects, Counter(self.tenants[at] for at in self.leased())
        may = self.heads()
        lease, offsets = self.lease(self.draw.randint(1, 12), self.draw.choice(MEMBERS))
        if suspects:
            assert len(offsets) == 1
        elif self.arrangement.fair:
            tenants = [self.tenants[at] for at in offsets]
            left = {self.tenants[at] for at in set(may) - set(offsets)}
            self.seen["turns"] += fair_turns(held, Counter(tenants), left)
        else:
            assert offsets == may[: len(offsets)], "from the lowest offset on"
        assert suspects or lease or not may
        for at in offsets:
            assert at in may or suspects
            if key := self.keys[at]:
                assert at >= self.last.get(key, 0), "of a key none comes behind a later one"
                self.last[key] = at
        self.seen["leased"] += len(offsets)

    def heads(self) -> list[int]:
        """Offsets that may be leased."""
        seen, found, leased = set[int](), [], self.leased()
        for at in range(self.begun_at, self.live.frontier):
            if at in self.over:
                continue
            key = self.keys[at]
            is_head = not key or key not in seen
            seen.add(key)
            self.seen["behind"] += not is_head
            if is_head and at not in leased and at not in self.waits:
                found.append(at)
        return found

    def answer(self) -> None:
        if not (leased := self.leased()):
            return
        lease = self.draw.choice(sorted({number for number, _ in leased.values()}))
        mine = sorted(at for at, (number, _) in leased.items() if number == lease)
        asked = sorted(self.draw.sample(mine, self.draw.randint(1, len(mine))))
        runs = [(at, at + 1) for at in asked]
        verb = self.draw.choice(["accept", "accept", "release", "reject", "fail", "delay"])
        times = {at: self.live.deliveries(at) for at in asked}
        ready = self.live.counts()["ready"]
        match verb:
            case "accept":
                answer = self.decided(self.live.accept(lease, runs))
                assert self.live.counts()["ready"] == ready + answer.freed
                self.over |= set(asked)
            case "release":
                self.decided(self.live.release(lease, runs))
            case "reject":
                self.decided(self.live.reject(self.now_us, lease, runs, "bad"))
                self.over |= set(asked)
            case "delay":
                self.decided(self.live.delay(self.now_us, lease, runs, self.now_us + 9))
                self.waits |= dict.fromkeys(asked, self.now_us + 9)
            case _:
                self.decided(self.live.fail(self.now_us, lease, runs, "bad", 2.0))
                dead = {at for at in asked if times[at] >= LIMITS.max_deliveries}
                self.over |= dead
                self.waits |= dict.fromkeys(set(asked) - dead, self.now_us + 2_000_000)
        self.seen[verb] += len(asked)

    def leave(self) -> None:
        gone = self.draw.choice(MEMBERS)
        mine = [at for at, (_, member) in self.leased().items() if member == gone]
        self.over |= {at for at in mine if self.live.deliveries(at) >= LIMITS.max_deliveries}
        self.decided(self.live.leave(self.now_us, gone, "gone"))
        self.seen["left"] += len(mine)

    def wake(self) -> None:
        self.now_us += self.draw.choice([500_000, 1_000_000, 4_000_000])
        due = [at for at, due_us in self.waits.items() if due_us <= self.now_us]
        assert self.decided(self.live.wake(self.now_us)) == len(due)
        for at in due:
            del self.waits[at]

    def expire(self) -> None:
        before = self.leased()
        times = {at: self.live.deliveries(at) for at in before}
        self.decided(self.live.expire(self.now_us))
        ended = before.keys() - self.leased().keys()
        self.over |= {at for at in ended if times[at] >= LIMITS.max_deliveries}
        self.seen["expired"] += len(ended)

    def seek(self) -> None:
        start = max(START, self.live.frontier - self.draw.randint(0, 30))
        self.decided(self.live.seek(start))
        self.begun_at = start
        self.keys, self.over, self.waits, self.last = {}, set(), {}, {}

    def check(self) -> None:
        held = [key for at in self.leased() if (key := self.keys[at])]
        assert len(held) == len(set(held)), "of one key one at a time"
        may = self.heads()
        counts = self.live.counts()
        assert counts["ready"] + counts["suspect"] == len(may)
        left = [at for at in self.keys if at not in self.over]
        assert counts["behind"] == len(left) - len(may) - len(self.leased()) - len(self.waits)


def fair_turns(held: Counter[int], given: Counter[int], left: set[int]) -> int:
    """Nobody got a record while another one with fewer had some ready. How often that was open."""
    for tenant in given:
        for other in left - {tenant}:
            assert held[tenant] + given[tenant] - 1 <= held[other] + given[other]
    return len(given) * len(left)


@pytest.mark.parametrize("arrangement", [KEYED, BOTH])
def test_of_a_key_one_is_leased_at_a_time_and_in_order(arrangement):
    draw = random.Random(seed_of(f"shares order {arrangement}"))
    seen: Counter[str] = Counter()
    for _ in range(ROUNDS):
        model = OrderModel(draw, arrangement)
        for number in range(STEPS):
            model.step()
            if number % 20 == 0:
                again = model.again()
                assert again.snapshot() == model.live.snapshot()
                assert again.lease(0, "ann", 50) == model.live.lease(0, "ann", 50)
        seen += model.seen
    rare = ("leased", "behind", "accept", "release", "reject", "fail", "delay", "left", "expired")
    turns = ("turns",) if arrangement.fair else ()
    assert min(seen[what] for what in (*rare, *turns)) >= ROUNDS, seen


def test_other_keys_go_on_while_one_waits_and_what_holds_it_up_holds_up_its_key():
    queue = Queue(KEYED)
    queue.tell([5, 5, 6, 0, 0, 5])
    lease, offsets = queue.lease()
    assert offsets == [0, 2, 3, 4], "one of each key, and all without a key"
    assert queue.lease(member="bob") == (0, [])
    queue.decided(queue.live.fail(queue.now_us, lease, [(0, 1)], "bad", 10.0))
    queue.accept(lease, 2, 3, 4)
    assert queue.lease() == (0, []), "its key waits with it"
    assert queue.live.counts() == {
        "ready": 0, "suspect": 0, "waiting": 1, "leased": 0, "condemned": 0, "behind": 2
    }  # fmt: skip
    queue.decided(queue.live.wake(queue.now_us + 10_000_000))
    lease, offsets = queue.lease()
    assert offsets == [0]
    queue.decided(queue.live.release(lease, [(0, 1)]))
    lease, offsets = queue.lease(member="bob")
    assert offsets == [0], "it was given back and is first still"
    assert queue.accept(lease, 0).freed == 1
    assert queue.lease()[1] == [1]


@pytest.mark.parametrize("how", ["accept", "reject", "fail", "leave"])
def test_the_next_of_a_key_comes_once_the_one_before_is_over_however_that_is(how):
    queue = Queue(KEYED, ShareLimits(max_deliveries=1))
    queue.tell([5, 5])
    lease, offsets = queue.lease()
    assert offsets == [0]
    now, machine, runs = queue.now_us, queue.live, [(0, 1)]
    queue.decided(
        machine.accept(lease, runs) if how == "accept"
        else machine.reject(now, lease, runs, "bad") if how == "reject"
        else machine.fail(now, lease, runs, "bad") if how == "fail"
        else machine.leave(now, "ann", "gone")
    )  # fmt: skip
    assert queue.lease(member="bob")[1] == [1]
    if how != "accept":
        assert queue.decided(machine.bury(runs)) == 1
        assert machine.counts()["leased"] == 1


def test_a_noisy_tenant_holds_nobody_up():
    queue = Queue(FAIR)
    queue.tell((), [7] * 500 + [8, 9])
    assert queue.lease(3)[1] == [0, 500, 501], "each tenant has a turn"
    lease, offsets = queue.lease(2, "bob")
    assert offsets == [1, 2], "others have nothing more"
    queue.tell((), [8, 8, 7])
    assert queue.lease(3, "eve")[1] == [3, 502, 503], "two of eight's, which has one"
    queue.accept(lease, 1, 2)
    assert queue.lease(1)[1] == [4], "seven has two, as eight has three"


def test_what_a_tenant_has_done_counts_no_more():
    queue = Queue(FAIR)
    queue.tell((), [7, 7, 7])
    lease, offsets = queue.lease()
    queue.accept(lease, *offsets)
    queue.tell((), [8, 8, 7])
    assert queue.lease(2)[1] == [3, 5]


def test_it_looks_ahead_as_far_as_its_bound_and_goes_on_as_that_is_worked_off():
    queue = Queue(KEYED, ShareLimits(ahead_max=10))
    assert queue.tell([5] * 30) == 10
    assert queue.live.is_full
    assert queue.tell([6]) == 0
    lease, offsets = queue.lease()
    assert offsets == [0]
    assert queue.tell([6] * 5, first=10) == 1
    assert queue.lease()[1] == [10], "another key goes on"
    queue.accept(lease, 0)
    assert queue.live.is_full is False
    assert queue.tell([0] * 9, first=5, end=11) == 0, "the log ends there"
    assert queue.tell([0] * 9, first=5) == 1


def test_what_is_told_twice_or_beyond_a_gap_begins_nothing():
    queue = Queue(BOTH)
    assert queue.tell([1, 2], [3, 4]) == 2
    assert queue.tell([1, 2, 5], [3, 4, 6], first=0) == 1, "the part that is new"
    assert queue.tell([9], [9], first=7) == 0
    assert queue.tell([9], [9], first=0) == 0
    for keys, tenants in ((b"1234567", b"1234567"), (b"", b"12345678"), (b"1" * 16, b"1" * 8)):
        with pytest.raises(ConfigError, match="hashes of keys and tenants"):
            queue.live.tell(3, keys, tenants, 99)
    assert queue.live.frontier == 3


def test_another_arrangement_sets_free_what_was_behind_and_holds_from_there_on():
    queue = Queue(KEYED)
    queue.tell([5, 5, 5])
    assert queue.lease()[1] == [0]
    for wanted in (Arrangement(), BOTH):
        queue.decided(queue.live.arrange(wanted))
        assert queue.live.arrange(wanted).deltas == ()
        assert queue.live.counts()["behind"] == 0
        assert queue.again().snapshot() == queue.live.snapshot()
    queue.arrangement = BOTH
    queue.tell([5, 5], [1, 1])
    assert queue.lease(member="bob")[1] == [1, 2, 3], "without order, and then with it"
    queue.remember()
    assert queue.again().lease(0, "eve", 9) == queue.live.lease(0, "eve", 9)


def test_hashes_of_what_is_over_take_no_room():
    order = KeyOrder()
    hashes = array("Q", range(1, 3 * BLOCK))
    order.begin(5, hashes)
    order.end([(5, 5 + len(hashes) - 1)])
    [(number, data)] = order.column.columns()
    assert number == 3
    assert sum(array("Q", data)) == len(hashes), "the last one is left"
    assert HashColumn.of_columns(order.column.columns()).columns() == order.column.columns()
    order.end([(4 + len(hashes), 5 + len(hashes))])
    assert order.column.columns() == []
    assert order._behind == {}
