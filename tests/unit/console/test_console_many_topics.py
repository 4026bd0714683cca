"""The console's lists of 100,000 topics and partitions: more than a node has, so they are fed with
what an admin answers. Each page asks a little, keeps a little and is of a size."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.admin.admin import PartitionDescription, TopicDescription
from penstock.client.admin.topic_listing import TopicPage, TopicSummary
from penstock.console.pages.topics import PARTITIONS_SHOWN, topic_model
from penstock.console.topic_search import TOPICS_SHOWN, find_topics
from penstock.console.web.rendering import PageTemplates
from penstock.ipc.messages import TOPICS_PER_PAGE

MANY = 100_000
PAGE_BYTES_MAX = 64 << 10


class Answers:
    """Topics as an admin lists them, counted."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self.asked = 0

    def __call__(self, after: str) -> TopicPage:
        self.asked += 1
        start = bisect_right(self._names, after)
        some = self._names[start : start + TOPICS_PER_PAGE]
        return TopicPage(
            tuple(TopicSummary(name, "", 3, 7, 7, 70, 0, None, None, "delete", "os")
                  for name in some),
            start + TOPICS_PER_PAGE < len(self._names),
        )  # fmt: skip


@pytest.fixture(scope="module")
def names() -> list[str]:
    return [f"topic-{number:06}" for number in range(MANY)]


def rendered(template: str, **values: Any) -> str:
    request: Any = SimpleNamespace(url=SimpleNamespace(path="/"), state=SimpleNamespace(token="t"))
    answer = PageTemplates().page(
        request, template, has_login=False, url="shm://", rate=None, rates={}, **values
    )
    return bytes(answer.body).decode()


def pages(answers: Answers, part: str = "") -> Iterator[tuple[str, ...]]:
    after: str | None = ""
    while after is not None:
        found = find_topics(answers, lambda name: part in name, after)
        yield tuple(each.name for each in found.topics)
        after = found.after


def test_each_topic_is_on_one_page_that_took_one_or_two_requests(names: list[str]) -> None:
    answers = Answers(names)
    listed = list(pages(answers))
    assert [name for page in listed for name in page] == names
    assert len(listed) == MANY / TOPICS_SHOWN
    assert answers.asked == len(listed)


def test_a_filter_finds_the_last_of_all_topics(names: list[str]) -> None:
    answers = Answers(names)
    assert [name for page in pages(answers, "c-099999") for name in page] == ["topic-099999"]
    assert answers.asked <= MANY / TOPICS_PER_PAGE + 1


def test_a_look_ends_in_time_and_the_next_one_goes_on(names: list[str]) -> None:
    answers = Answers(names)
    found = find_topics(answers, lambda name: name.endswith("9999"), seconds=0.0)
    assert (found.topics, found.after, answers.asked) == ((), names[TOPICS_PER_PAGE - 1], 1)


def test_a_page_of_topics_keeps_little_and_is_small(names: list[str]) -> None:
    answers = Answers(names)
    find_topics(answers, lambda _: True)
    tracemalloc.start()
    found = find_topics(answers, lambda name: "77" in name, names[50_000])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    page = rendered("topics.html", found=found, search="77")
    assert page.count("/topic?name=") == TOPICS_SHOWN
    assert f"after={found.after}" in page
    assert len(page) < PAGE_BYTES_MAX


def test_the_partitions_of_a_topic_come_in_pages_and_those_that_are_not_well_alone() -> None:
    well = PartitionDescription(
        0, 0, "online", 0, 5, 5, 5, 5, 3, {"bytes": 9}, {}, 1, (1, 2, 3), (1, 2, 3)
    )
    parts = [well] * MANY
    for number in (70_000, 80_000, 90_000):
        parts[number] = replace(well, partition=number)
    parts[70_000] = replace(parts[70_000], isr=(1, 2))
    parts[80_000] = replace(parts[80_000], leader=None)
    parts[90_000] = replace(parts[90_000], status="offline")
    topic = TopicDescription("wide", "id", {}, parts, {"level": "ok"})
    for first in (0, 500, MANY - PARTITIONS_SHOWN):
        model = topic_model(topic, (), first)
        assert model.partitions == tuple(parts[first : first + PARTITIONS_SHOWN])
        assert model.next in (first + PARTITIONS_SHOWN, None)
    assert model.next is None
    page = rendered("topic.html", topic=model)
    assert "Partitions 99900 to 99999 of 100,000." in page
    assert len(page) < PAGE_BYTES_MAX
    assert topic_model(topic, (), 10 * MANY).first == MANY - 1
    ill = topic_model(topic, (), 0, ill=True)
    assert [part.partition for part in ill.partitions] == [70_000, 80_000, 90_000]
    assert "3 of 100,000" in rendered("topic.html", topic=ill)
