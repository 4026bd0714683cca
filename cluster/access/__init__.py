"""Access control: entries, namespaces, and their evaluation. Pure: no files, no clock."""

from __future__ import annotations

from penstock.cluster.access.entries import (
    ANONYMOUS,
    EVERYBODY,
    LOCAL_PREFIX,
    Effect,
    Entry,
    Kind,
    Operation,
    check_entry,
    check_namespace,
    check_principal,
)
from penstock.cluster.access.limits import (
    LIMITS,
    SHARE,
    SHARES,
    NamespaceLimits,
    Tally,
    check_limit_settings,
    check_limits,
    check_one_more,
    limit_of,
    names_in,
    over_limit,
    with_shares,
)
from penstock.cluster.access.policy import CLUSTER, Policy
from penstock.cluster.access.prefixes import literal_prefix

__all__ = [
    "ANONYMOUS",
    "CLUSTER",
    "EVERYBODY",
    "LIMITS",
    "LOCAL_PREFIX",
    "SHARE",
    "SHARES",
    "Effect",
    "Entry",
    "Kind",
    "NamespaceLimits",
    "Operation",
    "Policy",
    "Tally",
    "check_entry",
    "check_limit_settings",
    "check_limits",
    "check_namespace",
    "check_one_more",
    "check_principal",
    "limit_of",
    "literal_prefix",
    "names_in",
    "over_limit",
    "with_shares",
]
