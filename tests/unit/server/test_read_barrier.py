"""A broker that lags shows nothing older than what somebody was told is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.core.errors import PenstockTimeout
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum.read_barrier import read_barrier


class Lagging:
    """A broker's quorum whose leader has committed five entries."""

    applied = 3

    async def ask(self, request: cr.QuorumRequest[Any], timeout: float) -> Any:
        assert isinstance(request, cr.Describe)
        return {"committed": 5, "term": 2}


def test_it_waits_until_what_is_committed_is_applied_here():
    async def test() -> None:
        quorum = Lagging()
        waiting = asyncio.create_task(read_barrier(quorum, 10.0))
        for quorum.applied in (3, 4):
            await asyncio.sleep(0.02)
            assert not waiting.done()
        quorum.applied = 5
        assert (await waiting)["term"] == 2

    asyncio.run(test())


def test_a_broker_that_stays_behind_says_how_far_it_is():
    with pytest.raises(PenstockTimeout, match=r"3 of the 5 entries .* after 0\.02 s"):
        asyncio.run(read_barrier(Lagging(), 0.02))
