"""A run through the catalogue: scratch copies side by side, a line a fault, a verdict at the end.

Owns the order, the choice of a share, and the table. Each worker thread has a copy of its own.
"""

from __future__ import annotations

import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutants.catalogue import Mutant, tests_of
from mutants.scratch import BROKEN, FOUND, Outcome, Scratch

Tell = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What became of each fault, by id. `unfair`: tests that fail without any fault."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unfair: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def complaints(self) -> list[str]:
        """What fails a campaign."""
        told = [f"{test}: fails without a fault" for test in self.unfair]
        for name, outcome in self.outcomes.items():
            if outcome.verdict == BROKEN:
                told.append(f"{name}: {outcome.by}\n{outcome.output[-2000:]}")
            elif outcome.verdict != FOUND:
                told.append(f"{name}: no test failed")
        return told

    def table(self) -> str:
        """Slowest last."""
        rows = sorted(self.outcomes.items(), key=lambda row: row[1].seconds)
        wide = max((len(name) for name, _ in rows), default=0)
        lines = [f"{name:{wide}}  {it.seconds:5.1f} s  {it.verdict} {it.by}" for name, it in rows]
        found = sum(it.verdict == FOUND for it in self.outcomes.values())
        lines.append(f"{found} of {len(rows)} faults found in {self.seconds / 60:.1f} minutes")
        return "\n".join(lines)


def share(mutants: Sequence[Mutant], seed: int) -> list[Mutant]:
    """The same faults in an order that a seed settles: a bounded run takes the first ones."""
    shuffled = list(mutants)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def run(
    mutants: Sequence[Mutant],
    *,
    jobs: int,
    tell: Tell,
    seconds_max: float | None = None,
    with_baseline: bool = True,
) -> Report:
    """Run the tests of each fault. None but the first begins after `seconds_max` seconds, of which
    a busy machine may need all to make the copies."""
    began = time.monotonic()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="pm-") as folder:
        Path(folder).chmod(0o711)  # the tests' PostgreSQL is another user than root
        copies = [Scratch(Path(folder, str(number))) for number in range(jobs)]
        if with_baseline:
            report.unfair = _baseline(copies, tests_of(mutants), tell)
        waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in mutants:
            waiting.put(mutant)

        def work(copy: Scratch) -> None:
            is_first = True
            while seconds_max is None or is_first or time.monotonic() - began < seconds_max:
                is_first = False
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    outcome = copy.run_with(mutant)
                except Exception as error:
                    outcome = Outcome(BROKEN, f"the run failed: {error!r}", 0.0)
                report.outcomes[mutant.id] = outcome
                done = f"{len(report.outcomes)}/{len(mutants)}"
                tell(f"{done} {mutant.id}: {outcome.verdict} {outcome.by} {outcome.seconds:.1f} s")

        _side_by_side(work, copies)
    report.seconds = time.monotonic() - began
    return report


def _baseline(copies: Sequence[Scratch], tests: Sequence[str], tell: Tell) -> tuple[str, ...]:
    """The tests that fail on the tree as it is, twice: once may be the load of the machine."""
    files = sorted({test.partition("::")[0] for test in tests})
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)
    failed: list[str] = []

    def work(copy: Scratch) -> None:
        while True:
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            own = tuple(test for test in tests if test.partition("::")[0] == file)
            outcome = copy.run(own)
            if outcome.verdict == FOUND:
                outcome = copy.run(own)
            if outcome.verdict == BROKEN:
                failed.append(f"{file} ({outcome.by})")
            failed.extend(outcome.failed)
            tell(f"without a fault: {file} {outcome.seconds:.1f} s")

    _side_by_side(work, copies)
    return tuple(failed)


def _side_by_side(work: Callable[[Scratch], None], copies: Sequence[Scratch]) -> None:
    """Returns, or raises what interrupts it, when no copy is at work any more."""
    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        for copy in copies:
            copy.end()
        for thread in threads:
            thread.join()
        raise
