"""The network of a simulation: it delays, loses, doubles and reorders, and can be cut one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from penstock.testing.sim.kernel import Simulation


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of the network. Delays are drawn for each message, so messages overtake each
    other; `slow` of them take `slow_max` instead of `delay_max` seconds."""

    delay_min: float = 0.0005
    delay_max: float = 0.01
    slow: float = 0.0
    slow_max: float = 3.0
    loss: float = 0.0
    duplicate: float = 0.0


FAIR = Weather()
FOUL = Weather(slow=0.05, loss=0.05, duplicate=0.05)


class Message(NamedTuple):
    """A question, or the answer to the one of that number. `what` names it in the trace."""

    number: int
    is_answer: bool
    body: Any

    @property
    def what(self) -> str:
        return f"{'answer' if self.is_answer else 'ask'} {self.number} {type(self.body).__name__}"


class Receiver(Protocol):
    """A node, as the network sees it. `life` counts its starts."""

    name: str
    is_up: bool
    life: int

    def receive(self, source: str, message: Message) -> None: ...


class Network:
    def __init__(self, sim: Simulation, weather: Weather = FAIR) -> None:
        self.sim = sim
        self.weather = weather
        self.nodes: dict[str, Receiver] = {}
        self.counts = {"sent": 0, "lost": 0, "doubled": 0}
        self._cuts: set[tuple[str, str]] = set()

    def add(self, node: Receiver) -> None:
        if node.name in self.nodes:
            raise ValueError(f"there is a node {node.name!r} already")
        self.nodes[node.name] = node

    def cut(self, source: str, target: str) -> None:
        """Drops all messages from `source` to `target` from now on; the other way is open."""
        self._cuts.add((source, target))

    def mend(self) -> None:
        """Ends all cuts."""
        self._cuts.clear()

    def heal(self) -> None:
        """Ends all cuts and faults. Messages on their way arrive as they would have."""
        self._cuts.clear()
        self.weather = FAIR

    def send(self, source: str, target: str, message: Message) -> None:
        random, weather = self.sim.random, self.weather
        self.counts["sent"] += 1
        copies = 1
        if random.random() < weather.duplicate:
            self.counts["doubled"] += 1
            copies = 2
        for _ in range(copies):
            if random.random() < weather.loss:
                self.counts["lost"] += 1
                continue
            longest = weather.slow_max if random.random() < weather.slow else weather.delay_max
            delay = random.uniform(weather.delay_min, longest)
            self.sim.after(
                delay,
                f"{source} > {target}: {message.what}",
                lambda: self._arrive(source, target, message),
            )

    def _arrive(self, source: str, target: str, message: Message) -> None:
        node = self.nodes[target]
        if (source, target) in self._cuts or not node.is_up:
            self.counts["lost"] += 1
        else:
            node.receive(source, message)
