"""The keys that are let in, as the folder `keys/authorized` of the data folder has them now.

One file a client. A file that cannot be read authorizes nobody, and that is logged once. Owns what
changed and when to look; writes nothing.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from penstock.core.errors import ConfigError
from penstock.security.keys import (
    KEYS_MAX,
    SUFFIX,
    AuthorizedKey,
    authorized_folder,
    load_authorized_key,
    server_key_file,
)

logger: Final = logging.getLogger("penstock.access")

_Signature = tuple[int, int, int]


def signature(path: str) -> _Signature | None:
    """What changes when a file does; None without one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class AuthorizedKeys:
    """Call `reload` to see what the folder has. `in_use`: whether there was a server key, from
    which on nobody comes in without one of these, also if it is removed."""

    def __init__(self, data_folder: str) -> None:
        self._folder = authorized_folder(data_folder)
        self._server_file = server_key_file(data_folder)
        self._known: dict[str, tuple[_Signature, AuthorizedKey | None]] = {}
        self.in_use = False
        self.by_public: dict[str, AuthorizedKey] = {}
        self.by_user_id: dict[str, AuthorizedKey] = {}
        self.namespaces: dict[str, str] = {}
        self.reload()

    def reload(self) -> bool:
        """Look at the folder; whether anything is different now."""
        in_use = self.in_use or os.path.exists(self._server_file)
        known: dict[str, tuple[_Signature, AuthorizedKey | None]] = {}
        for name in self._names():
            path = os.path.join(self._folder, name)
            sign = signature(path)
            if sign is None:
                continue
            before = self._known.get(name)
            known[name] = before if before and before[0] == sign else (sign, _read(path))
        if known == self._known and in_use == self.in_use:
            return False
        self._known, self.in_use = known, in_use
        self._index()
        return True

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
        keys = [key for _, key in self._known.values() if key is not None]
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


def _read(path: str) -> AuthorizedKey | None:
    try:
        return load_authorized_key(path)
    except (OSError, ConfigError) as error:
        logger.error(
            "a key that cannot be read lets nobody in: %s", error,
            extra={"reason": str(error)},
        )  # fmt: skip
        return None
