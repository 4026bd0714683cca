"""Where verbs are that people know from other clients: said by the error when one is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client.public_view import public_name

_TRANSACTIONS: Final = "transactions are for client.producer(transactional_id=...)"
_GROUPS: Final = "offsets are committed by the members of a group: client.consumer(..., group=...)"
_TOPICS: Final = "topics are named when it is made: client.consumer('orders', ...)"
ELSEWHERE: Final = {
    "Producer": {
        "transaction": _TRANSACTIONS,
        "init_transactions": _TRANSACTIONS,
        "begin_transaction": _TRANSACTIONS,
        "commit_transaction": _TRANSACTIONS,
        "abort_transaction": _TRANSACTIONS,
    },
    "TransactionalProducer": {
        "init_transactions": "that was done when it was made",
        "send_offsets_to_transaction": "use transaction(consumed=batch)",
    },
    "Consumer": {"commit": _GROUPS, "committed": _GROUPS, "rewind": _GROUPS, "subscribe": _TOPICS},
    "GroupConsumer": {
        "assign": "its group gives it its partitions; without group= they are assigned by hand",
        "subscribe": _TOPICS,
    },
}


class Elsewhere:
    """Adds to the AttributeError of a missing verb what to use."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            kind = public_name(type(self))
            hint = ELSEWHERE.get(kind, {}).get(name)
            said = f"{kind!r} object has no attribute {name!r}" + (f": {hint}" if hint else "")
            raise AttributeError(said, name=name, obj=self)
