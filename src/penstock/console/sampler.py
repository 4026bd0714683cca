"""Looks at the node again and again, for all who watch: one connection, however many browsers.

Owns the history of a few minutes that charts show. Looks often while somebody watches, seldom
otherwise, and never at more topics and groups at once than its bounds say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.admin.admin import topic_page
from penstock.client.admin.cluster import ClusterDescription
from penstock.client.admin.groups import SHARED
from penstock.client.admin.topic_listing import TopicSummary
from penstock.client.deadletters.story import SUFFIX
from penstock.console.link import ConsoleSeat, NodePlaces
from penstock.console.pages.cluster import changes
from penstock.console.pages.links import page_link
from penstock.console.pages.overview import Figures, GroupFigures, Trouble
from penstock.core import errors as er
from penstock.operations.cluster_health import troubles
from penstock.operations.judgement import HELD_MIN, judge_group, judge_transaction

logger = logging.getLogger("penstock.console")

EVERY: Final = 2.0
"""Seconds between two looks while somebody watches."""
EVERY_AWAY: Final = 0.5
"""The same while the node is away."""
EVERY_ALONE: Final = 10.0
"""The same while nobody does."""
WATCHED_FOR: Final = 15.0
"""Seconds after the last page for which somebody counts as watching."""
HISTORY: Final = 300
"""Looks that charts go back."""
TOPICS_MAX: Final = 400
"""Topics whose counters one look adds up."""
GROUPS_MAX: Final = 50
"""Groups that one look describes; the others follow in the next ones, in turn."""
LAGS_KEPT: Final = 500
"""Groups whose history is kept."""
CHANGES_KEPT: Final = 50
"""Changes of the cluster that its page goes back."""


@dataclass(slots=True)
class History:
    """Points of the charts: seconds since the epoch, and values."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    records: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    nbytes: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    lag: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def add(self, figures: Figures) -> None:
        self.times.append(figures.at)
        self.records.append(figures.records_per_second or 0.0)
        self.nbytes.append(figures.bytes_per_second or 0.0)
        self.lag.append(figures.lag)


