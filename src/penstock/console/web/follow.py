"""New records of a topic as they come, as server-sent events: a bounded look each second.

A follower holds no consumer and no thread between two looks. One that falls behind passes over
records, and is told how many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import StreamingResponse

from penstock.console.browse import browse
from penstock.console.link import BusyError
from penstock.console.pages.records import row_of
from penstock.console.web.records import asked_query
from penstock.core import errors as er

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from penstock.console.browse import RecordQuery, RecordsFound
    from penstock.console.link import ConsoleSeat
    from penstock.console.web.shell import ConsoleShell

FOLLOWERS_MAX: Final = 8
"""Browsers that follow records at once."""
LOOK_EVERY: Final = 1.0
BEHIND_MAX: Final = 5000
"""Offsets that a follower may be behind; then it goes on with the newest."""


class FollowResponse(StreamingResponse):
    """Calls `release` when it ends, also where the browser left before it began."""

    def __init__(self, body: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(body, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def follow(shell: ConsoleShell, request: Request) -> Response:
    query = asked_query(request)
    await shell.ask(lambda seat: seat.admin.describe_topic(query.topic))
    if shell.followers >= FOLLOWERS_MAX:
        raise BusyError(
            f"{FOLLOWERS_MAX} browsers follow records, which is the most (FOLLOWERS_MAX): end one"
        )
    shell.followers += 1

    def release() -> None:
        shell.followers -= 1

    session, has_login = request.state.session, shell.door.password is not None

    def may_hear() -> bool:
        is_open = not has_login or shell.sessions.is_open(session, time.time())
        return is_open and not shell.live.is_closed

    return FollowResponse(_events(shell, query, may_hear), release)


def _look(query: RecordQuery, seat: ConsoleSeat) -> RecordsFound:
    return browse(seat.client, query)


async def _events(
    shell: ConsoleShell, query: RecordQuery, may_hear: Callable[[], bool]
) -> AsyncIterator[bytes]:
    places: dict[int, int] = {}
    yield b"retry: 2000\n\n"
    while may_hear():
        look = partial(_look, replace(query, start=None, at=places))
        try:
            found = await shell.ask(look)
        except (er.NotConnectedError, er.PenstockTimeout, BusyError):
            yield b": the node is away\n\n"
        except (er.PenstockError, ImportError) as error:
            yield b"event: over\ndata: " + msgspec.json.encode(str(error)) + b"\n\n"
            return
        else:
            places = {number: end for number, (_, end) in found.spans.items()}
            skipped = found.left if found.left > BEHIND_MAX else 0
            if not skipped and found.next is not None:
                places = found.next
            rows = sorted(found.records, key=lambda one: (one.timestamp, one.offset))
            news = {"rows": [asdict(row_of(one)) for one in rows], "skipped": skipped}
            yield b"data: " + msgspec.json.encode(news) + b"\n\n"
        await asyncio.sleep(LOOK_EVERY)
