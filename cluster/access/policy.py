"""The evaluation of access: deny wins, then the own namespace, then an allow, else no.

| entries or keys | a deny matches | name in the principal's namespace | an allow matches | answer |
|---|---|---|---|---|
| none | | | | yes |
| some | yes | | | no |
| some | no | yes | | yes |
| some | no | no | yes | yes |
| some | no | no | no | no |

A policy never changes: another one takes its place. With any number of entries a decision costs a
few look-ups, by the lengths of the patterns. It is remembered, up to a bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.cluster.access.entries import (
    ALL,
    EVERYBODY,
    NAME_CHARACTERS_MAX,
    RESERVED_PREFIX,
    Effect,
    Entry,
    Kind,
    Operation,
)

CLUSTER: Final = "cluster"
"""The name of the one thing of kind `cluster`."""
DECISIONS_MAX: Final = 16_384
"""Decisions that are remembered; then all are forgotten."""


class _Names:
    """Names and prefixes that entries of one effect have for a principal, an operation and a kind.
    `lengths`: of the prefixes."""

    __slots__ = ("exact", "lengths", "prefixes", "sorted")

    def __init__(self) -> None:
        self.exact: set[str] = set()
        self.prefixes: set[str] = set()
        self.lengths: list[int] = []
        self.sorted: list[str] = []

    def add(self, name: str) -> None:
        if name.endswith("*"):
            self.prefixes.add(name[:-1])
        else:
            self.exact.add(name)

    def settle(self) -> None:
        self.lengths = sorted({len(prefix) for prefix in self.prefixes})
        self.sorted = sorted(self.exact | self.prefixes)

    def match(self, name: str, shortest: int = 0) -> bool:
        """Whether one is meant, by name or by a prefix of at least `shortest` characters."""
        return name in self.exact or any(
            name[:length] in self.prefixes
            for length in self.lengths
            if shortest <= length <= len(name)
        )

    def touch(self, prefix: str) -> bool:
        """Whether one means any name that begins with `prefix`."""
        place = bisect_left(self.sorted, prefix)
        if place < len(self.sorted) and self.sorted[place].startswith(prefix):
            return True
        return any(prefix[:length] in self.prefixes for length in self.lengths)


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
        self._names: dict[tuple[str, str, str, str], _Names] = {}
        for entry in entries:
            for operation in _operations(entry):
                key = (entry.effect, entry.principal, operation, entry.kind)
                self._names.setdefault(key, _Names()).add(entry.name)
        for names in self._names.values():
            names.settle()
        self._namespaces = dict(namespaces or {})
        self.is_open = not self._names and not keys
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
        if any(names.match(name) for names in self._of(Effect.deny, principal, operation, kind)):
            return False
        if self._is_own(principal, kind, name):
            return True
        # The node's own topics are allowed only by who names them so.
        is_reserved = kind == Kind.topic and name.startswith(RESERVED_PREFIX)
        shortest = len(RESERVED_PREFIX) if is_reserved else 0
        allowed = self._of(Effect.allow, principal, operation, kind)
        return any(names.match(name, shortest) for names in allowed)

    def allows_all(self, principal: str, operation: str, kind: str, prefix: str) -> bool:
        """Whether this is allowed for every name that begins with `prefix`, but for those of the
        node's own topics."""
        if self.is_open:
            return True
        if any(names.touch(prefix) for names in self._of(Effect.deny, principal, operation, kind)):
            return False
        return self._is_own(principal, kind, prefix) or any(
            prefix[:length] in names.prefixes
            for names in self._of(Effect.allow, principal, operation, kind)
            for length in names.lengths
            if length <= len(prefix)
        )

    def _of(self, effect: str, principal: str, operation: str, kind: str) -> Iterator[_Names]:
        for who in (principal, EVERYBODY):
            names = self._names.get((effect, who, operation, kind))
            if names is not None:
                yield names

    def _is_own(self, principal: str, kind: str, name: str) -> bool:
        namespace = self._namespaces.get(principal)
        return namespace is not None and kind != Kind.cluster and name.startswith(f"{namespace}.")


def _operations(entry: Entry) -> Iterable[str]:
    """Returns the operations of an entry. A principal with any right to a thing may know that it
    exists. So every allow includes `describe`; a deny does not."""
    if entry.operation == ALL:
        return tuple(Operation)
    if entry.effect == Effect.allow:
        return {entry.operation, Operation.describe}
    return (entry.operation,)
