"""The guarantees between two hosts: clients in one network namespace, the node in another.

Faults of the network (one-way cuts, a cable that is pulled, half-open connections, a slow line,
packets that are lost one by one and in bursts, doubled, late and out of order) and kill -9 of
gateway, node, writers and clients, in the middle of traffic; histories are judged by the checker.
Each trial is a seed: `PENSTOCK_SEED=n` begins with one. By default one trial has all guarantees at
once; `PENSTOCK_NETNS_SECONDS` is how long each guarantee is tried by itself (`make netns`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from crash.history_trial import WRITERS, check_amounts
from crash.node_under_test import NodeUnderTest
from crash.participants import Scene
from crash.process_pool import Nursery
from lossy_link import Roughness
from remote_trial import FarTrial
from seeds import seed_of, tell
from two_network_namespaces import ADDRESSES, CLIENT, NODE, Hosts

from penstock.testing import wait_until

ASKED = os.environ.get("PENSTOCK_NETNS_SECONDS")
SECONDS = float(ASKED or "0")
ROUNDS = int(os.environ.get("PENSTOCK_NETNS_ROUNDS", "7"))
URL = f"tcp://{ADDRESSES[NODE]}:9640"
TCP: dict[str, Any] = {"url": URL, "connect": {"transport": "tcp"}}
SCENES = {
    "at-least-once": Scene(("at-least-once",), readers=("read_uncommitted",), **TCP),
    "at-most-once": Scene(("at-most-once",), readers=(), **TCP),
    "exactly-once": Scene(("exactly-once",), transactors=1, readers=(), **TCP),
}
if ASKED is None:
    GUARANTEES = tuple(SCENES)
    SCENES = {"together": Scene(GUARANTEES, transactors=1, readers=("read_uncommitted",), **TCP)}
TRIALS_PER_NODE = 4
ALSO = "" if ASKED is None else "PENSTOCK_NETNS_SECONDS=0 "

pytestmark = [pytest.mark.crash, pytest.mark.timeout(SECONDS * 3 + 150)]


@pytest.fixture(scope="module")
def hosts():
    with Hosts() as found:
        yield found


@dataclass
class Story:
    """What the trials of one test came to."""

    guarantee: str
    first: int
    begun: float = field(default_factory=time.monotonic)
    trials: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    packets: Counter[str] = field(default_factory=Counter)
    """What became of those that took a rough line."""
    recoveries: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.trials > 0 and time.monotonic() - self.begun >= SECONDS

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        packets = ", ".join(f"{count} {what}" for what, count in self.packets.items())
        times = ", ".join(
            f"{kind} {statistics.median(each):.2f} (at most {max(each):.2f})"
            for kind, each in sorted(self.recoveries.items())
        )
        return (
            f"two hosts, {self.guarantee}: {self.trials} trials from seed {self.first} in "
            f"{time.monotonic() - self.begun:.0f} s, {self.figures['reads']} deliveries; {faults}; "
            f"rough lines: {packets or 'none'}; "
            f"seconds to recover from: {times}"
        )


@pytest.mark.parametrize("guarantee", SCENES)
def test_histories_between_two_hosts(guarantee, hosts, capsys):
    story = Story(guarantee, seed_of(f"two hosts, {guarantee}"))
    nursery = Nursery(hosts.on(CLIENT))
    before = hosts.smooth()
    try:
        while not story.is_over:
            some_trials(story, hosts, nursery)
    finally:
        nursery.close()
        story.packets = hosts.smooth() - before
        with capsys.disabled():
            tell(f"\n{story}")
    check_amounts(story.trials, story.figures, story.faults)


def test_nothing_passes_a_pulled_cable_or_a_cut(hosts):
    """The faults of the trials are what they say: answers stop, and come again."""
    nursery = Nursery(hosts.on(CLIENT))
    node = two_hosts_node(hosts)
    try:
        node.start()
        with node.connect() as client, client.admin() as admin:
            admin.create_topic("t")
        plan = {
            "role": "produce", "who": "p", "writer": 1, "seed": 1, "url": URL, "topics": ["t"],
            "connect": TCP["connect"], "options": {"linger": 0}, "burst": 1, "window": 0,
            "pause": 0.001, "events": str(node.folder / "p.jsonl"),
            "errors": str(node.folder / "p.err"),
        }  # fmt: skip
        hand = nursery.bear(plan)

        def goes_on() -> bool:
            """Whether another record is acknowledged within a second."""
            known = hand.lines()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: acks(hand.lines()) > acks(known) + 2, 1.0)
                return True
            return False

        wait_until(goes_on)
        for begin, end in (
            (hosts.unplug, hosts.plug),
            (lambda: hosts.silence(NODE), lambda: hosts.restore(NODE)),
            (lambda: hosts.silence(CLIENT), lambda: hosts.restore(CLIENT)),
        ):
            begin()
            wait_until(lambda: not goes_on(), what="silence")
            end()
            wait_until(goes_on, what="answers again")
        hand.ask_to_end()
        assert hand.wait(45)
        assert hand.last_words() == "left"
    finally:
        nursery.close()
        hosts.heal()
        node.clear()


@pytest.fixture
def rough_hosts(hosts):
    if hosts.line is None:
        pytest.skip(f"no line can be rough here: {hosts.why_no_line}")
    yield hosts
    hosts.heal()


class Seen(NamedTuple):
    """What became of numbered datagrams."""

    lost: int = 0
    in_a_row: int = 0
    """Lost ones, at most."""
    twice: int = 0
    overtaken: int = 0


ANY = 1 << 30
NUMBERED = 2_000
AHEAD_MAX = 100
"""On the way at a time."""


@pytest.mark.parametrize(
    ("roughness", "least", "most"),
    [
        (Roughness(), Seen(), Seen()),
        (Roughness(lost=0.1), Seen(lost=100), Seen(lost=400, in_a_row=20)),
        (Roughness(bursts=0.01, burst_max=0.05), Seen(in_a_row=30), Seen(lost=ANY, in_a_row=ANY)),
        (Roughness(twice=0.2), Seen(twice=200), Seen(twice=800)),
        (Roughness(late=0.2, late_max=0.01), Seen(overtaken=20), Seen(overtaken=1000)),
    ],
    ids=["smooth", "lost", "bursts", "twice", "late"],
)
def test_a_rough_line_is_what_it_says(roughness, least, most, rough_hosts):
    seed = seed_of("rough lines")
    rough_hosts.rough(roughness, seed)
    came = arrivals(rough_hosts, loses=roughness.lost + roughness.bursts > 0)
    seen = seen_in([number for number in came if number < NUMBERED])
    assert all(a <= b <= c for a, b, c in zip(least, seen, most, strict=True)), (seen, seed)


def arrivals(hosts: Hosts, loses: bool) -> list[int]:
    """Numbers of datagrams as they come, until it is clear what became of the first so many: all
    are there, or, where some are lost, later ones."""
    came: list[int] = []
    missing = set(range(NUMBERED))
    sent = 0
    deadline = time.monotonic() + 60
    with hosts.datagrams(NODE) as sender, hosts.datagrams(CLIENT) as receiver:
        while missing if not loses else max(came, default=0) < NUMBERED:
            assert time.monotonic() < deadline, f"{len(missing)} of {NUMBERED} do not come"
            # No queue on the way is to overflow: what would be lost there never comes.
            ahead = sent - (max(came, default=0) if loses else len(set(came)))
            is_far_ahead = ahead > AHEAD_MAX
            if loses or not is_far_ahead:
                for number in range(sent, sent + 20):
                    sender.sendto(b"%d" % number, receiver.getsockname())
                sent += 20
            wait = 0.2 if is_far_ahead else 0.001
            while select.select([receiver], [], [], wait)[0]:
                came.append(int(receiver.recv(16)))
                wait = 0.0
            missing.difference_update(came)
    return came


def seen_in(came: list[int]) -> Seen:
    first = list(dict.fromkeys(came))
    steps = [b - a for a, b in itertools.pairwise(sorted([-1, *first, NUMBERED]))]
    return Seen(
        lost=NUMBERED - len(first),
        in_a_row=max(steps) - 1,
        twice=len(came) - len(first),
        overtaken=sum(b < a for a, b in itertools.pairwise(first)),
    )


def test_cuts_hold_for_a_rough_line_too(rough_hosts):
    """And it is one again when they are over."""
    hosts = rough_hosts
    numbers = itertools.count()
    packets = hosts.rough(Roughness(), 0)["packets"]
    with hosts.datagrams(NODE) as sender, hosts.datagrams(CLIENT) as receiver:

        def arrives(within: float) -> bool:
            """Whether one that is sent now comes."""
            said = b"%d" % next(numbers)
            sender.sendto(said, receiver.getsockname())
            while select.select([receiver], [], [], within)[0]:
                if receiver.recv(16) == said:
                    return True
            return False

        for begin, end in (
            (hosts.unplug, hosts.plug),
            (lambda: hosts.silence(NODE), lambda: hosts.restore(NODE)),
        ):
            wait_until(lambda: arrives(0.1))
            begin()
            assert not arrives(0.3)
            end()
            wait_until(lambda: arrives(0.1))
    assert hosts.smooth()["packets"] >= packets + 4


def acks(lines: list[bytes]) -> int:
    return sum(line.startswith(b'{"e": "acks"') for line in lines)


def some_trials(story: Story, hosts: Hosts, nursery: Nursery) -> None:
    """On one node."""
    node = two_hosts_node(hosts)
    failed = False
    try:
        node.start()
        for number in range(TRIALS_PER_NODE):
            if not story.is_over:
                failed = True
                one_trial(story, hosts, node, nursery, f"n{number}")
                failed = False
        status = node.stop()
        assert status == 0, f"the node ended with {status}"
        node.check_gone()
    finally:
        hosts.heal()
        node.clear(keep=failed)


def two_hosts_node(hosts: Hosts) -> NodeUnderTest:
    node = NodeUnderTest(
        before=hosts.on(NODE),
        listen=URL,
        insecure=True,
        writers_max=WRITERS,
        restart_backoff=0.001,
        restart_backoff_max=0.02,
        client_heartbeat=0.2,
        client_silence_max=1.0,
    )
    node.transport = "shm"  # the trial itself looks on from beside the node
    return node


def one_trial(
    story: Story, hosts: Hosts, node: NodeUnderTest, nursery: Nursery, prefix: str
) -> None:
    seed = story.first + story.trials
    trial = FarTrial(hosts, node, nursery, SCENES[story.guarantee], seed, prefix)
    try:
        report = trial.run(random.Random(seed).randint(ROUNDS - 2, ROUNDS + 2))
    except Exception as error:
        trial.keep()
        raise AssertionError(
            f"{error}\n--- seed {seed}: PENSTOCK_SEED={seed} {ALSO}python -m pytest --timeout=0 "
            f"tests/cluster -k {story.guarantee}\n--- kept in {node.folder}"
            f"\n--- trace\n{trial.trace_text()}\n--- node\n{node.tail()}"
        ) from error
    finally:
        trial.close()
    story.trials += 1
    story.faults += trial.tally
    story.figures.update(report.figures)
    for kind, times in trial.recoveries.items():
        story.recoveries.setdefault(kind, []).extend(times)
