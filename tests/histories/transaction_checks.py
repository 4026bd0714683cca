"""What must hold between transactions and those who read only what is committed.

    aborted read      it saw a record of a transaction that was aborted
    precommitted read it saw a record before anybody had asked for the commit
    G1c               a cycle of transactions, each of which consumed what the one before it wrote
    G0                a cycle of transactions, each of which wrote behind the one before it
    G1c with writes   a cycle of both kinds

A log takes the records of concurrent transactions as they come, so writes of two transactions may
be interleaved over partitions; what is promised is that nobody sees one before its commit. So G0
and the cycles that need it are told, and are no broken promise (`checker.INTERLEAVING`). Where
one commit was known before the other transaction began, `stale order` finds a wrong order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from histories.anomalies import Anomaly, found, found_in, rows_where
from histories.events import ABORTED, COMMITTED, NOTHING, OFFSET_BITS, Ints
from histories.facts import Facts

Edges = dict[int, dict[int, str]]
"""Transaction -> transactions that depend on it, with the reason."""


def reads(facts: Facts) -> Iterator[Anomaly]:
    rows = facts.committed_view.rows
    txn = facts.txn_of(facts.poll_value[rows])
    rows, txn = rows[txn != NOTHING], txn[txn != NOTHING]
    if not len(rows):
        return
    aborted = rows_where(facts.fates[txn] == ABORTED)
    yield from found(
        "aborted read",
        aborted,
        lambda at: (
            f"{facts.describe_poll(int(rows[at]))}: "
            f"{facts.describe_value(int(facts.poll_value[rows[at]]))}"
        ),
    )
    latest = np.iinfo(np.int64).max
    asked = np.array(
        [latest if each.asked is None else each.asked for each in facts.history.transactions]
    )
    early = rows_where((facts.poll_time[rows] < asked[txn]) & (facts.fates[txn] != ABORTED))
    yield from found(
        "precommitted read",
        early,
        lambda at: (
            f"{facts.describe_poll(int(rows[at]))}: the commit of "
            f"{facts.history.transactions[int(txn[at])]} was asked for at t={int(asked[txn[at]])}"
        ),
    )


def cycles(facts: Facts) -> Iterator[Anomaly]:
    written, consumed = _writes(facts), _reads(facts)
    for name, edges in (
        ("G1c", consumed),
        ("G0", written),
        ("G1c with writes", _joined(written, consumed)),
    ):
        told = [_tell(facts, edges, each) for each in components(edges)]
        yield from found_in(name, told)


def _committed_versions(facts: Facts) -> tuple[Ints, Ints]:
    """(place, transaction) of what committed transactions wrote."""
    place, value = facts.versions
    txn = facts.txn_of(value)
    place, txn = place[txn != NOTHING], txn[txn != NOTHING]
    if not len(txn):
        return place, txn
    mine = facts.fates[txn] == COMMITTED
    return place[mine], txn[mine]


def _writes(facts: Facts) -> Edges:
    """From each transaction to the one that wrote next behind it in a partition."""
    place, txn = _committed_versions(facts)
    follows = (txn[1:] != txn[:-1]) & (place[1:] >> OFFSET_BITS == place[:-1] >> OFFSET_BITS)
    edges: Edges = {}
    for row in np.flatnonzero(follows).tolist():
        where = facts.history.place_name(int(place[row + 1]))
        edges.setdefault(int(txn[row]), {})[int(txn[row + 1])] = f"wrote before {where}"
    return edges


def _reads(facts: Facts) -> Edges:
    """From each transaction to those that consumed something of it."""
    place, txn = _committed_versions(facts)
    edges: Edges = {}
    for number, each in enumerate(facts.history.transactions):
        if facts.fates[number] != COMMITTED:
            continue
        for partition, start, end in each.inputs:
            base = partition << OFFSET_BITS
            low, high = np.searchsorted(place, (base | start, base | end))
            for source in np.unique(txn[low:high]).tolist():
                where = f"{facts.history.place_name(base | start)} to {end}"
                edges.setdefault(source, {})[number] = f"wrote what was consumed in {where}"
    return edges


def _joined(first: Edges, second: Edges) -> Edges:
    joined = {source: dict(targets) for source, targets in first.items()}
    for source, targets in second.items():
        joined.setdefault(source, {}).update(targets)
    return joined


def components(edges: Edges) -> list[list[int]]:
    """Strongly connected parts of more than one transaction, or of one that depends on itself:
    Tarjan's algorithm with a stack of its own, linear in the edges."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    parts: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = []
        _enter(root, edges, index, low, stack, on_stack, work)
        while work:
            node, targets = work[-1]
            following = next(targets, None)
            if following is None:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    _leave(node, edges, stack, on_stack, parts)
            elif following not in index:
                _enter(following, edges, index, low, stack, on_stack, work)
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return parts


def _enter(node, edges, index, low, stack, on_stack, work) -> None:
    index[node] = low[node] = len(index)
    stack.append(node)
    on_stack.add(node)
    work.append((node, iter(edges.get(node, ()))))


def _leave(
    node: int, edges: Edges, stack: list[int], on_stack: set[int], parts: list[list[int]]
) -> None:
    part = []
    while True:
        member = stack.pop()
        on_stack.discard(member)
        part.append(member)
        if member == node:
            break
    if len(part) > 1 or node in edges.get(node, ()):
        parts.append(part)


def _tell(facts: Facts, edges: Edges, part: Sequence[int]) -> str:
    """One shortest cycle of a part, in words."""
    inside, start = set(part), min(part)
    came_from: dict[int, int] = {}
    queue = [start]
    for node in queue:
        if start in edges.get(node, ()):
            break
        for following in edges.get(node, ()):
            if following in inside and following not in came_from and following != start:
                came_from[following] = node
                queue.append(following)
    path = [node]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    path.reverse()
    names = facts.history.transactions
    return "; ".join(
        f"{names[each]} {edges[each][following]} of {names[following]}"
        for each, following in zip(path, [*path[1:], start], strict=True)
    )


CHECKS = (reads, cycles)
