"""Closes an object at the end of its `with` block, also after an exception."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from penstock.client.public_view import Shown


class Closing(Shown, ABC):
    """`with` ends in `close()`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class AsyncClosing(Shown, ABC):
    """`async with` ends in `await close()`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None: ...
