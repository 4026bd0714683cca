"""Connections by their descriptors, which may be somebody else's by then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.gateway.listener import Listener


@pytest.mark.parametrize("look", [Listener.bytes_received, Listener.shut_down])
def test_a_descriptor_that_is_no_socket_any_more_costs_none(
    tmp_path: Path, look: Callable[[int], object]
) -> None:
    with (tmp_path / "segment").open("wb") as file:
        before = os.listdir("/proc/self/fd")
        assert not look(file.fileno())
        assert os.listdir("/proc/self/fd") == before
        file.write(b"still open")
