"""`Retry`: what it takes, which topics it names, and what a copy tells."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigError, Record, Retry
from penstock.client.retry.story import as_it_was, begun, copied_headers, told
from penstock.client.retry.topics import Level, RetryTopics
from penstock.ipc.sharing import FailureInfo


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"max": 0}, ConfigError, "max=0 must lie between 1 and 255"),
        ({"max": 256}, ConfigError, "between 1 and 255"),
        ({"max": 1.5}, TypeError, "must be int"),
        ({"backoff": (-1.0,)}, ConfigError, "backoff=-1.0 must lie between"),
        ({"backoff": (1.0, 1.0)}, ConfigError, "must grow"),
        ({"backoff": (10.0, 1.0)}, ConfigError, "must grow"),
        ({"backoff": ()}, ConfigError, "1 to 16 delays"),
        ({"backoff": range(17)}, ConfigError, "1 to 16 delays"),
        ({"backoff": 5.0}, TypeError, r"as \(1.0, 10.0, 60.0\)"),
        ({"backoff": ("1",)}, TypeError, "must be a number"),
        ({"topics": "{topic}.again"}, ConfigError, "has no {level}"),
        ({"topics": "again.{level}"}, ConfigError, "has no {topic}"),
        ({"topics": None}, TypeError, "must be str"),
        ({"fatal": "ValueError"}, TypeError, "must be exceptions"),
        ({"fatal": (KeyboardInterrupt,)}, TypeError, "must be exceptions"),
        ({"dead_letters": 5}, TypeError, "must be str"),
        ({"delays": (1.0,)}, TypeError, "has no option 'delays'"),
    ],
)
def test_what_a_policy_does_not_take(
    options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        Retry(**options)


def test_each_retry_has_a_level_and_the_last_counts_for_all_that_follow() -> None:
    policy = Retry(max=5, backoff=(1, 10, 60), fatal=ValueError)  # type: ignore[arg-type]
    assert [policy.levels[policy.level_of(n) - 1] for n in range(1, 6)] == [1.0, 10.0, 60.0, 60, 60]
    assert policy.fatal == (ValueError,)
    assert Retry(max=2).levels == (1.0, 10.0)


def test_topics_are_named_by_topic_group_and_level() -> None:
    names = RetryTopics(Retry(), "billing", ["orders", "{group}"])
    assert names.levels["orders.retry.billing.2"] == Level("orders", 2)
    assert names.levels["{group}.retry.billing.1"] == Level("{group}", 1)
    assert names.letters == {"orders": "orders.dlq", "{group}": "{group}.dlq"}


@pytest.mark.parametrize(
    ("policy", "sources", "says"),
    [
        (Retry(), ["orders.retry.billing.1"], "is a retry topic by its name"),
        (Retry(), ["orders.retry.others.12"], "is a retry topic by its name"),
        (Retry(topics="{topic}{level}"), ["orders1"], "is a retry topic by its name"),
        (Retry(topics="{topic}-{level}.dlq"), ["a", "a-2"], "would be a topic of dead letters"),
        (Retry(dead_letters="orders"), ["orders"], "on which"),
    ],
)
def test_names_that_would_meet_are_refused(policy: Retry, sources: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RetryTopics(policy, "billing", sources)


def test_a_copy_tells_its_story_and_anything_else_does_not() -> None:
    record = Record("orders", 1, 7, 1_000, b"k", b"v", (("own", b"1"), ("own", None)))
    story = begun(record, "billing")
    for number in range(7):
        story = story.failed(FailureInfo("member", number, "é" * 1000))
    copy = Record("again", 0, 0, 2_000, b"k", b"v", copied_headers(record.headers, story))
    assert told(copy) == story
    assert (story.deliveries, [one.at_us for one in story.failures]) == (7, [2, 3, 4, 5, 6])
    assert as_it_was(copy, story).headers == (*record.headers, ("penstock.retry.deliveries", b"8"))
    assert [len(one.reason) for one in story.shortened().failures] == [100]
    for value in (None, b"", b"{}", b'{"topic": 5}', b"\xff"):
        assert told(Record("again", 0, 0, 0, None, None, (("penstock.retry", value),))) is None
