"""The parts that all pages share: how a page gets its data, how an action is planned and done, and
which answer each error is."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console.config import ConsoleConfig
from penstock.console.guard import (
    ConsoleDoor,
    RefusedActionError,
    Sessions,
    checked_form,
    cookie_text,
)
from penstock.console.link import BusyError, ConsoleSeat, NodeLink
from penstock.console.live import LiveEvents
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.sampler import Sampler
from penstock.console.web.rendering import NOTE_COOKIE, PageTemplates
from penstock.core import errors as er

logger = logging.getLogger("penstock.console")

NOTE_SECONDS: Final = 30
NOTE_CHARACTERS: Final = 500
QUERY_CHARACTERS_MAX: Final = 8192
PATH_SHOWN: Final = 100

T = TypeVar("T")
Form = Mapping[str, str]
Show = Callable[["ConsoleShell", Request], Awaitable[Response]]

STATUS: Final[tuple[tuple[type[er.PenstockError], int], ...]] = (
    (er.AccessDeniedError, 403),
    (er.ConfigError, 400),
    (er.UnknownTopicError, 404),
    (er.GroupError, 409),
    (er.TopicExistsError, 409),
    (er.OffsetOutOfRangeError, 404),
    (er.PenstockTimeout, 504),
    (BusyError, 503),
)
"""The answer to each error; others are 502."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change of the node. `plan` tells what it would do, `do` does it; both ask the node in a
    thread of the pool. `typed`: the field whose text is typed once more before it is done."""

    path: str
    plan: Callable[[ConsoleSeat, Form], ActionPlan]
    do: Callable[[ConsoleSeat, Form], ActionDone]
    typed: str = ""


class ConsoleShell:
    """The parts of one console."""

    def __init__(
        self, config: ConsoleConfig, door: ConsoleDoor, sessions: Sessions, link: NodeLink,
        sampler: Sampler, live: LiveEvents,
    ) -> None:  # fmt: skip
        self.config = config
        self.door = door
        self.sessions = sessions
        self.link = link
        self.sampler = sampler
        self.live = live
        self.followers = 0
        self._pages = PageTemplates()

    async def ask(self, work: Callable[[ConsoleSeat], T]) -> T:
        """Asks the node in a thread; nothing is changed by that."""
        return await self.link.run(work)

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        self.sampler.watch()
        note = self.sessions.unsealed(request.cookies.get(NOTE_COOKIE))
        return self._pages.page(
            request, template, status, note, has_login=self.door.password is not None,
            url=self.config.url, **values,
        )  # fmt: skip

    def done(self, outcome: ActionDone) -> Response:
        """Sends the browser to the next page, with a note for it."""
        answer = RedirectResponse(outcome.page, 303)
        sealed = self.sessions.sealed(outcome.note[:NOTE_CHARACTERS])
        text = cookie_text(self.door, NOTE_COOKIE, sealed, NOTE_SECONDS)
        answer.headers.append("Set-Cookie", text)
        return answer

    # --- routes ---
    def show(self, path: str, show: Show) -> Route:
        """A page that only reads."""
        return Route(path, partial(self._guarded, partial(show, self)), methods=["GET"])

    def post(self, path: str, take: Show) -> Route:
        """A form that checks itself."""
        return Route(path, partial(self._guarded, partial(take, self)), methods=["POST"])

    def action(self, action: Action) -> Route:
        """An action: its form is checked, shown as a plan, and done with `step=do`."""
        return Route(
            action.path, partial(self._guarded, partial(self._act, action)), methods=["POST"]
        )

    async def _act(self, action: Action, request: Request) -> Response:
        form = await checked_form(request, self.door.names)
        step, typed = form.pop("step", "plan"), form.pop("typed", None)
        name = wanted(form, action.typed) if action.typed else None
        if step != "do":
            plan = await self.ask(lambda seat: action.plan(seat, form))
            return self.page(
                request, "plan.html", plan=plan, action=action.path, fields=form, typed=name
            )
        if name is not None and typed != name:
            raise RefusedActionError(400, f"nothing was done: type {name} to say that it may")
        return self.done(await self.link.run(lambda seat: action.do(seat, form), reads=False))

    async def _guarded(
        self, show: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        try:
            if len(request.url.query) > QUERY_CHARACTERS_MAX:
                raise RefusedActionError(
                    414, f"the address has more than {QUERY_CHARACTERS_MAX} characters"
                )
            return await show(request)
        except RefusedActionError as error:
            return self._error(request, error.status, str(error))
        except er.NotConnectedError as error:
            return self.page(request, "away.html", 503, error=str(error))
        except er.PenstockError as error:
            status = next((code for kind, code in STATUS if isinstance(error, kind)), 502)
            if status == 502:
                logger.warning("%s failed: %s", request.url.path, error)
            return self._error(request, status, str(error))
        except ImportError as error:
            return self._error(request, 501, str(error))

    async def stray(self, request: Request, error: Exception) -> Response:
        """Answers a request that no route takes."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        said = {
            404: "there is no such page: the address is wrong, or of another version",
            405: "this address takes forms of a page, and shows nothing itself",
        }.get(status, "the console does not take this request")
        return self._error(request, status, f"{request.url.path[:PATH_SHOWN]}: {said}")

    def _error(self, request: Request, status: int, message: str) -> Response:
        return self.page(request, "error.html", status, error=message, code=status)


def integer(text: str | None, name: str, least: int = 0, most: int = 1 << 62) -> int | None:
    """A number of a form or an address; None where it is empty. Raises `ConfigError`."""
    given = (text or "").strip()
    if not given:
        return None
    digits = given.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise er.ConfigError(f"{name} {given!r:.50} is no whole number")
    if not least <= int(given) <= most:
        raise er.ConfigError(f"{name} {given:.50} lies outside {least} to {most}")
    return int(given)


def wanted(values: Mapping[str, str], name: str) -> str:
    """A field that has to be there. Raises `ConfigError`."""
    found = values.get(name, "").strip()
    if not found:
        raise er.ConfigError(f"{name} is missing")
    return found