class Sampler:
    """A thread of its own. `on_look` hears of each look, in that thread."""

    def __init__(
        self, places: NodePlaces, keys: str | None, on_look: Callable[[Figures], None]
    ) -> None:
        self._places = places
        self._seat = ConsoleSeat(places, keys)
        self._on_look = on_look
        self._wake = threading.Event()
        self._is_closed = False
        self._watched_until = 0.0
        self._before: tuple[float, dict[str, tuple[int, int]]] | None = None
        self.groups: dict[str, GroupFigures] = {}
        self._next_group = ""
        self.watchers = 0
        self.history = History()
        self.lags: dict[str, deque[tuple[float, int]]] = {}
        self._cluster: ClusterDescription | None = None
        self.changes: deque[tuple[float, str]] = deque(maxlen=CHANGES_KEPT)
        """Of the cluster, the newest last: when, and what."""
        self.rates: dict[str, tuple[float, float]] = {}
        """By topic: records and bytes a second."""
        self.figures: Figures | None = None
        self._thread = threading.Thread(target=self._run, name="console-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self) -> None:
        """Tells that a page was asked for."""
        is_new = time.monotonic() >= self._watched_until
        self._watched_until = time.monotonic() + WATCHED_FOR
        if is_new:
            self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._seat.close()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            self._look()
            is_watched = self.watchers > 0 or time.monotonic() < self._watched_until
            is_away = self.figures is not None and bool(self.figures.away)
            pause = EVERY_AWAY if is_away else EVERY
            self._wake.wait(pause if is_watched else EVERY_ALONE)

    def _look(self) -> None:
        try:
            figures = self._seat.read(lambda _: self.look())
        except (er.PenstockError, OSError) as error:
            logger.info("the node cannot be looked at: %s", error)
            figures = Figures(at=time.time(), away=str(error))
            self._seat.close()
            self._before = None
        self.figures = figures
        if not figures.away:
            self.history.add(figures)
        self._on_look(figures)

    # --- one look ---
    def look(self) -> Figures:
        """Looks once. A part that the console's principal may not see is left out, and said."""
        figures = Figures(at=time.time(), url=self._seat.url)
        for name, part in (
            ("the node", self._look_at_node),
            ("topics", self._look_at_topics),
            ("groups", self._look_at_groups),
            ("transactions", self._look_at_transactions),
        ):
            self._part(figures, name, part)
        if figures.is_clustered:
            self._part(figures, "the cluster", self._look_at_cluster)
        return figures

    def _part(self, figures: Figures, name: str, look: Callable[[Figures], None]) -> None:
        try:
            look(figures)
        except er.AccessDeniedError:
            figures.hidden.append(name)

    def _look_at_node(self, figures: Figures) -> None:
        node = self._seat.admin.describe_node()
        figures.topics, figures.partitions = node.topics, node.partitions
        figures.clients, figures.is_clustered = node.clients, bool(node.cluster)

    def _look_at_topics(self, figures: Figures) -> None:
        counts: dict[str, tuple[int, int]] = {}
        after, more = "", True
        while more and len(counts) < TOPICS_MAX:
            page = topic_page(self._seat.admin, after)
            for each in page.topics:
                counts[each.name] = each.records, each.nbytes
                if each.name.endswith(SUFFIX) and each.offsets:
                    figures.dead_letters[each.name] = each.offsets
                if each.offline:
                    figures.troubles.append(_offline(each))
            more = page.more and bool(page.topics)
            after = page.topics[-1].name if page.topics else ""
        figures.topics_seen = len(counts)
        figures.topics = max(figures.topics, len(counts))
        now = time.monotonic()
        if self._before is not None:
            at, known = self._before
            seconds = max(now - at, 1e-3)
            self.rates = {
                name: ((records - known[name][0]) / seconds, (nbytes - known[name][1]) / seconds)
                for name, (records, nbytes) in counts.items()
                if name in known and records >= known[name][0]
            }
            figures.records_per_second = sum(rate for rate, _ in self.rates.values())
            figures.bytes_per_second = sum(rate for _, rate in self.rates.values())
        self._before = now, counts
        self._look_at_disk(figures, next(iter(counts), None))

    def _look_at_disk(self, figures: Figures, topic: str | None) -> None:
        if topic is None:
            return
        try:
            disk = self._seat.admin.describe_topic(topic).disk
        except er.UnknownTopicError:
            return  # it went meanwhile
        figures.disk_free, figures.disk_total = disk["free"], disk["total"]
        figures.disk_level = disk["level"]
        if disk["level"] != "ok":
            figures.troubles.append(Trouble(
                "disk", f"the disk is {disk['level']}",
                "give it room, or topics less retention: a full disk ends appends", "",
            ))  # fmt: skip

    def _look_at_groups(self, figures: Figures) -> None:
        listed = self._seat.admin.list_groups()
        figures.groups = len(listed)
        names = [each.group for each in listed]
        self.groups = {name: self.groups[name] for name in names if name in self.groups}
        turn = [each for each in listed if each.group >= self._next_group]
        turn += listed[: len(listed) - len(turn)]
        for each in turn[:GROUPS_MAX]:
            described = self._seat.admin.describe_group(each.group)
            lag, seconds = described.lag, described.lag_seconds
            if each.guarantee == SHARED:
                shares = self._seat.admin.describe_share_group(each.group)
                lag, seconds = shares.lag, shares.ready_seconds
            complaints = tuple(
                Trouble(one.subject, one.what, one.advice, _group_page(each.group, each.guarantee),
                        one.is_wrong)
                for one in judge_group(described)
            )  # fmt: skip
            self.groups[each.group] = GroupFigures(
                each.group, each.guarantee, each.state, each.members, lag, seconds, complaints
            )
            if each.group in self.lags or len(self.lags) < LAGS_KEPT:
                points = self.lags.setdefault(each.group, deque(maxlen=HISTORY))
                points.append((figures.at, lag))
        self._next_group = turn[GROUPS_MAX].group if len(turn) > GROUPS_MAX else ""
        for name in set(self.lags) - set(names):
            del self.lags[name]
        known = self.groups.values()
        figures.groups_seen = len(known)
        figures.lag = sum(each.lag for each in known)
        figures.lag_seconds = max((each.lag_seconds or 0.0 for each in known), default=0.0)
        figures.troubles += [one for each in known for one in each.complaints]

    def _look_at_transactions(self, figures: Figures) -> None:
        held = [each for each in self._seat.admin.list_transactions() if each.open_for >= HELD_MIN]
        figures.transactions_held = len(held)
        for each in sorted(held, key=lambda one: -one.open_for)[:5]:
            told = judge_transaction(each, [])
            figures.troubles.append(
                Trouble(told.subject, told.what, told.advice, "/transactions", told.is_wrong)
            )

    def _look_at_cluster(self, figures: Figures) -> None:
        found = self._seat.admin.describe_cluster()
        self._places.learn(each.url for each in found.brokers)
        if self._cluster is not None:
            self.changes.extend((figures.at, text) for text in changes(self._cluster, found))
        self._cluster = found
        figures.brokers = len(found.brokers)
        figures.brokers_up = sum(each.state == "up" for each in found.brokers)
        figures.ill_partitions = found.ill_partitions
        figures.troubles += [
            Trouble("cluster", text, "start the brokers that are away", "/cluster")
            for text in troubles(found)
        ]


def _group_page(name: str, guarantee: str) -> str:
    return page_link("queue" if guarantee == SHARED else "group", name=name)


def _offline(topic: TopicSummary) -> Trouble:
    return Trouble(
        f"topic {topic.name}", f"{topic.offline} of {topic.partitions} partitions are offline",
        "the node's log says why", page_link("topic", name=topic.name),
    )  # fmt: skip
