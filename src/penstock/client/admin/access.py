"""Lists and changes the access rules, quotas and limits of a node for an administrator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from penstock.core.errors import PenstockTimeout, UnsupportedVersionError
from penstock.ipc import accessing as ac
from penstock.ipc.accessing import AccessEntry, LimitSetting, LimitUse, QuotaSetting

__all__ = ["AccessAdmin", "AccessEntry", "LimitSetting", "LimitUse", "QuotaSetting"]

TRIES: Final = 10
Ask = Callable[[Any, Any], Any]


class AccessAdmin:
    """The requests. `ask` sends one and gives the answer of the expected type."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def entries(self) -> list[AccessEntry]:
        return self._listed("entries")

    def quotas(self) -> list[QuotaSetting]:
        return self._listed("quotas")

    def limits(self) -> list[LimitSetting]:
        return self._listed("limits")

    def uses(self) -> list[LimitUse]:
        return self._listed("uses")

    def _listed(self, what: str) -> list[Any]:
        for _ in range(TRIES):
            found: list[Any] = []
            version = None
            while True:
                answer: ac.AccessList = self._ask(ac.ListAccess(what, len(found)), ac.AccessList)
                version = answer.version if version is None else version
                if answer.version != version:
                    break  # it was changed in between: from the start
                found += getattr(answer, what)
                if not answer.more:
                    return found
        raise PenstockTimeout(f"the {what} of access changed {TRIES} times while they were listed")

    def add(self, entries: Iterable[AccessEntry]) -> int:
        return self._change(ac.AddAccess, entries)

    def remove(self, entries: Iterable[AccessEntry]) -> int:
        return self._change(ac.RemoveAccess, entries)

    def _change(
        self, kind: type[ac.AddAccess | ac.RemoveAccess], entries: Iterable[AccessEntry]
    ) -> int:
        left, changed = iter(entries), 0
        while page := list(islice(left, ac.ENTRIES_PER_PAGE)):
            changed += self._ask(kind(page), ac.AccessChanged).changed
        return changed

    def set_quota(self, quota: QuotaSetting) -> None:
        self._ask(ac.SetQuota(quota), ac.AccessChanged)

    def set_limits(self, limits: LimitSetting) -> None:
        self._ask(ac.SetLimits(limits), ac.AccessChanged)
        if limits != LimitSetting(limits.namespace, limits.topics_max, limits.partitions_max):
            self._check_known(limits)

    def _check_known(self, limits: LimitSetting) -> None:
        """An earlier version passes over what it does not know."""
        if any(one.namespace == limits.namespace and one != limits for one in self.limits()):
            raise UnsupportedVersionError(
                f"the node took other limits of namespace {limits.namespace!r} than were set: an "
                "earlier version does not know all of them; upgrade it, or set topics_max and "
                "partitions_max alone"
            )
