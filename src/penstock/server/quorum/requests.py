"""Requests from one broker's node to another's, for the servers of each kind there.

Sent once: a caller that gets no answer asks again itself, where asking twice does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.core.errors import (
    ConfigError,
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
    named,
)
from penstock.server.quorum.messages import BODY_BYTES_MAX, TEXT_MAX, Request, Response

logger = logging.getLogger("penstock.quorum")

REQUESTS_MAX: Final = 4_096
"""Requests of this broker that wait for an answer, and of all others that are served here."""

Handler = Callable[[int, bytes], Awaitable[bytes]]


class Requests:
    """`send(broker, message)`: whether it left."""

    def __init__(self, send: Callable[[int, Request | Response], bool]) -> None:
        self._send = send
        self._number = int.from_bytes(os.urandom(6), "little") << 8
        self._asked: dict[int, tuple[int, asyncio.Future[Response]]] = {}
        self._handlers: dict[str, Handler] = {}
        self._served: set[asyncio.Task[None]] = set()

    def serve(self, kind: str, handler: Handler) -> None:
        self._handlers[kind] = handler

    async def request(self, broker: int, kind: str, body: bytes, timeout: float) -> bytes:
        """See `Quorum.request`."""
        if len(body) > BODY_BYTES_MAX or len(self._asked) >= REQUESTS_MAX:
            raise ResourceLimitError(
                f"{kind} of {len(body)} bytes for broker {broker}: {BODY_BYTES_MAX} bytes is the "
                f"bound of one, and {REQUESTS_MAX} that of those that wait"
            )
        self._number += 1
        number = self._number
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._asked[number] = broker, waiting
        try:
            if not self._send(broker, Request(number, kind, body)):
                raise NotConnectedError(f"{kind}: broker {broker} is not connected: try again soon")
            async with asyncio.timeout(timeout):
                response = await waiting
        except TimeoutError:
            raise PenstockTimeout(
                f"{kind}: no answer of broker {broker} within {timeout:g} s"
            ) from None
        finally:
            del self._asked[number]
        if response.error:
            raise named(response.error, response.message)
        return response.body

    def responded(self, node: int, response: Response) -> None:
        broker, waiting = self._asked.get(response.number, (None, None))
        if broker == node and waiting is not None and not waiting.done():
            waiting.set_result(response)

    def asked(self, node: int, request: Request) -> None:
        if len(self._served) >= REQUESTS_MAX:
            error = ResourceLimitError(f"{REQUESTS_MAX} requests of other brokers are served here")
            self._refuse(node, request, error)
            return
        task = asyncio.create_task(self._serve(node, request), name=f"serve {request.kind}")
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve(self, node: int, request: Request) -> None:
        try:
            handler = self._handlers.get(request.kind)
            if handler is None:
                raise ConfigError(f"nobody serves {request.kind!r} there: not yet, or not any more")
            body = await handler(node, request.body)
            if len(body) > BODY_BYTES_MAX:
                raise ResourceLimitError(
                    f"the answer has {len(body)} bytes, and may have {BODY_BYTES_MAX}"
                )
        except PenstockError as error:
            self._refuse(node, request, error)
            return
        except Exception as error:
            logger.exception("%s of broker %d failed", request.kind, node)
            self._refuse(node, request, PenstockError(f"{request.kind} failed: {error!r}"))
            return
        self._send(node, Response(request.number, body))

    def _refuse(self, node: int, request: Request, error: PenstockError) -> None:
        text = str(error)[:TEXT_MAX]
        self._send(node, Response(request.number, error=type(error).__name__, message=text))

    async def close(self) -> None:
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
