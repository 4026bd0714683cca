"""The user whose process is at the other end of a connection over loopback.

The kernel tells it (`NETLINK_SOCK_DIAG`, see sock_diag(7)): so a console without a password lets in
the user who runs it, and nobody else of this host.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI")
_ADDRESSES: Final = struct.Struct("!HH16s16s")
_COOKIE: Final = struct.Struct("=III")
_UID_AT: Final = _HEADER.size + 4 + _ADDRESSES.size + _COOKIE.size + 12
"""Behind header, states and socket id: expires, rqueue, wqueue, and then the uid."""
TIMEOUT: Final = 1.0

Address = tuple[str, int]


def uid_of_peer(peer: Address, own: Address) -> int | None:
    """The user of the socket at `peer` that is connected to `own`, both on this host. None: nobody
    can tell."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        ends = [socket.inet_pton(family, each[0]).ljust(16, b"\0") for each in (peer, own)]
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as asked:
            asked.settimeout(TIMEOUT)
            body = (
                _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
                + _ADDRESSES.pack(peer[1], own[1], *ends)
                + _COOKIE.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
            )
            size = _HEADER.size + len(body)
            header = _HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
            asked.sendto(header + body, (0, 0))
            answer = asked.recv(4096)
    except (OSError, ValueError):
        return None
    if len(answer) < _UID_AT + 4 or _HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    return int.from_bytes(answer[_UID_AT : _UID_AT + 4], "little")


def is_own(peer: Address, own: Address) -> bool:
    """Whether it is a process of this user, or of root."""
    return uid_of_peer(peer, own) in (os.geteuid(), 0)
