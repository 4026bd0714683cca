"""Chooses the brokers for the replicas of a new partition, or of one that gets more or fewer.

Replicas of a partition are on different brokers, and on different racks as long as there are racks
left. Over all partitions of a topic every broker leads as many as any other, give or take one. The
followers of one leader are spread over the rest. (Kafka's StripedReplicaPlacer has the idea.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.errors import ConfigError


def place(
    brokers: Mapping[int, str], partitions: int, replication_factor: int, first: int
) -> list[tuple[int, ...]]:
    """Returns the replicas of each partition, the preferred leader first. `brokers`: the rack of
    each broker that may be used. `first` shifts the first broker, so that small topics do not all
    begin at one broker."""
    if not 1 <= replication_factor <= len(brokers):
        raise ConfigError(
            f"replication_factor={replication_factor}: {len(brokers)} brokers are there "
            f"({sorted(brokers)}); use a smaller one, or add brokers"
        )
    ring = _by_rack(brokers)
    found = []
    for number in range(partitions):
        lead = (first + number) % len(ring)
        # Another distance to the first follower each time the leaders have gone round.
        step = ((first + number) // len(ring)) % max(1, len(ring) - 1)
        rest = [*ring[lead + 1 :], *ring[:lead]]
        rest = [*rest[step:], *rest[:step]]
        found.append(_spread((ring[lead],), rest, brokers, replication_factor))
    return found


def resize(
    held: Sequence[int], others: Sequence[int], racks: Mapping[int, str], replication_factor: int
) -> tuple[int, ...]:
    """Returns so many replicas for a partition that lies on `held`. Held replicas stay as far as
    possible, the first ones before the last ones; missing ones go to the first of `others`. Racks
    come before that order."""
    if replication_factor <= len(held):
        return _spread(held[:1], held[1:], racks, replication_factor)
    if replication_factor > len(held) + len(others):
        raise ConfigError(
            f"replication_factor={replication_factor}: a partition lies on {sorted(held)}, and "
            f"beside those {sorted(others)} are there; use a smaller one, or add brokers"
        )
    return _spread(held, others, racks, replication_factor)


def _by_rack(brokers: Mapping[int, str]) -> list[int]:
    """A ring in which neighbours are of different racks, as far as that goes."""
    racks: dict[str, list[int]] = {}
    for broker in sorted(brokers):
        racks.setdefault(brokers[broker], []).append(broker)
    columns = sorted(racks.values(), key=lambda of_rack: (-len(of_rack), of_rack))
    longest = len(columns[0]) if columns else 0
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def _spread(
    first: Sequence[int], rest: Sequence[int], racks: Mapping[int, str], count: int
) -> tuple[int, ...]:
    """So many: those, then the rest in its order, as far as possible where there is none yet."""
    chosen, used = list(first), {racks[broker] for broker in first}
    for broker in rest:
        if len(chosen) < count and racks[broker] not in used:
            chosen.append(broker)
            used.add(racks[broker])
    for broker in rest:
        if len(chosen) < count and broker not in chosen:
            chosen.append(broker)
    return tuple(chosen)
