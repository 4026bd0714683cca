"""The messages about access: entries, quotas, limits of namespaces.

They travel as the messages of `ipc.messages` do. `cluster.access` and `cluster.quotas` explain the
fields. `ENTRIES_PER_PAGE` bounds the lists.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

ENTRIES_PER_PAGE: Final = 40

Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class AccessEntry(msgspec.Struct, frozen=True):
    principal: str
    effect: str  # "allow" | "deny"
    operation: str  # "read" | "write" | "create" | "alter" | "describe" | "delete" | "all"
    kind: str  # "topic" | "group" | "transactional_id" | "cluster"
    name: str  # or all that begin as it does: "orders.*"


class QuotaSetting(msgspec.Struct, frozen=True):
    """Bytes a second and other bounds; None: none. `client_id` None: of all its clients together.
    "*" means each principal or client id that has no entry of its own."""

    principal: str
    client_id: str | None = None
    produce_bytes: Amount | None = None
    consume_bytes: Amount | None = None
    connections_max: Amount | None = None
    clients_max: Amount | None = None
    inflight_bytes_max: Amount | None = None


class LimitSetting(msgspec.Struct, frozen=True):
    namespace: str
    topics_max: Amount | None = None
    partitions_max: Amount | None = None
    groups_max: Amount | None = None
    transactional_ids_max: Amount | None = None
    connections_max: Amount | None = None
    disk_bytes_max: Amount | None = None
    shm_bytes_max: Amount | None = None


class LimitUse(msgspec.Struct, frozen=True):
    """How much of a limit is used at the broker that was asked. `used` None: known to another one;
    `most` None: no limit."""

    namespace: str
    limit: str
    used: Amount | None
    most: Amount | None


# --- client -> node -----------------------------------------------------------------------------
class ListAccess(msgspec.Struct, frozen=True, tag="list_access"):
    """`what`: "entries", "quotas", "limits" or "uses", from the `skip`-th on."""

    what: str
    skip: int = 0


Entries = Annotated[list[AccessEntry], msgspec.Meta(max_length=ENTRIES_PER_PAGE)]


class AddAccess(msgspec.Struct, frozen=True, tag="add_access"):
    entries: Entries


class RemoveAccess(msgspec.Struct, frozen=True, tag="remove_access"):
    entries: Entries


class SetQuota(msgspec.Struct, frozen=True, tag="set_quota"):
    """In the place of the one for the same; without any bound: none."""

    quota: QuotaSetting


class SetLimits(msgspec.Struct, frozen=True, tag="set_limits"):
    """The same for a namespace."""

    limits: LimitSetting


# --- node -> client -----------------------------------------------------------------------------
class AccessList(msgspec.Struct, frozen=True, tag="access_list"):
    """`version` counts changes: pages of another one belong to another list."""

    version: int
    more: bool
    entries: list[AccessEntry] = []
    quotas: list[QuotaSetting] = []
    limits: list[LimitSetting] = []
    uses: list[LimitUse] = []


class AccessChanged(msgspec.Struct, frozen=True, tag="access_changed"):
    """How many of what was named were not there before, or are not there any more."""

    version: int
    changed: int


Request = ListAccess | AddAccess | RemoveAccess | SetQuota | SetLimits
Reply = AccessList | AccessChanged
