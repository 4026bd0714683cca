"""A batch for a page that its writer has not opened yet in this boot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from produce_fixture import Sending

from penstock.core.errors import ErrorCode


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    made = Sending(tmp_path)
    yield made
    made.close()


def test_a_page_that_is_not_open_yet_is_left_to_its_writer(sending: Sending) -> None:
    """After a reboot the node admits clients after `drain_timeout`, open or not: it is no topic
    that was deleted, and the writer opens its partitions before it looks at any lane."""
    sending.send()
    assert sending.said == []
    assert len(sending.asked) == 1  # the lane


def test_a_page_of_another_topic_is_refused_here(sending: Sending) -> None:
    sending.page.claim(b"o" * 16, 0, 1)
    sending.send()
    [told] = sending.said
    assert [ack.error for ack in told.acks] == [ErrorCode.WRONG_TOPIC_ID]
    assert sending.charged == [1], "nothing else bounds how many are sent"
