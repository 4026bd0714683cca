"""Defines what `repr` and `dir` show of a client's objects: state and public names.

Never waits, asks, locks or changes anything, and never raises: a debugger shows objects in the
middle of a call, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

PARTS_MAX: Final = 5
"""Partitions, topics and the like that a `repr` names."""

_PRODUCER: Final = (
    "close config drain flush metrics producer_id send send_and_wait send_arrow send_batch"
)
_CONSUMER: Final = "assignment batches close lag metrics pause poll position resume seek unpack"
PUBLIC_NAMES: Final = {
    name: frozenset(verbs.split())
    for name, verbs in {
        "Client": "admin close commit_transaction consumer dead_letters end_stages metrics "
        "producer share_consumer stage transport url",
        "Admin": "add_access add_partitions alter_settings alter_topic close create_topic "
        "delete_group delete_topic describe_cluster describe_drain describe_group "
        "describe_share_group "
        "describe_node describe_partitions describe_topic drain_broker elect_leaders "
        "export_offsets hot_keys import_offsets kick_client list_access list_clients list_groups "
        "list_limits list_quotas list_settings list_topics list_transactions list_uses "
        "pause_share_group peek_share_group resume_share_group scale_group "
        "reassign_partition reassign_topic remove_access remove_broker report_offsets "
        "reset_offsets set_limits set_quota trim",
        "Producer": _PRODUCER,
        "TransactionalProducer": f"{_PRODUCER} abort_transaction begin_transaction "
        "commit_transaction epoch transaction transactional_id",
        "Stage": f"{_PRODUCER} epoch give_up name transactional_id",
        "Consumer": f"{_CONSUMER} assign beginning_offsets end_offsets seek_all",
        "DeadLetterQueue": "letter letters purge replay stats topic",
        "ShareConsumer": "ack_many close flush group member_id metrics poll",
        "GroupConsumer": f"{_CONSUMER} commit committed group guarantee member_id rewind run stop",
    }.items()
}
"""By the name of a class, of this module's users and of `penstock.aio`."""


def public_name(kind: type) -> str:
    """The name by which users know a class: of ours the public one that it is a kind of."""
    if kind.__module__.startswith("penstock."):
        for base in kind.__mro__:
            if base.__name__ in PUBLIC_NAMES:
                return base.__name__
    return kind.__name__


def shortened(parts: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = len(parts) - PARTS_MAX
    return ", ".join(parts[:PARTS_MAX]) + (f" and {more} more" if more > 0 else "")


class Shown:
    """Base class for objects with a `repr` of their state and a `dir` of public names."""

    __slots__ = ()

    def _described(self) -> str:
        """Returns the state that `repr` shows."""
        return ""

    def __repr__(self) -> str:
        kind = type(self)
        name = f"aio.{kind.__name__}" if ".aio." in kind.__module__ else public_name(kind)
        try:
            said = self._described()
        except Exception:  # half made, or in the middle of a change
            said = "being made or changed"
        return f"<{name} {said}>" if said else f"<{name}>"

    def __dir__(self) -> Iterable[str]:
        names: set[str] = set()
        for kind in type(self).__mro__:
            if kind.__name__ in PUBLIC_NAMES and kind.__module__.startswith("penstock."):
                shown = PUBLIC_NAMES[kind.__name__]
                return names | shown.intersection(object.__dir__(self))
            names.update(name for name in vars(kind) if not name.startswith("_"))
        return object.__dir__(self)
