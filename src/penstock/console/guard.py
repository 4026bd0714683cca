"""The door of the console: each request passes these checks before a page sees it.

1. The other end: the proxy that was named; without a password, a process of this user.
2. `Host`: a name of the console, so that no page of elsewhere reaches it by a name of its own.
3. The session: a signed cookie; with a password one comes only by login.
4. A condition in SQL, which costs time: from a page of the console only.
5. An action: a POST of this origin with the token of the session, and a body within its bound.

Every answer carries a policy by which a browser runs no script but the console's own files.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_SECONDS: Final = 12 * 3600
BODY_BYTES_MAX: Final = 3 << 20
"""Of a form: a record of a mebibyte, escaped."""
FIELDS_MAX: Final = 200
LOGINS_PER_MINUTE_MAX: Final = 10
"""Attempts of one address; of IPv6 those of a /64 are one."""
ADDRESSES_MAX: Final = 1024
"""Addresses whose attempts are counted, the last ones."""
SESSIONS_MAX: Final = 256
"""Sessions that logged in; one more ends the oldest."""
FORM_SECONDS: Final = 30.0
"""Within which a form has to arrive."""
LOGIN: Final = "/login"
STATIC: Final = "/static/"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

PeerCheck = Callable[[tuple[str, int], tuple[str, int]], bool]


class RefusedActionError(Exception):
    """An action that is not taken, with the status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ConsoleDoor:
    """The rules of who may come in. `proxy`: the only address that connections come from;
    `is_peer_allowed`: tells users of this host apart, where neither password nor proxy does."""

    names: frozenset[str]
    cookie: str
    has_tls: bool = False
    password: str | None = None
    proxy: str | None = None
    is_peer_allowed: PeerCheck | None = None


@dataclass(slots=True)
class Sessions:
    """Signs and reads cookies. A restart of the console makes all of them void. Where one logs in,
    a session is kept from there on until it ends: nobody else can fill these up."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    tried: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict)
    """By address: when it tried to log in, the newest last."""
    open: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Sessions that logged in, and until when they last."""

    def made(self, now: float) -> str:
        text = f"{secrets.token_urlsafe(24)}.{int(now) + SESSION_SECONDS}"
        return f"{text}.{self._mac('session', text)}"

    def is_valid(self, cookie: str | None, now: float) -> bool:
        text, _, mac = (cookie or "").rpartition(".")
        until = text.rpartition(".")[2]
        is_signed = hmac.compare_digest(mac.encode(), self._mac("session", text).encode())
        return is_signed and until.isdigit() and now < int(until)

    def logged_in(self, now: float) -> str:
        """A session that is open until `end`, or for its time."""
        session = self.made(now)
        self.open[session] = int(now) + SESSION_SECONDS
        while self.open and (len(self.open) > SESSIONS_MAX or next(iter(self.open.values())) < now):
            self.open.popitem(last=False)
        return session

    def is_open(self, session: str | None, now: float) -> bool:
        return session in self.open and self.is_valid(session, now)

    def end(self, session: str | None) -> None:
        """Makes a session void: its cookie opens nothing more."""
        self.open.pop(session or "", None)

    def token(self, session: str) -> str:
        """Returns the token that forms of a session carry."""
        return self._mac("form", session)

    def may_try(self, address: str, now: float) -> bool:
        """Counts an attempt to log in; False: this address had too many within a minute."""
        who = _network(address)
        tried = self.tried.setdefault(who, deque(maxlen=LOGINS_PER_MINUTE_MAX))
        self.tried.move_to_end(who)
        while len(self.tried) > ADDRESSES_MAX:
            self.tried.popitem(last=False)
        if len(tried) == LOGINS_PER_MINUTE_MAX and now - tried[0] < 60:
            return False
        tried.append(now)
        return True

    def sealed(self, text: str) -> str:
        """A note to the next page, in a cookie."""
        body = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{body}.{self._mac('note', body)}"

    def unsealed(self, cookie: str | None) -> str:
        body, _, mac = (cookie or "").rpartition(".")
        if not body or not hmac.compare_digest(mac.encode(), self._mac("note", body).encode()):
            return ""
        return base64.urlsafe_b64decode(body).decode()

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self.key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _network(address: str) -> str:
    """An address as attempts are counted; one that is none by its text."""
    try:
        given = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if given.version == 4 else str(ipaddress.ip_network((given, 64), strict=False))


