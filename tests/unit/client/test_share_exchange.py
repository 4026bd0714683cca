"""What a worker of a share group tells after a request of which it never saw the answer."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.share.exchange import ShareExchange
from penstock.client.share.leases import OpenLeases
from penstock.core import errors as er
from penstock.ipc import sharing as sh


class RefusingSession:
    """A connection to a coordinator that answers each request with this error."""

    def __init__(self, error: er.PenstockError) -> None:
        self.error = error
        self.asked: list[sh.AcquireRecords] = []
        self.next_ticket = 1

    def post(self, request: sh.AcquireRecords) -> None:
        self.asked.append(request)

    def collecting(self, *_: object) -> Iterator[Any]:
        raise self.error
        yield


@pytest.mark.parametrize("kind", [er.ResourceLimitError, er.NotLeaderError, er.PenstockTimeout])
def test_leases_of_a_request_that_was_refused_in_its_middle_go_back(kind: Any) -> None:
    """A request is a row of decisions: it may have been given records before one was refused."""
    session = RefusingSession(kind("ask again later"))
    reader: Any = SimpleNamespace(session=session)
    member: Any = SimpleNamespace(group="g", member_id="m", being_known=lambda _: _given(session))
    exchange = ShareExchange(
        reader, member, OpenLeases("g", {}, lambda: "m"), sh.ShareSettings(), 1.0
    )
    exchange._told = session  # type: ignore[assignment]
    _run(exchange.posting(1, [], []))
    with pytest.raises(kind):
        _run(exchange.collecting())
    _run(exchange.posting(1, [], []))
    assert [each.holds for each in session.asked] == [None, []]


def _given(session: RefusingSession) -> Generator[Any, None, RefusingSession]:
    return session
    yield


def _run(waits: Any) -> None:
    assert list(waits) == []
