"""Templates of the console: everything that a page shows is escaped, where nothing says otherwise
(and nothing does)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from penstock.console.pages.links import page_link
from penstock.operations.wording import human_age, human_bytes, human_count, iso_time
from penstock.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request

NOTE_COOKIE: Final = "penstock_note"
NAV: Final = (
    ("", "Overview"), ("topics", "Topics"), ("groups", "Groups"), ("queues", "Queues"),
    ("letters", "Dead letters"), ("cluster", "Cluster"), ("security", "Security"),
    ("transactions", "Transactions"),
)  # fmt: skip


def environment() -> Environment:
    """Makes the templates' environment."""
    made = Environment(
        loader=PackageLoader("penstock.console", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals.update(page_link=page_link, NAV=NAV, version=__version__)
    made.filters.update(
        age=human_age,
        nbytes=human_bytes,
        count=human_count,
        when=_when,
        since=_since,
        number=_number,
    )
    return made


def _when(seconds: float | None) -> str:
    """Seconds since the epoch as a time."""
    return "-" if seconds is None else f"{iso_time(int(seconds * 1e6))[:19]}Z"


def _since(seconds: float | None) -> str:
    """How long ago that was."""
    return "-" if seconds is None else human_age(max(0.0, time.time() - seconds))


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


class PageTemplates:
    """Makes pages. `unsealed` reads the note that an action left for the next page."""

    def __init__(self) -> None:
        self._environment = environment()

    def page(
        self, request: Request, template: str, status: int = 200, note: str = "", **values: Any
    ) -> HTMLResponse:
        text = self._environment.get_template(template).render(
            token=getattr(request.state, "token", ""), path=request.url.path.strip("/"),
            is_in=getattr(request.state, "is_in", False), note=note, **values,
        )  # fmt: skip
        answer = HTMLResponse(text, status)
        if note:
            answer.set_cookie(NOTE_COOKIE, "", max_age=0, httponly=True, samesite="strict")
        return answer
