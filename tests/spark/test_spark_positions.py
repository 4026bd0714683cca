"""Offsets as Spark keeps them, limits of a trigger, and what a query lost, without a node."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigError
from penstock.spark.positions import Place, Range, StreamPositions, ranges
from penstock.spark.triggers import Span, TopicView, advance, capped, shares, split, standing

ID = "aa"
PARTITIONS = st.tuples(st.sampled_from("abc"), st.integers(0, 12))


def view(*ends: int, start: int = 0, epoch: int = 1, name: str = "t", topic_id: str = ID):
    return {name: TopicView(topic_id, {n: Span(start, e, e, epoch) for n, e in enumerate(ends)})}


def begun(*offsets: int, epoch: int = 1, is_initial: bool = False) -> StreamPositions:
    places = {("t", number): Place(offset, epoch) for number, offset in enumerate(offsets)}
    return StreamPositions({"t": ID}, places, is_initial)


def step(start: StreamPositions, now, limit: int | None = None, diverged=None) -> StreamPositions:
    return advance(start, now, standing(start, now, diverged or {}), limit)


def text(positions: StreamPositions) -> str:
    return json.dumps(positions.to_json())


# --- JSON ---
@given(st.dictionaries(PARTITIONS, st.integers(0, 1 << 60)))
def test_the_same_positions_are_the_same_text(places):
    made = []
    for items in (sorted(places.items()), sorted(places.items(), reverse=True)):
        ids = {topic: ID for (topic, _), _ in items}
        made.append(StreamPositions(ids, {name: Place(offset, 3) for name, offset in items}))
    assert text(made[0]) == text(made[1])
    assert StreamPositions.from_json(json.loads(text(made[0]))) == made[0]


def test_partitions_are_in_the_order_of_their_numbers():
    assert list(begun(*range(11)).to_json()["topics"]["t"]["partitions"]) == [
        str(number) for number in range(11)
    ]


def test_positions_of_another_source_or_version_say_so():
    with pytest.raises(ConfigError, match="another source's; use a new checkpoint"):
        StreamPositions.from_json({"t": {"0": 5}})
    with pytest.raises(ConfigError, match="positions of version 9"):
        StreamPositions.from_json({"version": 9})


# --- how much ---
@given(st.dictionaries(PARTITIONS, st.integers(0, 500)), st.integers(1, 600), st.integers(0, 99))
def test_a_limit_is_split_exactly(backlog, limit, turn):
    taken = shares(backlog, limit, turn)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert all(0 < count <= backlog[partition] for partition, count in taken.items())
    wanting = sum(left > 0 for left in backlog.values())
    assert len(taken) == min(limit, wanting)


def test_a_limit_is_split_in_proportion():
    taken = shares({("t", 0): 900, ("t", 1): 90, ("t", 2): 10}, 100)
    assert taken == {("t", 0): 88, ("t", 1): 10, ("t", 2): 2}


def test_fifteen_records_by_five_are_three_batches_however_they_lie():
    for ends in ((15,), (5, 5, 5), (13, 1, 1), (0, 14, 1), (3,) * 5, (1,) * 15):
        now, at = view(*ends), begun(*([0] * len(ends)), is_initial=True)
        batches: list[int] = []
        while (following := step(at, now, 5)) != at and (
            not batches or sum(p.offset for p in at.places.values()) < 15
        ):
            batches.append(sum(each.end - each.begin for each in ranges(at, following)))
            at = following
        assert batches == [5, 5, 5], ends


def test_no_partition_starves_where_there_are_more_than_the_limit():
    at, now = begun(*[0] * 7), view(*[10] * 7)
    for _ in range(4):
        at = step(at, now, 2)
    assert all(place.offset for place in at.places.values())


# --- going on ---
def test_the_first_batch_keeps_where_it_began():
    now = view(10, 5)
    first = step(begun(4, 5, is_initial=True), now)
    assert [(r.begin, r.end) for r in ranges(begun(4, 5, is_initial=True), first)] == [(4, 10)]
    later = begun(9, 5, is_initial=True)  # "latest", after a restart
    again = StreamPositions.from_json(json.loads(text(first)))
    assert [(r.begin, r.end) for r in ranges(later, again)] == [(4, 10)]


def test_nothing_new_is_the_same_text_whatever_became_of_the_epoch():
    at = step(begun(4, 5, is_initial=True), view(10, 5))
    assert text(step(at, view(10, 5, epoch=2))) == text(at)
    assert ranges(at, at) == []
    moved = step(at, view(10, 6, epoch=2))
    assert moved.places["t", 0] == at.places["t", 0]
    assert moved.places["t", 1] == Place(6, 2)


def test_new_partitions_start_at_earliest_also_when_planned_again():
    at = begun(10)
    end = step(at, view(12, 7))
    assert ranges(at, end) == [Range("t", ID, 0, 10, 12, 1, 1), Range("t", ID, 1, 0, 7, -1, 1)]
    assert not standing(at, view(12, 7), {}).losses
    assert ranges(end, step(end, view(12, 9))) == [Range("t", ID, 1, 7, 9, 1, 1)]


def test_a_new_partition_without_records_makes_no_batch():
    at = begun(10)
    assert text(step(at, view(10, 0))) == text(at)


def test_a_new_topic_is_read_whole():
    at = begun(10)
    now = {**view(10), **view(3, start=1, name="u", topic_id="bb")}
    assert standing(at, now, {}).losses == ()
    assert ranges(at, step(at, now)) == [Range("u", "bb", 0, 1, 3, -1, 1)]


def test_a_new_topic_of_which_a_limit_leaves_partitions_for_later_has_lost_nothing():
    at = begun(10)
    now = {**view(10), **view(9, 9, 5, start=5, name="u", topic_id="bb")}
    first = step(at, now, 1)
    assert len(ranges(at, first)) == 1
    assert losses(first, now) == ""
    second = step(first, now)
    assert sum(r.end - r.begin for r in [*ranges(at, first), *ranges(first, second)]) == 8


# --- losses ---
def losses(start: StreamPositions, now, diverged=None) -> str:
    return "; ".join(standing(start, now, diverged or {}).losses)


def test_retention_that_overtook_the_query_is_a_loss():
    at, now = begun(3), view(20, start=10)
    assert "t-0: the query is to go on at offset 3, but retention took" in losses(at, now)
    end = step(at, now)
    assert ranges(at, end) == [Range("t", ID, 0, 10, 20, -1, 1)]
    assert losses(end, now) == ""


def test_retention_that_left_nothing_is_told_once():
    at, now = begun(3), view(10, start=10)
    end = step(at, now)
    assert (losses(end, now), ranges(at, end)) == ("", [])
    assert text(step(end, now)) == text(end)


def test_a_new_partition_that_lost_records_already_is_told_once():
    at, now = begun(3), view(3)
    now["t"].spans[1] = Span(7, 7, 7, 1)
    assert "t-1, which is new, starts at 7" in losses(at, now)
    end = step(at, now)
    assert (losses(end, now), ranges(at, end)) == ("", [])


@pytest.mark.rule(15)
def test_rule_15_a_log_that_parted_and_was_trimmed_goes_on_where_it_starts():
    at, now = begun(30, epoch=1), view(40, start=20, epoch=2)
    assert ranges(at, step(at, now, diverged={("t", 0): 10})) == [Range("t", ID, 0, 20, 40, -1, 2)]


@pytest.mark.rule(15)
def test_rule_15_a_log_that_parted_is_a_loss():
    at, now = begun(30, epoch=1), view(40, epoch=2)
    assert losses(at, now) == ""  # epochs move without a loss, too
    assert "leader epoch 1, but that epoch's log ends at 25" in losses(at, now, {("t", 0): 25})
    assert ranges(at, step(at, now, diverged={("t", 0): 25})) == [Range("t", ID, 0, 25, 40, -1, 2)]


def test_a_log_that_ends_before_the_query_is_a_loss():
    assert "go on at offset 30, but the log ends at 20" in losses(begun(30), view(20))


def test_an_open_transaction_is_no_loss():
    now = {"t": TopicView(ID, {0: Span(0, 10, 40, 1)})}
    at = begun(30)
    assert losses(at, now) == ""
    assert text(step(at, now)) == text(at)


def test_a_topic_made_anew_is_another_topic():
    at, now = begun(30, 30), view(5, 0, topic_id="bb")
    assert "topic 't' was deleted and made again" in losses(at, now)
    end = step(at, now, 1)
    assert (end.ids, ranges(at, end)) == ({"t": "bb"}, [Range("t", "bb", 0, 0, 1, -1, 1)])
    assert losses(end, now) == ""
    assert ranges(end, step(end, now)) == [Range("t", "bb", 0, 1, 5, 1, 1)]


def test_a_topic_made_anew_with_as_many_records_is_read_too():
    at = step(begun(0), view(5, name="u"))  # its first batch says where it began
    assert at.places["u", 0].begin == 0
    end = step(at, view(5, name="u", topic_id="bb"))
    assert ranges(at, end) == [Range("u", "bb", 0, 0, 5, -1, 1)]


def test_a_topic_that_is_gone_is_a_loss():
    assert losses(begun(30, 30), {}) == "topic 't' is not there any more, or not subscribed to " \
        "any more"  # fmt: skip
    assert "t-1 is not subscribed to" in losses(begun(1, 1), view(1))


# --- until now only ---
def test_what_came_after_the_target_is_left():
    target, now = view(5), view(9, 4)
    at = step(begun(0, is_initial=True), capped(now, target))
    assert ranges(begun(0), at) == [Range("t", ID, 0, 0, 5, 1, 1)]
    assert text(step(at, capped(now, target))) == text(at)


# --- tasks ---
def test_ranges_are_cut_where_more_partitions_are_wanted():
    whole = [Range("t", ID, 0, 0, 90, 1, 1), Range("t", ID, 1, 5, 15, 1, 1)]
    assert split(whole, 2) == whole
    assert split(whole, None) == whole
    cut = split(whole, 5)
    assert [(r.partition, r.begin, r.end) for r in cut] == [
        (0, 0, 22), (0, 22, 45), (0, 45, 67), (0, 67, 90), (1, 5, 15),
    ]  # fmt: skip
    assert split([Range("t", ID, 0, 0, 2)], 10) == [
        Range("t", ID, 0, 0, 1), Range("t", ID, 0, 1, 2),
    ]  # fmt: skip


# --- any history ---
STEPS = st.one_of(
    st.tuples(st.just("grow"), st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("add"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("plan"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("epoch"), st.just(0), st.just(0)),
)


@given(st.lists(STEPS, max_size=40), st.booleans())
def test_any_history_reads_each_offset_once_and_again_the_same(steps, from_latest):
    ends, epoch = [3, 0], 1
    checkpoint: list[str] = []
    read: dict[int, int] = {}

    def initial() -> StreamPositions:  # as each run of the query finds it
        return begun(*(ends if from_latest else [0] * len(ends)), epoch=epoch, is_initial=True)

    known = initial()  # remembered within a run

    def stored(number: int) -> StreamPositions:
        return known if number < 0 else StreamPositions.from_json(json.loads(checkpoint[number]))

    for kind, first, second in steps:
        if kind == "grow":
            ends[first % len(ends)] += second
        elif kind == "add":
            ends.append(second)
        elif kind == "epoch":
            epoch += 1
        else:
            start = stored(len(checkpoint) - 1)
            limit = first or None
            before = text(start)
            end = text(step(start, view(*ends, epoch=epoch), limit))
            if checkpoint and end == before:
                continue
            if not checkpoint:
                read = {number: place.offset for (_, number), place in start.places.items()}
            checkpoint.append(end)
            planned = ranges(start, stored(len(checkpoint) - 1))
            if second:  # the driver dies, and the world goes on before the batch is run again
                ends[0] += 1
                ends.append(4)
                known = initial()
                again = ranges(stored(len(checkpoint) - 2), stored(len(checkpoint) - 1))
                assert [(r.partition, r.begin, r.end) for r in again] == [
                    (r.partition, r.begin, r.end) for r in planned
                ]
            assert planned or len(checkpoint) == 1
            assert limit is None or sum(r.end - r.begin for r in planned) <= limit
            for each in planned:
                assert each.begin == read.get(each.partition, 0)
                read[each.partition] = each.end
    if checkpoint:
        for each in ranges(last := stored(len(checkpoint) - 1), step(last, view(*ends))):
            assert each.begin == read.get(each.partition, 0)
            read[each.partition] = each.end
        assert read == {number: end for number, end in enumerate(ends) if end or number in read}
