"""The judgement of a history: every check, and what it found, by name.

    report = check(load({"p0": lines, "c0": lines}))
    assert not report.broken, report

Definitions are those of Jepsen's Kafka workload, where it has them; each check's module says them
in its first lines. Pure: lines in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from histories import (
    guarantee_checks,
    log_checks,
    poll_checks,
    share_checks,
    transaction_checks,
)
from histories.anomalies import Anomaly
from histories.events import History
from histories.facts import Facts

INTERLEAVING: Final = frozenset({"G0", "G1c with writes"})
"""Told and not promised: a log takes concurrent transactions' records as they come."""

CHECKS: Final = (
    *log_checks.CHECKS,
    *poll_checks.CHECKS,
    *transaction_checks.CHECKS,
    *guarantee_checks.CHECKS,
    *share_checks.CHECKS,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a history, and how much of it there was to look at."""

    anomalies: tuple[Anomaly, ...]
    figures: Mapping[str, int]
    noted: tuple[Anomaly, ...] = field(default=())
    """What is allowed, and worth knowing."""

    @property
    def broken(self) -> bool:
        return bool(self.anomalies)

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.anomalies}

    def __str__(self) -> str:
        head = ", ".join(f"{count} {name}" for name, count in self.figures.items())
        return "\n".join([f"of {head}", *map(str, self.anomalies or ("nothing is wrong",))])


def figures_of(history: History) -> dict[str, int]:
    """How much there is to look at."""
    return {
        "lines": history.lines,
        "sends": len(history.sends),
        "acknowledgements": len(history.acks),
        "reads": len(history.polls),
        "transactions": len(history.transactions),
        "commits": len(history.commits) + len(history.claims),
        "jobs": len(history.jobs),
        "jobs in order": sum(
            taken.key is not None and bool(history.readers[taken.reader].order)
            for taken in history.jobs
        ),
        "kept answers": sum(taken.is_kept for taken in history.jobs),
        "dead letters": len(history.dead),
    }


def check(history: History) -> Report:
    """Run every check."""
    facts = Facts(history)
    anomalies = [anomaly for each in CHECKS for anomaly in each(facts)]
    return Report(
        tuple(each for each in anomalies if each.name not in INTERLEAVING),
        figures_of(history),
        tuple(each for each in anomalies if each.name in INTERLEAVING),
    )
