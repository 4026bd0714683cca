"""What another tenant notices of each attack, over a real gateway with keys.

    python -m attacks.measure [--rounds 5] [--seconds 2] [--brokers 3] [text ...]

A text chooses attacks by their name. One tenant sends, reads, commits and looks up all the time.
Rounds alternate: it is alone; a tenant who means well brings as much as it can beside it; an
attacker does. Printed is the 99th percentile of each, and how many times that beside the
well-behaved one the attack costs. Ends with status 1 where that is over `TIMES_MAX` for a verb.
Other work on the machine counts, so run it where nothing else does, and compare in pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from attacks.loads import PAIRS
from attacks.site import Site, served
from node_helpers import environment

TIMES_MAX: Final = 2.0
SHORT: Final = 1.0
"""Milliseconds: what is below that beside an attack is no harm, whatever it was before."""
SIDES: Final = ("alone", "behaved", "attack")
VERBS: Final = ("send", "read", "commit", "look up")


class Helper:
    """A process that works for as many seconds as it is told, line by line."""

    def __init__(self, *command: str) -> None:
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**environment(), "PYTHONPATH": tests}, cwd=tests,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline() != "ready\n":
            self.close()
            raise RuntimeError(f"{command} did not begin")

    def begin(self, seconds: float) -> None:
        self._input.write(f"{seconds}\n")
        self._input.flush()

    def result(self) -> Any:
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def helper(*command: str) -> Iterator[Helper]:
    made = Helper(*command)
    try:
        yield made
    finally:
        made.close()


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else float("nan")


@dataclass
class Outcome:
    """`rounds`: by side, what each round measured by verb. `steps`: by side, the load's."""

    rounds: dict[str, list[dict[str, list[float]]]] = field(
        default_factory=lambda: {side: [] for side in SIDES}
    )
    steps: dict[str, list[int]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def p99(self, side: str, verb: str) -> float:
        """Of all rounds together."""
        return p99([took for each in self.rounds[side] for took in each.get(verb, [])])

    def times(self, verb: str) -> float:
        return self.p99("attack", verb) / self.p99("behaved", verb)

    def is_harm(self, verb: str) -> bool:
        return self.times(verb) > TIMES_MAX and self.p99("attack", verb) > SHORT


def measure(site: Site, pair: str, rounds: int, seconds: float) -> Outcome:
    where, outcome = json.dumps(asdict(site)), Outcome()
    with ExitStack() as stack:
        victim = stack.enter_context(helper("attacks.victim", where))
        loads = {
            side: stack.enter_context(helper("attacks.tenant", where, pair, side))
            for side in SIDES[1:]
        }
        for number in range(rounds):
            for place in range(len(SIDES)):
                side = SIDES[(place + number) % len(SIDES)]
                if side in loads:
                    loads[side].begin(seconds)
                victim.begin(seconds)
                outcome.rounds[side].append(victim.result())
                if side in loads:
                    outcome.steps[side].append(loads[side].result())
    return outcome


def told(pair: str, outcome: Outcome, seconds: float) -> Iterator[str]:
    rates = {side: statistics.median(outcome.steps[side]) / seconds for side in SIDES[1:]}
    yield f"{pair} ({rates['attack']:,.0f}/s; the well-behaved one {rates['behaved']:,.0f}/s)"
    for verb in VERBS:
        figures = "".join(f"{outcome.p99(side, verb):10.2f}" for side in SIDES)
        mark = "  <- over" if outcome.is_harm(verb) else ""
        yield f"    {verb:8} p99 ms{figures}   x {outcome.times(verb):.2f}{mark}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="attacks.measure", description=__doc__)
    parser.add_argument("text", nargs="*", help="part of an attack's name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side of a round")
    parser.add_argument("--brokers", type=int, default=1)
    asked = parser.parse_args()
    chosen = [pair for pair in PAIRS if not asked.text or any(t in pair for t in asked.text)]
    print(f"{'':19}{''.join(f'{side:>10}' for side in SIDES)}", flush=True)
    harms = 0
    for pair in chosen:
        with tempfile.TemporaryDirectory() as folder, served(Path(folder), asked.brokers) as site:
            outcome = measure(site, pair, asked.rounds, asked.seconds)
        print(*told(pair, outcome, asked.seconds), sep="\n", flush=True)
        harms += sum(map(outcome.is_harm, VERBS))
    print(f"{len(chosen)} attacks, {harms} verbs over {TIMES_MAX:g} times")
    return 1 if harms or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
