"""The keys that are let in, as the folder `keys/authorized` of the data folder has them now.

One file a client. A file that cannot be read authorizes nobody, and that is logged once. Owns what
changed and when to look; writes nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.core.errors import ConfigError
from penstock.security.keys import (
    KEYS_MAX,
    SUFFIX,
    AuthorizedKey,
    authorized_folder,
    fingerprint_of,
    load_authorized_key,
    load_cluster_key,
    load_server_key,
    server_key_file,
)
from penstock.server.config import NodeConfig

logger: Final = logging.getLogger("penstock.access")

WARN_WITHIN: Final = 14 * 86_400.0
"""Seconds before a key expires from which on it is warned of."""

EXPIRED, SOON = "expired", "expires"

_Signature = tuple[int, int, int]


def signature(path: str) -> _Signature | None:
    """Returns a value that changes when the file does; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_Known = dict[str, tuple[_Signature, AuthorizedKey | None]]


class AuthorizedKeys:
    """Call `reload` to see what the folder has. `in_use`: whether there was a server key, from
    which on nobody comes in without one of these, also if it is removed."""

    def __init__(self, data_folder: str, now: Callable[[], float] = time.time) -> None:
        self._folder = authorized_folder(data_folder)
        self._server_file = server_key_file(data_folder)
        self._known: _Known = {}
        self._stages: dict[str, str] = {}
        self._time = now
        self.expired: dict[str, AuthorizedKey] = {}
        """By their public keys: they let nobody in any more."""
        self.expiring: dict[str, float] = {}
        """When keys expire that do, by their names; also those that have."""
        self.in_use = False
        self.server: _Signature | None = None
        """A value that changes when the server's key does."""
        self.by_public: dict[str, AuthorizedKey] = {}
        self.by_user_id: dict[str, AuthorizedKey] = {}
        self.namespaces: dict[str, str] = {}
        self.reload()

    def reload(self) -> bool:
        """Look at the folder; whether anything is different now."""
        in_use = self.in_use or os.path.exists(self._server_file)
        known: _Known = {}
        for name in self._names():
            path = os.path.join(self._folder, name)
            sign = signature(path)
            if sign is None:
                continue
            before = self._known.get(name)
            known[name] = before if before and before[0] == sign else (sign, _read(path))
        stages, server = self._judge(known), signature(self._server_file)
        was = self._known, self.in_use, self._stages, self.server
        if (known, in_use, stages, server) == was:
            return False
        self.server = server
        self._tell(known, stages)
        self._known, self.in_use, self._stages = known, in_use, stages
        self._index()
        return True

    def _judge(self, known: _Known) -> dict[str, str]:
        """Which of these keys have expired, or will soon."""
        now, found = self._time(), {}
        for name, (_, key) in known.items():
            if key is not None and key.is_expired(now):
                found[name] = EXPIRED
            elif key is not None and key.is_expired(now + WARN_WITHIN):
                found[name] = SOON
        return found

    def _tell(self, known: _Known, stages: dict[str, str]) -> None:
        for name, stage in stages.items():
            key = known[name][1]
            if key is None or self._stages.get(name) == stage:
                continue
            when = key.expires_text
            logger.warning(
                "key %s of principal %s %s at %s: %s another one, and revoke it",
                name.removesuffix(SUFFIX), key.principal,
                "expired" if stage == EXPIRED else "expires", when,
                "it lets nobody in; make" if stage == EXPIRED else "until then make",
                extra={"key": name.removesuffix(SUFFIX), "principal": key.principal,
                       "reason": f"key {stage}", "expires": when},
            )  # fmt: skip

    def _names(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SUFFIX)]
        except OSError:
            return []
        if len(names) > KEYS_MAX:
            logger.error(
                "%s has %d keys: the first %d count", self._folder, len(names), KEYS_MAX,
                extra={"reason": "too many keys"},
            )  # fmt: skip
        return sorted(names)[:KEYS_MAX]

    def _index(self) -> None:
        keys: list[AuthorizedKey] = []
        self.expired, self.expiring = {}, {}
        for name, (_, key) in self._known.items():
            if key is None:
                continue
            if key.expires is not msgspec.UNSET:
                self.expiring[name.removesuffix(SUFFIX)] = key.expires
            if self._stages.get(name) == EXPIRED:
                self.expired[key.public] = key
            else:
                keys.append(key)
        self.by_public = {key.public: key for key in reversed(keys)}
        if len(self.by_public) < len(keys):
            logger.error(
                "%s has a key in several files: the first of them, by name, counts", self._folder,
                extra={"reason": "key twice"},
            )  # fmt: skip
        self.by_user_id = {key.user_id: key for key in self.by_public.values()}
        namespaces: dict[str, set[str | None]] = {}
        for key in self.by_public.values():
            namespaces.setdefault(key.principal, set()).add(key.namespace)
        self.namespaces = {}
        for principal, found in namespaces.items():
            if len(found) > 1:
                logger.error(
                    "principal %s has keys of several namespaces (%s): none is its own until they "
                    "agree", principal, ", ".join(sorted(str(one) for one in found)),
                    extra={"principal": principal, "reason": "namespaces differ"},
                )  # fmt: skip
                continue
            [namespace] = found
            if namespace is not None:
                self.namespaces[principal] = namespace


def fingerprints(config: NodeConfig, known: AuthorizedKeys) -> dict[str, str]:
    """Which keys this broker has: its server's, its cluster's, and all of clients together."""
    found = {}
    try:
        server = load_server_key(config.data_folder)
        cluster = load_cluster_key(config.cluster_key) if config.cluster_key else None
    except ConfigError as error:
        found["failure"], server, cluster = str(error), None, None
    if server is not None:
        found["server"] = server.fingerprint
    if cluster is not None:
        found["cluster"] = cluster.fingerprint
    if known.in_use:
        everybody = [*known.by_public.values(), *known.expired.values()]
        found["clients"] = fingerprint_of(everybody)
        found["number"] = str(len(everybody))
    return found


def _read(path: str) -> AuthorizedKey | None:
    try:
        return load_authorized_key(path)
    except (OSError, ConfigError) as error:
        logger.error(
            "a key that cannot be read lets nobody in: %s", error,
            extra={"reason": str(error)},
        )  # fmt: skip
        return None
