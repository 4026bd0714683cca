"""An attachment that an exception ends while it is made: one owner closes each of its ends."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from penstock.client.remote.address import RemoteAddress


class StruckCarrier:
    """An exception comes once the order is posted; `is_first`: the carrier took the end before."""

    def __init__(self, *, is_first: bool) -> None:
        self.is_first = is_first
        self.given: list[socket.socket] = []
        self.ends: list[socket.socket] = []

    def serve(self, _link: Any, ends: list[socket.socket]) -> None:
        self.given, self.ends = list(ends), ends
        if self.is_first:
            ends.pop()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_first", [True, False])
def test_what_the_carrier_has_taken_is_closed_by_nobody_else(monkeypatch, is_first):
    address = RemoteAddress((("127.0.0.1", 9),))
    carrier = StruckCarrier(is_first=is_first)
    monkeypatch.setattr(address, "_running", lambda: carrier)
    with pytest.raises(KeyboardInterrupt):
        address.link()
    [theirs] = carrier.given
    assert (theirs.fileno() >= 0) == is_first
    assert carrier.ends == [], "who comes later finds that it has an owner"
    if is_first:
        assert theirs.recv(1) == b"", "it learns that the other end is gone"
        theirs.close()
