"""What is known of dead letters that were sent again, which are chosen, and what headers tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumer.records import Record
from penstock.client.deadletters.choice import ONLY_MAX, LetterChoice
from penstock.client.deadletters.replayed import BLOCK, ReplayedLetters
from penstock.client.deadletters.stats import NAMES_MAX, OTHERS, DeadLetterStats
from penstock.client.deadletters.story import EARLIER, PREFIX, earlier_story, letter_of
from penstock.core.errors import ConfigError

marks = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3 * BLOCK))
STORY = tuple(
    (PREFIX + name, value)
    for name, value in (
        ("topic", b"jobs"), ("partition", b"1"), ("offset", b"7"), ("group", b"g"),
        ("deliveries", b"5"), ("timestamp", b"-3"), ("reason", b"a.b.Odd: x"),
    )
)  # fmt: skip


def record(*headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
    return Record("jobs.dlq", 2, 9, 1_000_000, b"k", value, headers)


@given(st.lists(st.lists(marks, max_size=20), max_size=6), st.integers(0, 3 * BLOCK))
def test_what_was_sent_again_is_known_from_its_topic(
    runs: list[list[tuple[int, int, int]]], start: int
) -> None:
    log: list[tuple[bytes, bytes | None]] = []
    sent: set[tuple[int, int, int]] = set()
    for run in runs:
        known = learned(log)
        assert all((mark in known) == (mark in sent) for one in runs for mark in one)
        for mark in run:
            known.add(mark)
        sent.update(run)
        log += known.changes()
        assert [*known.changes()] == []
    known = learned(log)
    log += [(key, None) for key in known.forgotten({0: start})]
    for mark in sent:
        is_gone = mark[0] == 0 and (mark[2] // BLOCK + 1) * BLOCK <= start
        assert (mark in known) == (mark in learned(log)) == (not is_gone)
    assert all(mark not in ReplayedLetters("another") for mark in sent)


def learned(log: list[tuple[bytes, bytes | None]]) -> ReplayedLetters:
    known = ReplayedLetters("a1")
    for key, value in [(b"fence", b"token"), (b"\xff-0-0-0", b""), (b"a1-x-0-0", b""), *log]:
        known.learn(key, value)
    return known


def test_what_others_wrote_there_is_told() -> None:
    with pytest.raises(ConfigError, match="others write to that topic"):
        ReplayedLetters("a1").learn(b"a1-0-0-0", b"short")


def test_headers_tell_the_story_and_what_is_none_is_passed_over() -> None:
    letter = letter_of(record(("own", None), *STORY, ("penstock.replays", b"2")), 4)
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp) == ("jobs", 1, 7, -3)
    assert (letter.place, letter.mark, letter.exception) == ((2, 9), (2, 4, 9), "a.b.Odd")
    assert (letter.worker, letter.history, letter.replays) == (None, (), 2)
    assert letter.headers_again() == (("own", None), ("penstock.replays", b"3"))
    for missing in range(5):
        assert letter_of(record(*STORY[:missing], *STORY[missing + 1 :])) is None
    for text in (b"", b"x", b"-1", b"9" * 30, b"9" * 5000):
        assert letter_of(record(*STORY, (f"{PREFIX}offset", text))) is None


@given(st.lists(st.tuples(st.sampled_from([name for name, _ in STORY]), st.binary() | st.none())))
def test_no_header_makes_it_fail(headers: list[tuple[str, bytes | None]]) -> None:
    found = letter_of(record(*STORY, *headers, ("penstock.replays", b"x"), (EARLIER, b"[1]")))
    if found is not None:
        assert found.headers_again() == (("penstock.replays", b"1"),)


def test_the_story_of_an_earlier_death_is_kept_where_the_topic_is_another() -> None:
    assert earlier_story(STORY, STORY) == ()
    assert earlier_story((("own", b"1"),), STORY) == ()
    twice = tuple((PREFIX + key, value) for key, value in (
        ("topic", b"jobs.dlq"), ("partition", b"0"), ("offset", b"1"), ("group", b"h"),
        ("deliveries", b"1"),
    ))  # fmt: skip
    [(name, told)] = earlier_story(((EARLIER, b"{}"), *STORY), twice)
    letter = letter_of(record(*twice, (name, told)))
    assert letter is not None
    assert letter.headers_again() == (*STORY, ("penstock.replays", b"1"))


def test_single_ones_and_ranges_are_found_by_place() -> None:
    choice = LetterChoice.of(only=[(0, range(5, 9)), (0, 3), (0, range(8, 12)), (2, range(4, 4))])
    assert [at for at in range(20) if choice.has((0, at))] == [3, 5, 6, 7, 8, 9, 10, 11]
    assert not choice.has((1, 3))
    assert choice.span(0, 4, 100) == (4, 12)
    assert choice.span(0, 0, 6) == (3, 6)
    assert choice.span(1, 4, 100) == choice.span(2, 4, 100) == (4, 4)
    assert LetterChoice.of(1).span(0, 4, 100) == (4, 4)
    with pytest.raises(ConfigError, match="at most"):
        LetterChoice.of(only=[(0, 1)] * (ONLY_MAX + 1))


def test_counts_are_bounded() -> None:
    stats = DeadLetterStats()
    for number in range(NAMES_MAX + 5):
        letter = letter_of(record(*STORY, (f"{PREFIX}reason", b"no %d" % number)))
        assert letter is not None
        stats.add([letter])
    assert len(stats.by_reason) == NAMES_MAX + 1
    assert stats.by_reason[OTHERS] == 5
    assert stats.by_age == {"older": NAMES_MAX + 5}
