"""The evaluation of access: deny wins, then one's own namespace, then what is allowed, else no.

| entries or keys | a deny matches | name in the principal's namespace | an allow matches | answer |
|---|---|---|---|---|
| none | | | | yes |
| some | yes | | | no |
| some | no | yes | | yes |
| some | no | no | yes | yes |
| some | no | no | no | no |

A policy never changes: another one takes its place. Decisions are remembered, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.cluster.access.entries import EVERYBODY, NAME_CHARACTERS_MAX, Effect, Entry, Kind

CLUSTER: Final = "cluster"
"""The name of the one thing of kind `cluster`."""
DECISIONS_MAX: Final = 16_384
"""Decisions that are remembered; then all are forgotten."""


class Policy:
    """`namespaces`: of the principals that have one. `keys`: whether principals have keys, so that
    nobody is let in for want of entries."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        namespaces: Mapping[str, str] | None = None,
        *,
        keys: bool = False,
    ) -> None:
        self._by_principal: dict[str, list[Entry]] = {}
        for entry in entries:
            self._by_principal.setdefault(entry.principal, []).append(entry)
        self._namespaces = dict(namespaces or {})
        self.is_open = not self._by_principal and not keys
        """Nobody is kept from anything."""
        self._decided: dict[tuple[str, str, str, str], bool] = {}

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        if self.is_open:
            return True
        if len(name) > NAME_CHARACTERS_MAX:
            return False
        asked = (principal, operation, kind, name)
        known = self._decided.get(asked)
        if known is None:
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            known = self._decided[asked] = self._decide(*asked)
        return known

    def _decide(self, principal: str, operation: str, kind: str, name: str) -> bool:
        is_allowed = self._is_own(principal, kind, name)
        for entry in self._about(principal, operation, kind):
            if entry.matches_name(name):
                if entry.effect == Effect.deny:
                    return False
                is_allowed = True
        return is_allowed

    def allows_all(self, principal: str, operation: str, kind: str, prefix: str) -> bool:
        """Whether this is allowed for every name that begins with `prefix`."""
        if self.is_open:
            return True
        is_allowed = self._is_own(principal, kind, prefix)
        for entry in self._about(principal, operation, kind):
            begins = entry.name.removesuffix("*")
            is_pattern = entry.name.endswith("*")
            if entry.effect == Effect.allow:
                is_allowed = is_allowed or (is_pattern and prefix.startswith(begins))
            elif begins.startswith(prefix) or (is_pattern and prefix.startswith(begins)):
                return False
        return is_allowed

    def _about(self, principal: str, operation: str, kind: str) -> Iterator[Entry]:
        for who in (principal, EVERYBODY):
            for entry in self._by_principal.get(who, ()):
                if entry.kind == kind and entry.is_about(operation):
                    yield entry

    def _is_own(self, principal: str, kind: str, name: str) -> bool:
        namespace = self._namespaces.get(principal)
        return namespace is not None and kind != Kind.cluster and name.startswith(f"{namespace}.")
