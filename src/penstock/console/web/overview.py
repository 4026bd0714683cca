"""The overview, the live figures, the login, and the files that pages need."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse

from penstock.client.admin.admin import Admin, topic_page
from penstock.console.guard import (
    LOGIN,
    SESSION_SECONDS,
    RefusedActionError,
    check_origin,
    cookie_text,
    form_of,
)
from penstock.console.pages.overview import TROUBLES_SHOWN, Figures, live_fields, tiles, verdict
from penstock.core import errors as er

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from penstock.console.web.shell import ConsoleShell


async def overview(shell: ConsoleShell, request: Request) -> Response:
    figures = shell.sampler.figures
    is_seen = figures is not None
    if figures is None:  # the first look is not over
        figures = await shell.ask(lambda seat: _first(seat.admin))
    if figures.away:
        raise er.NotConnectedError(figures.away)
    sentence, is_well = verdict(figures)
    return shell.page(
        request, "overview.html", tiles=tiles(figures), sentence=sentence, is_well=is_well,
        is_seen=is_seen, figures=figures, troubles=figures.troubles[:TROUBLES_SHOWN],
        more=max(0, len(figures.troubles) - TROUBLES_SHOWN),
    )  # fmt: skip


def _first(admin: Admin) -> Figures:
    """Nothing yet but that the node answers."""
    topic_page(admin)
    return Figures(at=time.time())


async def history(shell: ConsoleShell, _request: Request) -> Response:
    """The points of the charts so far."""
    known = shell.sampler.history
    return JSONResponse({
        "at": [*known.times], "rate": [*known.records], "bytes": [*known.nbytes],
        "lag": [*known.lag],
    })  # fmt: skip


async def lag_history(shell: ConsoleShell, request: Request) -> Response:
    """The same of one group."""
    points = [*shell.sampler.lags.get(request.query_params.get("name", ""), ())]
    return JSONResponse({"at": [at for at, _ in points], "lag": [lag for _, lag in points]})


def events(figures: Figures) -> bytes:
    """A look as browsers hear it."""
    return msgspec.json.encode(live_fields(figures))


class LiveStream:
    """The stream of events; an application by itself, so that it counts who left before it began.
    Refuses more listeners than its bound."""

    def __init__(self, shell: ConsoleShell) -> None:
        self._shell = shell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        live = self._shell.live
        if not live.take():
            answer: Response = PlainTextResponse(
                "too many browsers listen: this page shows what is there when it is loaded\n", 503,
                headers={"Retry-After": "30"},
            )  # fmt: skip
            await answer(scope, receive, send)
            return
        self._shell.sampler.watchers = live.listeners
        self._shell.sampler.watch()
        session, sessions = scope["state"]["session"], self._shell.sessions
        has_login = self._shell.door.password is not None

        def may_hear() -> bool:
            return not has_login or sessions.is_open(session, time.time())

        try:
            answer = StreamingResponse(live.stream(may_hear), media_type="text/event-stream")
            await answer(scope, receive, send)
        finally:
            live.release()
            self._shell.sampler.watchers = live.listeners


async def login_page(shell: ConsoleShell, request: Request) -> Response:
    if shell.door.password is None:
        return RedirectResponse("/", 303)
    return shell.page(request, "login.html", failed=False)


async def login(shell: ConsoleShell, request: Request) -> Response:
    """Lets in who has the password, and slows down who guesses."""
    check_origin(request, shell.door.names)
    form, wanted = await form_of(request), shell.door.password
    if wanted is None:
        return RedirectResponse("/", 303)
    if not shell.sessions.may_try(_address(request), time.monotonic()):
        raise RefusedActionError(429, "too many attempts from your address: wait a minute")
    if not hmac.compare_digest(form.get("password", "").encode(), wanted.encode()):
        return shell.page(request, "login.html", 403, failed=True)
    answer = RedirectResponse("/", 303)
    session = shell.sessions.logged_in(time.time())
    cookie = cookie_text(shell.door, shell.door.cookie, session, SESSION_SECONDS)
    answer.headers.append("Set-Cookie", cookie)
    return answer


def _address(request: Request) -> str:
    return "0.0.0.0" if request.client is None else request.client.host


async def logout(shell: ConsoleShell, request: Request) -> Response:
    """Ends the session of this browser: its cookie is void from here on."""
    check_origin(request, shell.door.names)
    shell.sessions.end(request.state.session)
    answer = RedirectResponse(LOGIN, 303)
    answer.headers.append("Set-Cookie", cookie_text(shell.door, shell.door.cookie, "", 0))
    return answer
