"""Chooses the quotas of a client.

| `principal` | `client_id` | of what |
|---|---|---|
| ann | None | everything of ann together |
| `*` | None | the same, of each principal without one of its own |
| ann | etl | what ann's clients of that id do together |
| ann | `*` | the same, of each client id of ann without one of its own |
| `*` | etl or `*` | the same, of each principal that has no such |

A client has both the quota of its principal and that of its client id. `None` of a field means no
such quota, and ends the search for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.cluster.access.entries import check_principal
from penstock.core.errors import ConfigError

ANY: Final = "*"
BYTES_MAX: Final = 1 << 50
BOUNDS: Final = (
    "produce_bytes", "consume_bytes", "connections_max", "clients_max", "inflight_bytes_max"
)  # fmt: skip


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes a second; `connections_max`, `clients_max` (producers, consumers and admins) and
    `inflight_bytes_max` (of batches without an answer) only of principals."""

    principal: str
    client_id: str | None = None
    produce_bytes: int | None = None
    consume_bytes: int | None = None
    connections_max: int | None = None
    clients_max: int | None = None
    inflight_bytes_max: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == Quota(self.principal, self.client_id)


class QuotaTable:
    """The lookup."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._quotas = {(quota.principal, quota.client_id): quota for quota in quotas}

    @property
    def is_empty(self) -> bool:
        return not self._quotas

    def of_principal(self, principal: str) -> Quota | None:
        return self._quotas.get((principal, None)) or self._quotas.get((ANY, None))

    def of_client(self, principal: str, client_id: str) -> Quota | None:
        for who in (principal, ANY):
            for client in (client_id, ANY):
                found = self._quotas.get((who, client))
                if found is not None:
                    return found
        return None


def check_quota(quota: Quota) -> None:
    """Raise ConfigError for a quota that means nothing."""
    if quota.principal != ANY:
        check_principal(quota.principal, or_anonymous=True)
    if quota.client_id is not None and not 0 < len(quota.client_id) <= 100:
        raise ConfigError(f"client id {quota.client_id[:150]!r} of a quota: 1 to 100 characters")
    for field in BOUNDS:
        given = getattr(quota, field)
        if given is not None and not 1 <= given <= BYTES_MAX:
            raise ConfigError(f"{field} of a quota is {given}: allowed are 1..{BYTES_MAX}")
        if given is not None and quota.client_id is not None and field.endswith("_max"):
            raise ConfigError(f"{field} is a limit of principals: leave the client id out")
