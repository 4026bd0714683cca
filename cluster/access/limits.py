"""Limits of namespaces: how many topics, partitions, groups and ids may have names in one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.cluster.access.entries import check_namespace
from penstock.core.errors import ConfigError, ResourceLimitError

GROUPS_SHARE: Final = 250
TRANSACTIONAL_IDS_SHARE: Final = 2_500
"""Of a namespace without limits: a quarter of what there may be."""


class NamespaceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """None: no limit but the node's own. Fields that are not set are not written, so that earlier
    versions read what they know."""

    namespace: str
    topics_max: int | None = None
    partitions_max: int | None = None
    groups_max: int | None = None
    transactional_ids_max: int | None = None


class Tally(NamedTuple):
    """What is wanted beyond what is there."""

    topics: int
    partitions: int


def check_limit_settings(limits: NamespaceLimits) -> None:
    """Raise ConfigError for limits that mean nothing."""
    check_namespace(limits.namespace)
    for field in ("topics_max", "partitions_max", "groups_max", "transactional_ids_max"):
        given = getattr(limits, field)
        if given is not None and not 0 <= given <= 1 << 31:
            raise ConfigError(f"{field} of namespace {limits.namespace!r} is {given}: 0 to 2**31")


def check_limits(
    limits: Iterable[NamespaceLimits], name: str, more: Tally, topics: Mapping[str, int]
) -> None:
    """Raise ResourceLimitError where a topic of that name asks for more than a namespace it lies in
    may have. `topics`: the partitions of each topic there is."""
    for limit in limits:
        prefix = f"{limit.namespace}."
        if not name.startswith(prefix):
            continue
        inside = [partitions for topic, partitions in topics.items() if topic.startswith(prefix)]
        _check(limit, "topics", len(inside), more.topics, limit.topics_max)
        _check(limit, "partitions", sum(inside), more.partitions, limit.partitions_max)


def with_shares(
    limits: Sequence[NamespaceLimits], namespaces: Iterable[str]
) -> list[NamespaceLimits]:
    """The limits, and those of the namespaces among these that have none set."""
    known = {limit.namespace for limit in limits}
    shares = (
        NamespaceLimits(
            each, groups_max=GROUPS_SHARE, transactional_ids_max=TRANSACTIONAL_IDS_SHARE
        )
        for each in sorted(set(namespaces) - known)
    )
    return [*limits, *shares]


def check_one_more(
    limits: Iterable[NamespaceLimits], what: str, name: str, there: Collection[str]
) -> None:
    """The same for one more of the names that are `there`. `what`: groups or transactional_ids."""
    for limit in limits:
        prefix = f"{limit.namespace}."
        most = getattr(limit, f"{what}_max")
        if most is not None and name.startswith(prefix) and name not in there:
            inside = sum(1 for each in there if each.startswith(prefix))
            _check(limit, what, inside, 1, most)


def _check(limit: NamespaceLimits, what: str, there: int, more: int, most: int | None) -> None:
    if most is not None and more > 0 and there + more > most:
        raise ResourceLimitError(
            f"namespace {limit.namespace!r} has {there} {what} and {more} more would be over its "
            f"limit {what}_max={most}: delete some, or have the node's operator raise it "
            f"(`penstock quota limit {limit.namespace} --{what.replace('_', '-')}-max N`)"
        )
