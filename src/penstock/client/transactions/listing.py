"""Lists the transactions that the coordinator knows, for `Admin.list_transactions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.ipc import coordination as co


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id. `state`: "ready", "open", "committing" or "aborting" (decided, but not
    every partition has heard of it), or "staged" (undecided stages). `producer_epoch`: of the open
    or next transaction; of stages, their epoch. `open_for`: seconds, 0 if nothing is open: so long
    readers of committed records have been held back. `topics`: the first 20 of those that it writes
    to, without those that the asker may not describe.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    partitions: int
    open_for: float
    topics: tuple[str, ...] = ()


def listed(ask: Callable[[co.ListTransactions], co.Transactions]) -> list[TransactionDescription]:
    """All of them, sorted by id."""
    found: list[TransactionDescription] = []
    while True:
        answer = ask(co.ListTransactions(found[-1].transactional_id if found else ""))
        found += [
            TransactionDescription(
                each.transactional_id,
                each.state,
                each.producer_id,
                each.producer_epoch,
                each.partitions,
                each.open_for,
                tuple(each.topics),
            )
            for each in answer.transactions
        ]
        if not (answer.more and answer.transactions):
            return found
