"""Limits of namespaces: what may have names in one, and what that and its clients may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.cluster.access.entries import check_namespace
from penstock.core.errors import ConfigError, ResourceLimitError

SHARE: Final = 4
"""A namespace has one part in so many of what there may be, where nobody set another limit."""
PARTITIONS_SHARE: Final = 1024
GROUPS_SHARE: Final = 250
TRANSACTIONAL_IDS_SHARE: Final = 2_500
BYTES_MAX: Final = 1 << 50


class NamespaceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """None: the share of a namespace that a key has; of others, no limit but the node's own. Fields
    that are not set are not written, so that earlier versions read what they know."""

    namespace: str
    topics_max: int | None = None
    partitions_max: int | None = None
    groups_max: int | None = None
    transactional_ids_max: int | None = None
    connections_max: int | None = None
    """Of principals whose namespace it is, at each broker."""
    disk_bytes_max: int | None = None
    """Of its topics, on the disk of each broker."""
    shm_bytes_max: int | None = None
    """Of the lanes that producers of these principals may open, at each broker."""


LIMITS: Final = tuple(NamespaceLimits.__struct_fields__[1:])
SHARES: Final = NamespaceLimits(
    "",
    partitions_max=PARTITIONS_SHARE,
    groups_max=GROUPS_SHARE,
    transactional_ids_max=TRANSACTIONAL_IDS_SHARE,
)
"""The shares that do not depend on the node."""


class Tally(NamedTuple):
    """The wanted numbers beyond the present ones."""

    topics: int
    partitions: int


def check_limit_settings(limits: NamespaceLimits) -> None:
    """Raise ConfigError for limits that mean nothing."""
    check_namespace(limits.namespace)
    for field in LIMITS:
        given = getattr(limits, field)
        most = BYTES_MAX if "bytes" in field else 1 << 31
        if given is not None and not 0 <= given <= most:
            raise ConfigError(f"{field} of namespace {limits.namespace!r} is {given}: 0 to {most}")


def lies_in(namespace: str, name: str) -> bool:
    return name.startswith(f"{namespace}.")


def names_in(namespace: str, names: Iterable[str]) -> list[str]:
    """Those that lie in it."""
    return [name for name in names if lies_in(namespace, name)]


def check_limits(
    limits: Iterable[NamespaceLimits], name: str, more: Tally, topics: Mapping[str, int]
) -> None:
    """Raise ResourceLimitError where a topic of that name asks for more than a namespace it lies in
    may have. `topics`: the partitions of each topic there is."""
    for limit in limits:
        if not lies_in(limit.namespace, name):
            continue
        inside = names_in(limit.namespace, topics)
        there = sum(topics[topic] for topic in inside)
        _check(limit, "topics", len(inside), more.topics, limit.topics_max)
        _check(limit, "partitions", there, more.partitions, limit.partitions_max)


def with_shares(
    limits: Sequence[NamespaceLimits], namespaces: Iterable[str], shares: NamespaceLimits = SHARES
) -> list[NamespaceLimits]:
    """The limits; these namespaces have the shares where nothing is set."""
    found = {limit.namespace: limit for limit in limits}
    for each in sorted(set(namespaces)):
        own = found.get(each) or NamespaceLimits(each)
        unset = {name: getattr(shares, name) for name in LIMITS if getattr(own, name) is None}
        found[each] = msgspec.structs.replace(own, **unset)
    return list(found.values())


def limit_of(limits: Iterable[NamespaceLimits], namespace: str | None, limit: str) -> int | None:
    """That limit of a namespace; None where there is none."""
    for each in limits:
        if each.namespace == namespace:
            found: int | None = getattr(each, limit)
            return found
    return None


def check_one_more(
    limits: Iterable[NamespaceLimits], what: str, name: str, inside: Callable[[str], int]
) -> None:
    """The same for one more name, which is not there yet. `what`: groups or transactional_ids;
    `inside`: how many of these a namespace has."""
    for limit in limits:
        most = getattr(limit, f"{what}_max")
        if most is not None and lies_in(limit.namespace, name):
            _check(limit, what, inside(limit.namespace), 1, most)


def _check(limit: NamespaceLimits, what: str, there: int, more: int, most: int | None) -> None:
    if most is not None and more > 0 and there + more > most:
        raise over_limit(limit.namespace, what, there, more, most)


def over_limit(namespace: str, what: str, there: int, more: int, most: int) -> ResourceLimitError:
    """Returns the error for a request beyond a limit of its namespace."""
    return ResourceLimitError(
        f"namespace {namespace!r} has {there} {_worded(what)} and {more} more would be over its "
        f"limit {what}_max={most}: {_ADVICE.get(what, 'delete some')}, or have the node's operator "
        f"raise it (`penstock quota limit {namespace} --{what.replace('_', '-')}-max N`)"
    )


_ADVICE: Final = {"connections": "close some", "shm_bytes": "close producers"}


def _worded(what: str) -> str:
    return {"shm_bytes": "bytes in shared memory"}.get(what, what)
