"""The simulator itself: one seed, one run; what the network, a crash and a disk do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim.world import World

from penstock.testing.sim import (
    FAIR,
    FOUL,
    Ask,
    Disk,
    Network,
    NoAnswer,
    Node,
    Reply,
    Simulation,
    SimulationError,
    Sleep,
    Task,
    Weather,
)

TESTS = Path(__file__).resolve().parents[1]


class Echo(Node):
    asked = 0

    def on_ask(self, source: str, question: str, reply: Reply) -> None:
        self.asked += 1
        reply(question.upper())


class Asker(Node):
    """Asks for one letter after the other."""

    def on_start(self) -> None:
        self.heard: list[str] = []
        self.spawn(self.run())

    def run(self) -> Task:
        for letter in "abcdefgh":
            try:
                self.heard.append((yield Ask("echo", letter, timeout=0.1, tries=3)))
            except NoAnswer:
                self.heard.append("-")
            yield Sleep(0.1)


def pair(seed: int = 1, weather: Weather = FAIR) -> tuple[Simulation, Echo, Asker]:
    sim = Simulation(seed)
    network = Network(sim, weather)
    echo, asker = Echo(sim, network, "echo"), Asker(sim, network, "asker")
    echo.start()
    asker.start()
    return sim, echo, asker


def test_what_is_asked_is_answered_in_virtual_time():
    sim, echo, asker = pair()
    assert sim.run(10.0, until=lambda: len(asker.heard) == 8)
    assert asker.heard == list("ABCDEFGH")
    assert echo.asked == 8
    assert 0.7 < sim.now < 1.0


def test_a_foul_network_loses_doubles_and_delays():
    sim, echo, asker = pair(3, Weather(loss=0.3, duplicate=0.3, slow=0.3, slow_max=1.0))
    sim.run(20.0)
    assert echo.asked > 8
    assert asker.network.counts["lost"] > 0
    assert asker.network.counts["doubled"] > 0
    assert set(asker.heard) <= set("ABCDEFGH-")


def test_a_cut_is_one_way():
    sim, echo, asker = pair()
    asker.network.cut("echo", "asker")
    sim.run(0.35)
    assert (echo.asked, asker.heard) == (3, ["-"])
    asker.network.heal()
    sim.run(10.0)
    assert asker.heard == list("-BCDEFGH")


def test_a_crash_ends_tasks_timers_and_answers_under_way():
    sim, _, asker = pair()
    sim.run(0.25)
    assert asker.heard == ["A", "B", "C"]
    asker.crash()
    sim.run(5.0)
    assert asker.heard == ["A", "B", "C"]
    asker.start()
    sim.run(5.0)
    assert asker.heard == list("ABCDEFGH")


def test_who_is_paused_does_everything_later():
    sim, echo, asker = pair()
    echo.pause()
    sim.run(2.0)
    assert asker.heard == ["-"] * 5
    echo.resume()
    sim.run(2.0)
    assert asker.heard[:5] == ["-"] * 5
    assert asker.heard[-1] == "H"


def test_a_power_cut_takes_only_what_was_not_fsynced():
    lost = set()
    for seed in range(40):
        disk: Disk[int] = Disk(Simulation(seed))
        for batch in range(6):
            disk.append(batch)
        disk.sync(3)
        lost.add(disk.power_cut())
        assert disk.batches == list(range(len(disk.batches)))
    assert lost == {0, 1, 2, 3}


def test_a_failure_names_its_seed_and_shows_what_happened():
    sim, echo, _ = pair(seed=4711)

    def at_most_four() -> None:
        assert echo.asked <= 4, "it was asked too often"

    sim.invariants.append(at_most_four)
    with pytest.raises(
        SimulationError, match=r"seed 4711, step .*it was asked too often"
    ) as raised:
        sim.run(10.0)
    assert raised.value.seed == 4711
    assert "asker > echo" in str(raised.value)


def test_the_same_seed_is_the_same_run_and_another_is_another():
    traces = []
    for seed in (1, 1, 2):
        sim, _, _ = pair(seed, FOUL)
        sim.run(5.0)
        traces.append(sim.trace())
    assert traces[0] == traces[1] != traces[2]


def test_a_whole_world_replays_to_the_same_trace_in_another_process():
    """Also where strings hash differently, so that the order of sets is another one."""
    program = "from sim.world import World; w = World(5); w.run(3.0); print(w.sim.trace())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "99"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTS, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    world = World(5)
    world.run(3.0)
    assert done.stdout.split() == [world.sim.trace()]
