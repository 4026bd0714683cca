"""A deterministic simulator for protocols: a virtual clock, a bad network, crashes, and one seed.

    sim = Simulation(seed=7)
    network = Network(sim, FOUL)
    server, client = Server(sim, network, "server"), Client(sim, network, "client")
    server.start(), client.start()
    sim.invariants.append(lambda: check(server))
    sim.run(seconds=60)

Nothing in here does I/O, reads a clock, or starts a thread; a run of a minute takes milliseconds.
The same seed gives the same run, event by event: `sim.trace()` is its hash, and a failure names the
seed. Penstock's own protocol machines are run in it (`make sim`).
"""

from __future__ import annotations

from penstock.testing.sim.disk import Disk
from penstock.testing.sim.kernel import Simulation, SimulationError
from penstock.testing.sim.network import FAIR, FOUL, Message, Network, Weather
from penstock.testing.sim.nodes import Ask, NoAnswer, Node, Reply, Sleep, Task

__all__ = [
    "FAIR",
    "FOUL",
    "Ask",
    "Disk",
    "Message",
    "Network",
    "NoAnswer",
    "Node",
    "Reply",
    "Simulation",
    "SimulationError",
    "Sleep",
    "Task",
    "Weather",
]
