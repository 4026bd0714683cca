"""Access entries: their fields, their form, and the names that they match.

    principal  effect      operation                             kind               name
    ann        allow|deny  read|write|create|alter|describe|     topic | group |    orders
    *                      delete | all                          transactional_id | orders.*  *
                                                                 cluster
A name that ends with `*` means all names that begin with the text before it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from penstock.core.errors import ConfigError

EVERYBODY: Final = "*"
ANONYMOUS: Final = "anonymous"
"""The principal of connections without a key."""
LOCAL_PREFIX: Final = "user:"
"""The prefix of principals on the node's own host, before their uid."""
NAME_CHARACTERS_MAX: Final = 200
RESERVED_PREFIX: Final = "__"
"""The prefix of the names of the node's own topics."""

_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


class Effect(StrEnum):
    allow = "allow"
    deny = "deny"


class Operation(StrEnum):
    read = "read"
    write = "write"
    create = "create"
    alter = "alter"
    describe = "describe"
    delete = "delete"


class Kind(StrEnum):
    topic = "topic"
    group = "group"
    transactional_id = "transactional_id"
    cluster = "cluster"


ALL: Final = "all"
OPERATIONS: Final = (*Operation, ALL)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the access list. Equal entries are one."""

    principal: str
    effect: str
    operation: str
    kind: str
    name: str


def check_entry(entry: Entry) -> None:
    """Raise ConfigError for an entry that means nothing."""
    if entry.principal != EVERYBODY:
        check_principal(entry.principal, or_anonymous=True)
    for field, allowed in (
        ("effect", list(Effect)),
        ("operation", list(OPERATIONS)),
        ("kind", list(Kind)),
    ):
        given = getattr(entry, field)
        if given not in allowed:
            raise ConfigError(
                f"{field} {given[:100]!r} of an access entry is not allowed: one of "
                f"{', '.join(allowed)}"
            )
    if not 0 < len(entry.name) <= NAME_CHARACTERS_MAX or not entry.name.isprintable():
        raise ConfigError(
            f"the name {entry.name[:100]!r} of an access entry is not allowed: 1 to "
            f"{NAME_CHARACTERS_MAX} printable characters"
        )
    if "*" in entry.name[:-1]:
        raise ConfigError(
            f"the name {entry.name!r} of an access entry has a * before its end: only the last "
            "character may be one, as in 'orders.*'"
        )
    if entry.kind == Kind.cluster and entry.name != "*":
        raise ConfigError(
            f"there is one cluster: its name in access entries is *, not {entry.name!r}"
        )


def check_principal(name: str, *, or_anonymous: bool = False) -> None:
    """Raise ConfigError for what can be nobody's name. Local users have a colon in theirs: they
    are super-users, and no key and no entry can claim to be one."""
    if name.startswith(LOCAL_PREFIX):
        raise ConfigError(
            f"{name[:100]!r} is a user of the node's host, who may do everything there: access "
            "entries and keys are for remote principals"
        )
    if not _PRINCIPAL.fullmatch(name):
        raise ConfigError(
            f"principal {name[:150]!r} is not allowed: 1 to 100 characters of [A-Za-z0-9._@-], the "
            "first a letter or digit"
        )
    if name == ANONYMOUS and not or_anonymous:
        raise ConfigError(f"{ANONYMOUS!r} is who comes without a key: choose another name")


def check_namespace(name: str) -> None:
    if not _NAMESPACE.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            f"namespace {name[:150]!r} is not allowed: words of [A-Za-z0-9_-] with dots between, "
            "up to 100 characters; its names begin with it and a dot"
        )
