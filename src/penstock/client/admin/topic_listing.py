"""Topics of a node as a list shows them: sizes and counters, a page at a time.

One request brings the topics of a page, and what is known of their partitions is in shared memory
or comes with one request for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.remote.logs import logs_of
from penstock.client.session import Session
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.waits import run


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list. `offsets`: how many are kept; `records` and `nbytes`: what was appended
    since the writers began to count. `offline`: partitions whose log takes nothing. `retention`:
    seconds, None for ever."""

    name: str
    topic_id: str
    partitions: int
    offsets: int
    records: int
    nbytes: int
    offline: int
    retention: float | None
    retention_bytes: int | None
    cleanup: str
    durability: str


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics, in the order of their names. `more`: others come behind them."""

    topics: tuple[TopicSummary, ...]
    more: bool


class TopicListing:
    """`ask` sends a request of an admin."""

    def __init__(self, ask: Callable[[Any, Any], Any], session: Session, timeout: float) -> None:
        self._ask = ask
        self._session = session
        self._timeout = timeout

    def page(self, after: str) -> TopicPage:
        """The topics whose names sort behind `after`."""
        answer: ms.Topics = self._ask(ms.ListTopics(after), ms.Topics)
        pages = {info.name: [self._session.page(page) for page in info.pages]
                 for info in answer.topics}  # fmt: skip
        logs = logs_of(self._session, self._timeout)
        run(logs.refreshing([page for each in pages.values() for page in each]))
        found = []
        for info in answer.topics:
            states = pages[info.name]
            counters = [state.counters() for state in states]
            settings = info.settings
            found.append(TopicSummary(
                info.name, info.topic_id.hex(), len(states),
                sum(max(0, state.high_watermark - state.log_start) for state in states),
                sum(each["records"] for each in counters),
                sum(each["bytes"] for each in counters),
                sum(lo.STATUS_NAMES.get(state.status) != "online" for state in states),
                settings.retention, settings.retention_bytes, settings.cleanup,
                settings.durability,
            ))  # fmt: skip
        return TopicPage(tuple(found), answer.more)
