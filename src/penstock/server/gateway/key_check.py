"""Admits clients: CURVE on the gateway's socket, and the answer to ZeroMQ's question about a key.

    no server key     NULL      everybody comes in as "anonymous"
    a server key      CURVE     a client with an authorized key comes in as that key's principal

ZeroMQ's own thread asks by ZAP (RFC 27), on a REP socket in this process, which the gateway's loop
serves like any other. A key that is authorized or revoked counts from the next look on, a second
later at most. `is_known` then says no for the connections that it opened. Owns the server's secret,
and the audit of refused clients. Ends no connection.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import zmq
from zmq.utils import z85

from penstock.client.remote.zmqcalls import has_messages
from penstock.cluster.access import ANONYMOUS
from penstock.cluster.quotas import Bucket
from penstock.core.errors import ConfigError
from penstock.security.keys import load_server_key
from penstock.server.security.access_store import Access
from penstock.server.security.audit import AuditLog
from penstock.server.security.zap import ZAP_VERSION, zap_socket

logger = logging.getLogger("penstock.gateway")

DOMAIN: Final = b"penstock"
NOT_AUTHORIZED: Final = "no access"
"""The result of a refused key, among reasons why a handshake failed."""
KEY_BYTES: Final = 32
LOOKS_PER_SECOND: Final = 10
"""Looks at the folder because of keys that are not known."""


class KeyCheck:
    """Made before the socket is bound. `serve` when `fileno` is readable, and each turn."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], access: Access, audit: AuditLog
    ) -> None:
        self._access = access
        self._audit = audit
        self._secret = load_server_key(access.data_folder)
        self._server = access.keys.server
        self._socket = zap_socket(context)
        self._looks = Bucket(time.monotonic(), LOOKS_PER_SECOND)

    @property
    def is_secure(self) -> bool:
        """Whether nobody comes in without a key."""
        return self._secret is not None

    @property
    def is_outdated(self) -> bool:
        """Whether keys came into use since, or the server's is another one, so that the socket is
        to be secured and bound again."""
        keys = self._access.keys
        return keys.in_use and keys.server is not None and keys.server != self._server

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Set a socket up before it is bound."""
        self._server = self._access.keys.server
        try:
            self._secret = load_server_key(self._access.data_folder) or self._secret
        except ConfigError as error:
            if self._secret is None:
                raise
            logger.error("the server key stays what it was: %s", error)
        if self._secret is None:
            return
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def principal_of(self, user_id: str) -> str | None:
        """Returns the principal of a connection whose messages carry this User-Id; None: it has
        none any more."""
        if not self.is_secure:
            return ANONYMOUS
        key = self._access.keys.by_user_id.get(user_id)
        return key.principal if key is not None else None

    def why_not(self, user_id: str) -> str:
        """Why it is nobody's any more."""
        for key in self._access.keys.expired.values():
            if key.user_id == user_id:
                return f"its key expired at {key.expires_text}"
        return "its key is not authorized (any more)"

    # --- ZAP ---
    def fileno(self) -> int:
        """Edge-triggered, as all descriptors of ZeroMQ: `serve` takes in all there is."""
        return int(self._socket.getsockopt(zmq.FD))

    def serve(self) -> None:
        """Answer what was asked."""
        now = time.monotonic()
        while has_messages(self._socket):
            self._socket.send_multipart(self._answer(self._socket.recv_multipart(), now))

    def _answer(self, question: list[bytes], now: float) -> list[bytes]:
        if len(question) < 6 or question[0] != ZAP_VERSION:
            number = question[1] if len(question) > 1 else b""
            return [ZAP_VERSION, number, b"500", b"not understood", b"", b""]
        _, number, _domain, address, _identity, mechanism = question[:6]
        credentials = question[6:]
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != KEY_BYTES:
            return self._no(now, number, address, "it shows no key")
        public = z85.encode(credentials[0]).decode()
        key = self._access.keys.by_public.get(public)
        if key is None and not self._looks.delay(now):  # it may have been made just now
            self._looks.take(now, 1)
            self._access.look(now, 0.0)
            key = self._access.keys.by_public.get(public)
        if key is None:
            old = self._access.keys.expired.get(public)
            why = f"its key {public} is not authorized"
            if old is not None:
                why = f"its key {public} of {old.principal} expired at {old.expires_text}"
            return self._no(now, number, address, why)
        return [ZAP_VERSION, number, b"200", b"OK", key.user_id.encode(), b""]

    def failed(self, reason: str) -> None:
        """A handshake ended without a question about a key, which would have been audited. ZeroMQ
        does not tell whose it was."""
        if self.is_secure and reason != NOT_AUTHORIZED:
            self._audit.note(
                time.monotonic(), ANONYMOUS, "not let in",
                f"its handshake failed ({reason}): it shows no key, or one made for another node",
                reason=reason,
            )  # fmt: skip

    def _no(self, now: float, number: bytes, address: bytes, why: str) -> list[bytes]:
        place = address.decode("utf-8", "replace")[:100]
        self._audit.note(
            now, f"{ANONYMOUS}@{place}", "not let in", why, address=place, reason=why
        )  # fmt: skip
        return [ZAP_VERSION, number, b"400", b"not authorized", b"", b""]

    def close(self) -> None:
        self._socket.close(0)
