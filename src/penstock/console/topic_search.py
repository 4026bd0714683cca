"""Looks for topics by their names, in pages. However many a cluster has, a look ends after some
time and says where the next one goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.topic_listing import TopicPage, TopicSummary

TOPICS_SHOWN: Final = 50
"""Topics of a page."""
SEARCH_SECONDS: Final = 1.0
"""A look that has found too little for a page ends then, and the next one goes on."""

Pages = Callable[[str], TopicPage]


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """A page of topics. `after`: where the next one begins; None: this is the last."""

    topics: tuple[TopicSummary, ...]
    after: str | None


def find_topics(
    pages: Pages, is_meant: Callable[[str], bool], after: str = "", seconds: float = SEARCH_SECONDS
) -> TopicsFound:
    """Topics with such names behind `after`. `pages` asks the node for the topics behind a name."""
    until = time.monotonic() + seconds
    found: list[TopicSummary] = []
    while True:
        page = pages(after)
        for each in page.topics:
            after = each.name
            if is_meant(each.name):
                found.append(each)
                if len(found) == TOPICS_SHOWN:
                    is_last = not page.more and each is page.topics[-1]
                    return TopicsFound(tuple(found), None if is_last else after)
        if not (page.more and page.topics):
            return TopicsFound(tuple(found), None)
        if time.monotonic() >= until:
            return TopicsFound(tuple(found), after)
