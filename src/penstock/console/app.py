"""The application: its routes, its door, and what begins and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.console import guard
from penstock.console.config import ConsoleConfig
from penstock.console.guard import ConsoleDoor, ConsoleGuard, PeerCheck, Sessions
from penstock.console.link import NodeLink, NodePlaces
from penstock.console.live import LiveEvents
from penstock.console.sampler import Sampler
from penstock.console.web import (
    cluster,
    follow,
    groups,
    letters,
    overview,
    records,
    security,
    topics,
)
from penstock.console.web.shell import Action, ConsoleShell, Show

STATIC: Final = Path(__file__).parent / "static"
FILES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx-2.0.11.min.js": "text/javascript",
    "uplot-1.6.32.min.js": "text/javascript",
    "uplot-1.6.32.min.css": "text/css",
    "icon.svg": "image/svg+xml",
}
"""All files that a browser gets, with their types."""
PAGES: Final[tuple[tuple[str, Show], ...]] = (
    ("/", overview.overview),
    ("/history", overview.history),
    ("/lag", overview.lag_history),
    *topics.PAGES,
    *records.PAGES,
    ("/records/follow", follow.follow),
    *groups.PAGES,
    *letters.PAGES,
    *cluster.PAGES,
    *security.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *topics.ACTIONS,
    *records.ACTIONS,
    *groups.ACTIONS,
    *letters.ACTIONS,
    *cluster.ACTIONS,
    *security.ACTIONS,
)


def make_app(
    config: ConsoleConfig, port: int | None = None, is_peer_allowed: PeerCheck | None = None
) -> Starlette:
    """Makes the application of a console. `port`: where it really listens; `is_peer_allowed`: tells
    users of this host apart, where neither password nor proxy does."""
    port = config.port if port is None else port
    is_open = config.password is None and config.proxy is None
    door = ConsoleDoor(
        config.with_port(port), f"penstock_console_{port}", config.has_tls, config.password,
        config.proxy, is_peer_allowed if is_open else None,
    )  # fmt: skip
    live, sessions = LiveEvents(), Sessions()
    places = NodePlaces(config.url)
    link = NodeLink(places, config.keys)
    sampler = Sampler(places, config.keys, lambda figures: live.publish(overview.events(figures)))
    shell = ConsoleShell(config, door, sessions, link, sampler, live)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        live.bind()
        sampler.start()
        try:
            yield
        finally:
            live.close()
            await asyncio.to_thread(sampler.close)
            await asyncio.to_thread(link.close)

    app = Starlette(
        routes=routes(shell),
        lifespan=lifespan,
        middleware=[Middleware(ConsoleGuard, door=door, sessions=sessions)],
        exception_handlers={404: shell.stray, 405: shell.stray},
    )
    app.state.shell = shell
    return app


def routes(shell: ConsoleShell) -> list[BaseRoute]:
    found: list[BaseRoute] = [shell.show(path, page) for path, page in PAGES]
    found += [shell.action(action) for action in ACTIONS]
    found += [
        Route("/live", overview.LiveStream(shell), methods=["GET"]),
        shell.show(guard.LOGIN, overview.login_page),
        shell.post(guard.LOGIN, overview.login),
        shell.post("/logout", overview.logout),
        Route("/static/{name}", static, methods=["GET"]),
    ]
    return found


async def static(request: Request) -> Response:
    """A file of the console, by a name of the list."""
    name = request.path_params["name"]
    kind = FILES.get(name)
    if kind is None:
        return PlainTextResponse("there is no such file\n", 404)
    is_versioned = any(sign.isdigit() for sign in name)
    cache = "public, max-age=31536000, immutable" if is_versioned else "no-cache"
    return FileResponse(STATIC / name, media_type=kind, headers={"Cache-Control": cache})
