"""Aborts what is open of a transactional id, in the name of an operator.

A new producer of the id aborts what an older one left open, and fences it. Stages are given up by
the decision that none of their epoch counts. Owns nothing; the coordinator decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.transactions.listing import TransactionDescription
from penstock.core.errors import TransactionError

if TYPE_CHECKING:
    from penstock.client.client import Client


def find_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """Finds what is known of the id. Raises `TransactionError` where nothing of it is open."""
    with client.admin() as admin:
        known = {each.transactional_id: each for each in admin.list_transactions()}
    found = known.get(transactional_id)
    if found is None:
        raise TransactionError(
            f"there is no transactional id {transactional_id!r:.100}: `penstock transaction list` "
            "shows those that there are"
        )
    if found.state not in ("open", "staged"):
        raise TransactionError(
            f"nothing of transactional id {transactional_id!r:.100} can be aborted: it is "
            f"{found.state}"
        )
    return found


def abort_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """Aborts its open transaction, or its stages; as they were before. Its producer is fenced."""
    found = find_transaction(client, transactional_id)
    if found.state == "staged":
        client.commit_transaction(transactional_id, found.producer_epoch, [], commit=False)
    else:
        client.producer(transactional_id=transactional_id).close()
    return found
