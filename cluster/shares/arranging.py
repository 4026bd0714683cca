"""Order and turns of share groups: whether a group may have others, and what workers tell of keys.

Owns these questions, and the records of their answers; decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares.groups import ShareGroups
from penstock.cluster.shares.policy import SharePolicy
from penstock.cluster.shares.share_log import Place
from penstock.core.errors import GroupError

ARRANGED_MAX: Final = 500
"""Partitions that one decision brings to another order."""


class ToldHashes(NamedTuple):
    """Hashes of the keys and tenants of a partition's records from `first` on, as far as `end`."""

    place: Place
    first: int
    keys: bytes
    tenants: bytes
    end: int


class ArrangedGroups:
    """The part of the share groups that asks what records are given by. Volatile, and safe to lose:
    which members have asked for what their group has."""

    def __init__(self, shares: ShareGroups) -> None:
        self._shares = shares
        self._agreed: dict[str, set[str]] = {}

    def check(
        self, name: str, member: str, policy: SharePolicy, is_member: Callable[[str], bool]
    ) -> None:
        """Raises `GroupError` where others work by another order: they tell no keys, or different
        ones. A member that has not asked yet does not count: several may begin with a new order."""
        for gone in self._agreed.keys() - {name, *self._shares.names()}:
            del self._agreed[gone]
        agreed = {each for each in self._agreed.get(name, ()) if is_member(each)}
        now, others = self._shares.policy(name), len(agreed - {member})
        if (now.order, now.fair) != (policy.order, policy.fair):
            if others:
                raise GroupError(
                    f"share group {name!r} works with {told_of(now)}, and this worker asks for "
                    f"{told_of(policy)}: {counted(others)} there, and all of a group have the "
                    "same. End them first, or take another group"
                )
            agreed = set()
        self._agreed[name] = agreed | {member}

    def arrange(self, name: str) -> Decision[bool]:
        """Brings partitions to what the group asks for, a bounded part of them: whether there may
        be more."""
        arrangement, records = self._shares.policy(name).arrangement(), list[Record]()
        for place, machine in self._shares.partitions(name):
            deltas, _ = machine.arrange(arrangement)
            share = self._shares.share(name, place)
            if deltas and share is not None:
                records.append(share.record_of(deltas))
            if len(records) == ARRANGED_MAX:
                break
        return Decision(tuple(records), len(records) == ARRANGED_MAX)

    def tell(self, name: str, told: Sequence[ToldHashes]) -> Decision[int]:
        """Records of which these hashes are known may be delivered. How many are new."""
        records, begun = list[Record](), 0
        for place, first, keys, tenants, end in told:
            share = self._shares.share(name, place)
            if share is None or share.machine is None:
                continue
            deltas, fresh = share.machine.tell(first, keys, tenants, end)
            if deltas:
                records.append(share.record_of(deltas))
                begun += fresh
        return Decision(tuple(records), begun, self._shares.called(name, begun))


def told_of(policy: SharePolicy) -> str:
    """Its order and turns, as a worker says them."""
    return f"order={policy.order or None!r}, fair={policy.fair or None!r}"


def counted(others: int) -> str:
    return "another member is" if others == 1 else f"{others} other members are"
