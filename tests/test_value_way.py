"""The way of a value is found, and does not become longer."""

from __future__ import annotations

import pytest
from value_way import way_of_a_value

AT_MOST = {
    "shm": {"producer": 8, "writer": 8, "consumer": 5},
    "tcp": {"producer": 12, "gateway": 11, "writer": 8, "consumer": 12},
}
"""Modules that have a value in their hands, for each process. These numbers only shrink; by TCP
four came when the bytes between client and gateway became ours, and not ZeroMQ's (0108)."""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_value_goes_through_no_more_modules_than_before(way):
    found = way_of_a_value(way)
    assert found["writer"][-1] == "core.storage"
    assert "client.consumer.records" in found["consumer"]
    longer = [role for role, modules in found.items() if len(modules) > AT_MOST[way][role]]
    assert not longer, found
