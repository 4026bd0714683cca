"""Plans what a query reads next, from the node's answers: topics, their ends, offsets by time.

Runs on the driver, in the Python process that Spark keeps for a query. Owns the look-ups; the
arithmetic is in `penstock.spark.triggers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.offsets import Offset
from penstock.core import errors as er
from penstock.spark.clients import admin_of, consumer_of, describe, patiently, reach
from penstock.spark.positions import (
    EPOCH_UNKNOWN,
    Partition,
    Place,
    Range,
    StreamPositions,
)
from penstock.spark.reading import Losses, divergence
from penstock.spark.readoptions import EARLIEST, LATEST, Bound, Offsets, ReadOptions
from penstock.spark.triggers import Span, TopicView, TriggerStanding, View, split, standing


class Planner:
    """The look-ups of one query on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._parted: dict[tuple[Partition, Place, int], int | None] = {}
        self._losses = Losses(options)
        self._has_begun = False

    # --- what is there ---
    def view(self, *, must_be: bool) -> dict[str, TopicView]:
        """Returns the present topics of the query. With `must_be` one that is named and not there
        is an `UnknownTopicError`."""
        options = self._options
        if not self._has_begun:
            reach(options.address)
            self._has_begun = True
        names = options.topics.chosen(
            lambda: patiently(lambda: admin_of(options.address).list_topics())
        )
        found = {}
        for name in names:
            topic = describe(options.address, name)
            if topic is not None:
                committed = options.isolation == "read-committed"
                spans = {
                    part.partition: Span(
                        part.log_start,
                        part.last_stable if committed else part.high_watermark,
                        part.log_end,
                        part.leader_epoch,
                    )
                    for part in topic.partitions
                }
                found[name] = TopicView(topic.topic_id, self._wanted(name, spans, must_be))
            elif must_be and options.topics.pattern is None:
                raise er.UnknownTopicError(
                    f"topic {name!r} is not on the node at {options.address.url!r}: make it by "
                    f"`penstock topic create {name}`, or name another by the option subscribe"
                )
        return found

    def _wanted(self, name: str, spans: dict[int, Span], must_be: bool) -> dict[int, Span]:
        if self._options.topics.partitions is None:
            return spans
        numbers = self._options.topics.partitions[name]
        wrong = [number for number in numbers if number not in spans]
        if wrong and must_be:
            raise er.UnknownTopicError(
                f"assign names {name}-{wrong[0]}, but topic {name!r} has partitions 0 to "
                f"{len(spans) - 1}"
            )
        return {number: spans[number] for number in numbers if number in spans}

    def goes_on(self, start: StreamPositions, now: View) -> TriggerStanding:
        """Returns where a query at `start` goes on. Raises `DataLossError` for what was lost, or
        logs it."""
        at = standing(start, now, self._diverged(start, now))
        for loss in at.losses:
            self._losses.tell(loss)
        return at

    def _diverged(self, start: StreamPositions, now: View) -> dict[Partition, int]:
        """Returns where logs parted, of those that began another leader epoch (rule 15)."""
        found = {}
        for name, place in start.places.items():
            topic, number = name
            span = now[topic].spans.get(number) if topic in now else None
            if span is None or place.epoch in (EPOCH_UNKNOWN, span.epoch):
                continue
            if start.ids[topic] != now[topic].id:
                continue
            key = (name, place, span.epoch)
            if key not in self._parted:
                with self._consumer(name) as consumer:
                    self._parted[key] = divergence(consumer, name, place.offset, place.epoch)
            parted = self._parted[key]
            if parted is not None:
                found[name] = parted
        return found

    # --- where to begin and to end ---
    def initial(self) -> StreamPositions:
        """Returns the positions where a stream begins."""
        now = self.view(must_be=True)
        offsets = self._resolved(self._options.starting, now, is_start=True)
        return _positions(offsets, now)

    def batch(self) -> list[Range]:
        """Returns the ranges that a batch query reads."""
        options = self._options
        now = self.view(must_be=True)
        starts = self._resolved(options.starting, now, is_start=True)
        ends = self._resolved(options.ending, now, is_start=False)
        begins = self.goes_on(_positions(starts, now), now).begins
        found = []
        for name, begin in sorted(begins.items()):
            topic, number = name
            end, span = ends[name], now[topic].spans[number]
            if end > span.log_end:
                raise er.OffsetOutOfRangeError(
                    f"{options.ending.option} of {topic}-{number} is {end}, but the log ends at "
                    f"{span.log_end}"
                )
            if options.starting.place == options.ending.place == "offsets" and starts[name] > end:
                raise er.ConfigError(
                    f"{topic}-{number}: startingOffsets {starts[name]} lies behind endingOffsets "
                    f"{end}"
                )
            if begin < end:
                found.append(
                    Range(topic, now[topic].id, number, begin, end, EPOCH_UNKNOWN, span.epoch)
                )
        return split(found, options.partitions_min)

    def _resolved(self, bound: Bound, now: View, *, is_start: bool) -> Offsets:
        spans = {
            (topic, number): span
            for topic, view in now.items()
            for number, span in view.spans.items()
        }
        if bound.place == "earliest":
            return {name: span.start for name, span in spans.items()}
        if bound.place == "latest":
            return {name: span.end for name, span in spans.items()}
        if bound.place == "time":
            return self._by_time(dict.fromkeys(spans, bound.time), spans, bound, is_start)
        given = (bound.offsets if bound.place == "offsets" else bound.times) or {}
        _check_all(bound, given, spans)
        if bound.place == "times":
            return self._by_time(given, spans, bound, is_start)
        return {
            name: span.start if given[name] == EARLIEST
            else span.end if given[name] == LATEST
            else given[name]
            for name, span in spans.items()
        }  # fmt: skip

    # --- by time ---
    def _consumer(self, partition: Partition) -> Consumer:
        return consumer_of(self._options.address, partition, self._options.isolation)

    def _by_time(
        self, times: Offsets, spans: Mapping[Partition, Span], bound: Bound, is_start: bool
    ) -> Offsets:
        """Returns the first records that are as late as these times."""
        found: Offsets = {}
        for name, milliseconds in times.items():
            with self._consumer(name) as consumer:
                offset = consumer.seek(*name, Offset("time", milliseconds * 1000))
            is_late = offset >= spans[name].end
            if is_late and is_start and self._options.is_late_error:
                raise er.OffsetOutOfRangeError(
                    f"{bound.option}: {name[0]}-{name[1]} has no record as late as {milliseconds} "
                    "ms; set startingOffsetsByTimestampStrategy to latest to begin at its end"
                )
            found[name] = min(offset, spans[name].end)
        return found


def _check_all(bound: Bound, given: Offsets, spans: Mapping[Partition, Span]) -> None:
    missing, extra = sorted(spans.keys() - given.keys()), sorted(given.keys() - spans.keys())
    if missing or extra:
        topic, number = (missing or extra)[0]
        raise er.ConfigError(
            f"{bound.option} "
            + (
                f"does not name {topic}-{number}: it is to name every partition"
                if missing
                else f"names {topic}-{number}, which the query does not read"
            )
            + (", with -2 for earliest and -1 for latest" if bound.place == "offsets" else "")
        )


def _positions(offsets: Offsets, now: View) -> StreamPositions:
    places = {
        (topic, number): Place(offset, now[topic].spans[number].epoch)
        for (topic, number), offset in offsets.items()
    }
    return StreamPositions({topic: view.id for topic, view in now.items()}, places, is_initial=True)
