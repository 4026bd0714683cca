"""In which order a mirrored page shows another leader epoch."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import pytest

from penstock.client.remote.mirror import MirroredPages
from penstock.cluster.frames.messages import PageState
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage

TOPIC = b"t" * 16


def state(leader_epoch: int, end: int) -> PageState:
    return PageState(0, TOPIC, 0, 1, 0, 1, leader_epoch, 0, end, end, end, end)


@pytest.mark.rule(15)
def test_rule_15_durable_of_the_next_epoch_is_never_seen_in_the_one_before() -> None:
    """A producer on another thread reads `durable`, then the epoch, at any moment."""
    pages = MirroredPages(b"n" * 16)
    pages.publish([state(1, 10)])
    region = Region.of_fd(os.dup(pages.fd))
    page = StatePage(region, 0)
    seen: set[tuple[int, int]] = set()

    def look(_frame: FrameType, _event: str, _arg: Any) -> Any:
        seen.add((page.leader_epoch, page.durable))
        return look

    sys.settrace(look)
    try:
        pages.publish([state(2, 50)])
    finally:
        sys.settrace(None)
    assert (1, 50) not in seen
    assert (2, 50) in seen | {(page.leader_epoch, page.durable)}
    region.close()
    pages.close()