class ConsoleGuard:
    """The middleware. `refusals` counts what was turned away, by reason."""

    def __init__(self, app: ASGIApp, door: ConsoleDoor, sessions: Sessions) -> None:
        self._app = app
        self._door = door
        self._sessions = sessions
        self.refusals: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here is a websocket: the server closes it
        made: list[str] = []

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                for session in made:
                    text = cookie_text(self._door, self._door.cookie, session, SESSION_SECONDS)
                    headers.append("Set-Cookie", text)
            await send(message)

        refusal = self._refused(scope)
        if refusal is None:
            refusal = self._without_session(scope, made)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refused(self, scope: Scope) -> Response | None:
        door, headers = self._door, Headers(scope=scope)
        client: Any = scope.get("client")
        server: Any = scope.get("server")
        if door.proxy is not None and (client is None or client[0] != door.proxy):
            return self._no("proxy", 403, f"connections are taken from the proxy {door.proxy} only")
        if door.is_peer_allowed is not None:
            is_told = client is not None and server is not None
            if not (is_told and door.is_peer_allowed(tuple(client[:2]), tuple(server[:2]))):
                return self._no(
                    "user", 403, "this console is of another user of this host: start one of your "
                    "own by `penstock console`, or have its owner give it a password "
                    "(--password-file)",
                )  # fmt: skip
        if headers.get("host", "").lower() not in door.names:
            return self._no(
                "host", 421, "this is no name of the console: reach it by the address that it "
                "printed, or name this one by --name",
            )  # fmt: skip
        is_own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
        if not is_own and b"where=" in scope["query_string"]:
            return self._no("search", 403, "a condition comes from a page of the console")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return self._no("method", 405, "the console takes GET and POST")
        return None

    def _without_session(self, scope: Scope, made: list[str]) -> Response | None:
        """Finds the session; with a password, who has none is sent to log in."""
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        session, now = cookies.get(self._door.cookie), time.time()
        has_login = self._door.password is not None
        check = self._sessions.is_open if has_login else self._sessions.is_valid
        is_known = check(session, now)
        path = scope["path"]
        needs_login = has_login and not is_known
        if needs_login and path != LOGIN and not path.startswith(STATIC):
            if path == "/live":
                return self._no("login", 401, "log in first")
            return RedirectResponse(LOGIN, 303)
        if needs_login:
            session = None
        elif not is_known:
            session = self._sessions.made(now)
            if not path.startswith(STATIC):
                made.append(session)
        state = scope.setdefault("state", {})
        state["token"] = "" if session is None else self._sessions.token(session)
        state["is_in"] = session is not None
        state["session"] = session
        return None

    def _no(self, reason: str, status: int, message: str) -> Response:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        return PlainTextResponse(f"{message}\n", status)


def cookie_text(door: ConsoleDoor, name: str, value: str, seconds: int) -> str:
    secure = "; Secure" if door.has_tls else ""
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def check_origin(request: Request, names: frozenset[str]) -> None:
    """Raises unless a POST comes from a page of the console."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        raise RefusedActionError(403, "an action comes from a page of the console, and no other")
    if origin is not None and origin.partition("://")[2].lower() not in names:
        raise RefusedActionError(403, "an action comes from a page of the console, and no other")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, within their bounds."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise RefusedActionError(415, "a form is application/x-www-form-urlencoded")
    try:
        async with asyncio.timeout(FORM_SECONDS):
            body = await _body_of(request)
    except TimeoutError:
        raise RefusedActionError(
            408, f"the form did not arrive within {FORM_SECONDS:.0f} s (FORM_SECONDS)"
        ) from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as error:
        raise RefusedActionError(400, f"this form cannot be read: {error}") from error
    return dict(pairs)


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise RefusedActionError(
                413, f"a form has at most {BODY_BYTES_MAX} bytes (BODY_BYTES_MAX): send larger "
                "records by `penstock produce`",
            )  # fmt: skip
    return bytes(body)


async def checked_form(request: Request, names: frozenset[str]) -> dict[str, str]:
    """The fields of an action, once its token is right."""
    check_origin(request, names)
    form = await form_of(request)
    given, wanted = form.pop("csrf", ""), request.state.token
    if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):
        raise RefusedActionError(
            403, "the page was too old, or of another browser: load it again and repeat the action"
        )
    return form
