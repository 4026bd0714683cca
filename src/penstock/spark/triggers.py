"""Computes what a trigger may take, and what was lost since the last one.

Compares the positions of a query (`penstock.spark.positions`) with the present topics, splits
limits among partitions and ranges among tasks. Pure: no clock, no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from penstock.spark.positions import EPOCH_UNKNOWN, Partition, Place, Range, StreamPositions


@dataclass(frozen=True, slots=True)
class Span:
    """The present state of a partition: `start` to `end` may be read. `log_end`: the end of all
    records, some of which may not be read yet."""

    start: int
    end: int
    log_end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """The present state of a topic, with the partitions that the query reads of it."""

    id: str
    spans: dict[int, Span]


View = Mapping[str, TopicView]


# --- how much a trigger takes ---------------------------------------------------------------------
def shares(backlog: Mapping[Partition, int], limit: int, turn: int = 0) -> dict[Partition, int]:
    """Splits `limit` among partitions: at least 1 for each that has something, the rest in
    proportion, `limit` in all unless there is less. With more partitions than `limit`, that many
    have one each, beginning at `turn`, which grows by `limit` from call to call."""
    wanting = sorted(partition for partition, left in backlog.items() if left > 0)
    total = sum(backlog[partition] for partition in wanting)
    if total <= limit:
        return {partition: backlog[partition] for partition in wanting}
    count = len(wanting)
    if limit < count:
        return {wanting[(turn + step) % count]: 1 for step in range(limit)}
    room, rest = limit - count, total - count
    parts = {partition: divmod(room * (backlog[partition] - 1), rest) for partition in wanting}
    taken = {partition: 1 + whole for partition, (whole, _) in parts.items()}
    left = limit - sum(taken.values())
    for partition in sorted(wanting, key=lambda each: (-parts[each][1], each))[:left]:
        taken[partition] += 1
    return taken


# --- from where a trigger goes on -----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TriggerStanding:
    """The places where a query goes on, and what it lost before them. `is_new`: partitions for
    which the start of the batch does not say where it begins, so its end has to."""

    begins: dict[Partition, int] = field(default_factory=dict)
    is_new: frozenset[Partition] = frozenset()
    losses: tuple[str, ...] = ()


def standing(
    start: StreamPositions, now: View, diverged: Mapping[Partition, int]
) -> TriggerStanding:
    """Compares a query's positions with what is there. `diverged`: where the log parted from what
    was read, of those partitions whose leader epoch says that it may have."""
    begins: dict[Partition, int] = {}
    new: set[Partition] = set()
    losses: list[str] = []
    for topic, view in sorted(now.items()):
        known = start.ids.get(topic)
        if known is not None and known != view.id:
            losses.append(f"topic {topic!r} was deleted and made again (id {view.id})")
        for number, span in sorted(view.spans.items()):
            name = (topic, number)
            place = start.places.get(name)
            if place is None or known != view.id:
                begins[name] = span.start
                new.add(name)
                if known == view.id and span.start > 0:
                    losses.append(f"{topic}-{number}, which is new, starts at {span.start}")
                continue
            begin, loss = _went_on(f"{topic}-{number}", place, span, diverged.get(name))
            begins[name] = begin
            if loss is not None:
                losses.append(loss)
                new.add(name)
    for topic, number in sorted(start.places):
        if topic not in now:
            what = f"topic {topic!r} is not there any more, or not subscribed to any more"
            if what not in losses:
                losses.append(what)
        elif number not in now[topic].spans and start.ids[topic] == now[topic].id:
            losses.append(f"{topic}-{number} is not subscribed to any more")
    return TriggerStanding(begins, frozenset(new), tuple(losses))


def _went_on(name: str, place: Place, span: Span, diverged: int | None) -> tuple[int, str | None]:
    offset = place.offset
    if offset < span.start:
        return span.start, (
            f"{name}: the query is to go on at offset {offset}, but retention took what lies "
            f"below {span.start}"
        )
    if diverged is not None and diverged < offset:
        return max(diverged, span.start), (
            f"{name}: the query read up to offset {offset} in leader epoch {place.epoch}, but that "
            f"epoch's log ends at {diverged}: the host lost unsynced records"
        )
    if offset > span.log_end:
        return span.log_end, (
            f"{name}: the query is to go on at offset {offset}, but the log ends at {span.log_end}"
        )
    return offset, None


def advance(
    start: StreamPositions, now: View, at: TriggerStanding, limit: int | None
) -> StreamPositions:
    """Returns the end of the next batch: at most `limit` offsets on (None: as far as there is)."""
    backlog = {
        name: max(0, now[name[0]].spans[name[1]].end - begin) for name, begin in at.begins.items()
    }
    taken = backlog
    if limit is not None:
        taken = shares(backlog, limit, sum(place.offset for place in start.places.values()))
    joined = {topic for (topic, _), count in taken.items() if count}
    ids: dict[str, str] = {}
    places: dict[Partition, Place] = {}
    for name, begin in at.begins.items():
        topic, number = name
        view, count = now[topic], taken.get(name, 0)
        if count:
            is_told = name not in at.is_new and not start.is_initial
            place = Place(begin + count, view.spans[number].epoch, None if is_told else begin)
        elif name not in at.is_new:
            before = start.places[name]
            place = replace(before, begin=begin) if start.is_initial else before
        elif topic not in start.ids and topic not in joined:
            continue  # a topic is new until something of it was read
        elif start.ids.get(topic) == view.id and name not in start.places and begin == 0:
            continue  # and so is a partition of a topic that is not
        else:
            place = Place(begin, view.spans[number].epoch, begin)
        places[name] = place
        ids[topic] = view.id
    return StreamPositions(ids, places)


def capped(now: View, target: View) -> View:
    """Returns what is there, without the records that came after `target` was looked at."""
    found = {}
    for topic, view in now.items():
        then = target.get(topic)
        spans = then.spans if then is not None and then.id == view.id else {}
        found[topic] = TopicView(
            view.id,
            {
                number: replace(
                    span, end=min(span.end, spans[number].end if number in spans else span.start)
                )
                for number, span in view.spans.items()
            },
        )
    return found


# --- how tasks share it ---------------------------------------------------------------------------
def split(whole: Iterable[Range], at_least: int | None) -> list[Range]:
    """Ranges cut so that there are `at_least` of them where there are records for it: the longer
    ones more often."""
    found = list(whole)
    if at_least is None or len(found) >= at_least:
        return found
    sizes = {(str(place), place): each.end - each.begin for place, each in enumerate(found)}
    parts = shares(sizes, at_least)
    cut: list[Range] = []
    for place, each in enumerate(found):
        count, size = parts[str(place), place], each.end - each.begin
        bounds = [each.begin + size * step // count for step in range(count + 1)]
        for number, (begin, end) in enumerate(pairwise(bounds)):
            first = each.begin_epoch if number == 0 else EPOCH_UNKNOWN
            cut.append(replace(each, begin=begin, end=end, begin_epoch=first))
    return cut
