"""Finds settings of this host that may harm a node, cheaply at its start."""

from __future__ import annotations

import glob
import os
import pwd
from typing import Final

LOGIND_RUNS: Final = "/run/systemd/sessions"
SYSTEM_UID_MAX: Final = 999
_CONFIG: Final = (
    "/usr/lib/systemd/logind.conf",
    "/etc/systemd/logind.conf",
    "/usr/lib/systemd/logind.conf.d/*.conf",
    "/run/systemd/logind.conf.d/*.conf",
    "/etc/systemd/logind.conf.d/*.conf",
)


def remove_ipc_warning(root: str = "/", uid: int | None = None) -> str | None:
    """Returns why lanes may vanish at logout, or None.

    systemd-logind removes the shared memory of an ordinary user at the end of the last session,
    unless RemoveIPC=no (rule 5). Records accepted at durability `ring` would be lost then.
    """
    uid = os.geteuid() if uid is None else uid
    if uid <= SYSTEM_UID_MAX or not os.path.isdir(os.path.join(root, LOGIND_RUNS[1:])):
        return None
    if _remove_ipc(root) == "no" or _lingers(root, uid):
        return None
    return (
        "systemd-logind removes this user's shared memory at the end of the last session "
        "(RemoveIPC), and with it records that no log holds yet: set RemoveIPC=no in "
        "/etc/systemd/logind.conf, run `loginctl enable-linger`, or run the node as a system user"
    )


def _remove_ipc(root: str) -> str:
    """The last setting that logind reads."""
    value = "yes"
    for pattern in _CONFIG:
        for path in sorted(glob.glob(os.path.join(root, pattern[1:]))):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                key, _, given = line.partition("=")
                if key.strip() == "RemoveIPC":
                    value = given.strip().lower()
    return "no" if value in ("no", "false", "0", "off", "n", "f") else "yes"


def _lingers(root: str, uid: int) -> bool:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return os.path.exists(os.path.join(root, "var/lib/systemd/linger", name))
