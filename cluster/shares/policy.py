"""How a share group delivers: what its workers say, as the coordinator's log keeps it."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.shares.limits import ShareLimits
from penstock.cluster.shares.state import Arrangement
from penstock.core.errors import ConfigError

HEADER: Final = "header:"
"""Before the name of the header that tells the tenant."""
HEADER_NAME_BYTES_MAX: Final = 200


class SharePolicy(msgspec.Struct, frozen=True, array_like=True):
    """How a group delivers, and where it begins with a partition."""

    max_deliveries: int = 5
    backoff_min: float = 1.0
    backoff_max: float = 300.0
    start: str = "earliest"
    max_lease: float = 0.0
    dead_share: float = 0.0
    order: str = ""
    fair: str = ""
    dedup_window: float = 600.0

    def limits(self) -> ShareLimits:
        """Raises `ConfigError` for what nobody may ask."""
        if self.start not in ("earliest", "latest"):
            raise ConfigError(f"start: {self.start!r} is not 'earliest' or 'latest'")
        if not 0.0 <= self.dead_share < 1.0:
            raise ConfigError(f"dead_share: {self.dead_share!r} is not between 0 (never) and 1")
        self.arrangement()
        return ShareLimits(
            max_deliveries=self.max_deliveries,
            backoff_min=self.backoff_min,
            backoff_max=self.backoff_max,
            max_lease=self.max_lease,
            dedup_window=self.dedup_window,
            runs_max=1000,
        )

    def arrangement(self) -> Arrangement:
        """Order and turns. With an order of keys each of these has its turn already. Raises
        `ConfigError`."""
        if self.order not in ("", "key"):
            raise ConfigError(f"order: {self.order!r} is not 'key', or nothing")
        kind, name = self.fair[: len(HEADER)], self.fair[len(HEADER) :].encode()
        if self.fair not in ("", "key") and not (
            kind == HEADER and 0 < len(name) <= HEADER_NAME_BYTES_MAX
        ):
            raise ConfigError(
                f"fair: {self.fair!r} is not 'key', or 'header:NAME' with a name of up to "
                f"{HEADER_NAME_BYTES_MAX} bytes"
            )
        return Arrangement(self.order, "" if self.order == self.fair else self.fair)


decode_policy: Final = msgspec.msgpack.Decoder(SharePolicy).decode
