"""The present access settings: `access.json` of the data folder, and the keys beside it.

    access.json     entries, quotas, limits of namespaces; written whole and synced
    keys/           see `penstock.security.keys`

The node writes the file at the request of an admin. The gateway, and the node for changes by hand,
check at most twice a second whether it has changed. A file that is damaged while they run is
logged, and the earlier content stays in force; a node does not start on one. Owns the file and the
times of reading it. Decides nothing: see `cluster.access`.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import msgspec

from penstock.cluster.access import (
    SHARE,
    SHARES,
    Entry,
    NamespaceLimits,
    Policy,
    check_entry,
    check_limit_settings,
    with_shares,
)
from penstock.cluster.quotas import Quota, QuotaTable, check_quota
from penstock.core.errors import ConfigError, DataFolderError, StorageError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import decode_document, encode_document
from penstock.server.security.authorized_keys import AuthorizedKeys, signature

logger: Final = logging.getLogger("penstock.access")

ACCESS_FILE: Final = "access.json"
ACCESS_SCHEMA: Final = 1
LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks at the files, at least."""
ENTRIES_MAX: Final = 10_000
QUOTAS_MAX: Final = 10_000
LIMITS_MAX: Final = 1000


class AccessDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """access.json. `version` counts its changes."""

    schema: int = ACCESS_SCHEMA
    version: int = 0
    entries: list[Entry] = []
    quotas: list[Quota] = []
    limits: list[NamespaceLimits] = []


class Access:
    """The present state. `policy`, `quotas` and `limits` are replaced, never changed."""

    def __init__(self, data_folder: str, storage: Storage | None = None) -> None:
        """Raises DataFolderError where the file is damaged."""
        self.data_folder = data_folder
        self.path = os.path.join(data_folder, ACCESS_FILE)
        self._storage = storage or Storage()
        self._looked_at = float("-inf")
        self._shares = SHARES
        self._signature = signature(self.path)
        self.document = self._read()
        self.keys = AuthorizedKeys(data_folder)
        self.failure = ""
        """The error in the present file; empty if there is none."""
        self.changes = 0
        """The number of times that other settings came into force."""
        self._use()

    def _use(self) -> None:
        document = self.document
        self.policy = Policy(document.entries, self.keys.namespaces, keys=self.keys.in_use)
        self.quotas = QuotaTable(document.quotas)
        self._limit()
        self.changes += 1

    def _limit(self) -> None:
        spaces = self.keys.namespaces.values()
        self.limits = with_shares(self.document.limits, spaces, self._shares)

    def share(self, shares: NamespaceLimits) -> None:
        """Sets the limits of a namespace without settings."""
        self._shares = shares
        self._limit()

    def look(self, now: float, interval: float = LOOK_INTERVAL) -> bool:
        """Read what has changed; whether anything has. Costs nothing within `interval`."""
        if now - self._looked_at < interval:
            return False
        self._looked_at = now
        return self.reload()

    def reload(self) -> bool:
        keys_changed = self.keys.reload()
        found = signature(self.path)
        changed = found != self._signature
        if changed:
            self._signature = found
            changed = self._reread()
        if changed or keys_changed:
            self._use()
            logger.info(
                "access is that of version %d now: %d entries, %d quotas, %d keys",
                self.document.version, len(self.document.entries), len(self.document.quotas),
                len(self.keys.by_public),
                extra={"version": self.document.version},
            )  # fmt: skip
            return True
        return False

    def _reread(self) -> bool:
        try:
            if self._signature is None:
                raise DataFolderError(
                    f"{self.path} is gone, and without it everybody might do everything: bring it "
                    "back from a copy, or restart the node if that is what you want"
                )
            self.document = self._read()
        except (DataFolderError, StorageError) as error:
            self.failure = str(error)
            logger.error(
                "access stays that of version %d: %s", self.document.version, error,
                extra={"reason": str(error), "version": self.document.version},
            )  # fmt: skip
            return False
        self.failure = ""
        return True

    def _read(self) -> AccessDocument:
        data = self._storage.read_file(self.path)
        if data is None:
            return AccessDocument()
        document = decode_document(data, AccessDocument, self.path, ACCESS_SCHEMA)
        try:
            check_document(document)
        except ConfigError as error:
            raise DataFolderError(
                f"{self.path} cannot be right: {error}. Correct it, or bring it back from a copy; "
                "it decides all rights, so nothing is guessed"
            ) from error
        return document

    # --- of the node alone ---
    def write(self, document: AccessDocument) -> None:
        """Make another document durable. Blocks on the device; it holds from `apply` on."""
        self._storage.write_file_atomic(self.path, encode_document(document))

    def apply(self, document: AccessDocument) -> None:
        self.document = document
        self._signature = signature(self.path)
        self.failure = ""
        self._use()


def shares_of(config: NodeConfig, disk_bytes: int | None = None) -> NamespaceLimits:
    """A namespace's part of what a node may have, where nothing is set; on a disk of that size."""
    lanes = max(config.lanes_max // SHARE, config.writers)
    return msgspec.structs.replace(
        SHARES,
        connections_max=max(config.connections_max // SHARE, 1),
        disk_bytes_max=None if disk_bytes is None else disk_bytes // SHARE,
        shm_bytes_max=lanes * lo.lane_bytes(config.lane_capacity),
    )


def check_document(document: AccessDocument) -> None:
    """Raise ConfigError for what decodes and still means nothing."""
    for what, most in (("entries", ENTRIES_MAX), ("quotas", QUOTAS_MAX), ("limits", LIMITS_MAX)):
        count = len(getattr(document, what))
        if count > most:
            raise ConfigError(f"{count} {what} are over the bound of {most}")
    for entry in document.entries:
        check_entry(entry)
    for quota in document.quotas:
        check_quota(quota)
    for limits in document.limits:
        check_limit_settings(limits)
