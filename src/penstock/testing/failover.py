"""The events after the death of a broker, as a lookout and a pulse saw them.

Owns the order of events: fencing, the deciding controller, the leader, the first acknowledgement,
replicas in sync again. Computed from what was recorded, as often as one likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.testing.cluster_monitor import Lookout, Name, View
from penstock.testing.probe import Pulse

UNDER_WAY: Final = 0.02
"""Seconds after a death in which an acknowledgement may still come that was under way."""


@dataclass(frozen=True, slots=True)
class Failover:
    """Times are seconds after the death; None: not seen yet."""

    victim: int
    led: int
    """Partitions that it led."""
    was_controller: bool
    fenced: float | None
    controller: int
    """The controller in the end; -1: none."""
    decided: float | None
    """When another one decided, if it was the victim."""
    heir: int
    """The leader of the pulse's partition in the end."""
    led_again: float | None
    acknowledged: float | None
    """When the pulse had its first answer under another leader."""
    outage: float
    """The longest time in which the pulse had no answer."""
    in_sync: float | None
    """When no replica was missing any more, once some were."""


def failover(
    lookout: Lookout, pulse: Pulse, name: Name, victim: int, killed_at: float
) -> Failover | None:
    """Returns the events after the death of the broker that led partition `name`, to which the
    pulse sends. None where nothing was seen of it."""
    views = list(lookout.since(killed_at))
    if not views:
        return None
    before, now = views[0], views[-1]

    def is_led(view: View) -> bool:
        placed = view.partitions.get(name)
        return placed is not None and placed.leader not in (-1, victim)

    was_controller = before.controller == victim
    beat = pulse.first_after(killed_at + UNDER_WAY)
    missed = lookout.first(killed_at, lambda view: bool(view.behind()))
    healed = None
    if missed is not None:
        later = lookout.first(killed_at + missed, lambda view: not view.behind())
        healed = None if later is None else missed + later
    placed = now.partitions.get(name)
    return Failover(
        victim,
        len(before.leads(victim)),
        was_controller,
        lookout.first(killed_at, lambda view: view.brokers.get(victim) == "fenced"),
        now.controller,
        lookout.first(killed_at, lambda view: view.controller not in (-1, victim))
        if was_controller
        else None,
        -1 if placed is None else placed.leader,
        lookout.first(killed_at, is_led),
        None if beat is None else beat - killed_at,
        pulse.outage(killed_at),
        healed,
    )
