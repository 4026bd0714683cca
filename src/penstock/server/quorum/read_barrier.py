"""A look at the image that misses nothing: raft's ReadIndex, asked of the active controller."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Protocol, TypeVar

from penstock.core.errors import PenstockTimeout
from penstock.server.quorum import controller_requests as cr

APPLIED_POLL: Final = 0.01
"""Seconds between looks whether this broker has what was decided."""

R = TypeVar("R")


class ImageOwner(Protocol):
    """The quorum, as far as it is asked here."""

    @property
    def applied(self) -> int: ...
    async def ask(self, request: cr.QuorumRequest[R], timeout: float) -> R: ...


async def read_barrier(quorum: ImageOwner, timeout: float) -> dict[str, Any]:
    """Have in this broker's image all that anybody was told to be decided before this was called.
    The answer is what the quorum's leader knows of the quorum. A leader that another one has
    replaced, and that has not heard of it yet, knows less.

    Raises `PenstockTimeout`, and then the image is as it is; `ClosedError`."""
    until = time.monotonic() + timeout
    known = await quorum.ask(cr.Describe(), timeout)
    while quorum.applied < known["committed"]:
        if time.monotonic() > until:
            raise PenstockTimeout(
                f"this broker has {quorum.applied} of the {known['committed']} entries of the "
                f"controller's log after {timeout:g} s"
            )
        await asyncio.sleep(APPLIED_POLL)
    return known
