"""Server-sent events: what each look found, to all browsers that listen.

One text is made for all of them. A browser that is slow misses looks, and hears the newest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

LISTENERS_MAX: Final = 64
"""Browsers that listen at once; pages of others do not change by themselves."""
QUIET_SECONDS: Final = 15.0
"""After which a comment keeps the connection."""


class LiveEvents:
    """For one event loop; `publish` for any thread, once `bind` has told the loop."""

    def __init__(self) -> None:
        self.listeners = 0
        self.refused = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._text = b""
        self._number = 0
        self._is_closed = False

    def bind(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def publish(self, text: bytes) -> None:
        """Tells all listeners."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, text)

    def _tell(self, text: bytes) -> None:
        self._text = text
        self._number += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def end(self) -> None:
        """Ends all streams, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """Ends all streams."""
        self._is_closed = True
        self._news.set()

    def take(self) -> bool:
        """Counts a listener until `release`; False: there are as many as may be."""
        if self.listeners >= LISTENERS_MAX:
            self.refused += 1
            return False
        self.listeners += 1
        return True

    def release(self) -> None:
        self.listeners -= 1

    async def stream(self, may_hear: Callable[[], bool]) -> AsyncIterator[bytes]:
        """The events of one listener, the last one first, as long as it `may_hear` them."""
        heard = 0
        yield b"retry: 2000\n\n"
        while not self._is_closed and may_hear():
            news = self._news
            if heard != self._number:
                heard = self._number
                yield b"data: " + self._text + b"\n\n"
                continue
            try:
                await asyncio.wait_for(news.wait(), QUIET_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
