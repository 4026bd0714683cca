"""Health and metrics of a node: the thread that serves them over HTTP.

    /metrics    all metrics, for Prometheus
    /healthz    200 while the node answers
    /readyz     200 once nothing is missing, else 503 and a line for each thing that is

Runs in the process of the gateway, whose loop must not wait for it: while metrics are served the
interpreter hands over within `SWITCH_INTERVAL`. It samples at most once a second, for all clients
together.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.client.session import Session
from penstock.core.errors import NotConnectedError, PenstockError
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.paths import socket_in
from penstock.observe.place import find_node
from penstock.observe.sample import Observer, Sample
from penstock.server.health import wire
from penstock.server.health.address import HttpAddress, allowed_hosts, listen
from penstock.server.health.groups import GroupMetrics
from penstock.server.health.histogram import LATENCY_BOUNDS
from penstock.server.health.http import HttpReply, HttpServer, plain
from penstock.server.health.local import LocalMetrics
from penstock.server.health.page import Page, labels
from penstock.server.health.ready import missing

if TYPE_CHECKING:
    from penstock.server.gateway.counts import GatewayCounts

logger = logging.getLogger("penstock.metrics")

KEPT_FOR: Final = 1.0
"""Seconds for which what was seen is told again: scraping more often costs the node nothing."""
NODE_TIMEOUT: Final = 2.0
"""Seconds within which a node that is well answers."""
SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread that wants to run gets the interpreter from this one."""


class HealthService:
    """Begin it with `start`, end it with `close`. `address` is where it listens."""

    def __init__(
        self, address: HttpAddress, data_folder: str, counts: GatewayCounts | None
    ) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        self._folder = data_folder
        self._counts = counts
        listener = listen(address)
        self.address = HttpAddress(address.host, listener.getsockname()[1])
        self._server = HttpServer(listener, self._answer, hosts=allowed_hosts(address))
        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)
        GCCollector(registry=self._own)
        self._session: Session | None = None
        self._observer: Observer | None = None
        self._local: LocalMetrics
        self._groups: GroupMetrics
        self._seen: dict[str, tuple[float, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    @classmethod
    def start(
        cls, address: HttpAddress, data_folder: str, counts: GatewayCounts | None
    ) -> HealthService:
        """Listen and serve. Raises `ConfigError` when the address cannot be had."""
        service = cls(address, data_folder, counts)
        sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
        service._thread.start()
        logger.info("metrics at http://%s/metrics", service.address)
        return service

    def close(self) -> None:
        self._server.stop()
        self._thread.join(NODE_TIMEOUT + 1.0)

    def _run(self) -> None:
        try:
            self._server.serve()
        except Exception:
            logger.exception("metrics and health are not served any more")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.close()
        if self._observer is not None:
            self._observer.close()
        self._session = self._observer = None

    # --- answers ---
    def _answer(self, path: str) -> HttpReply:
        makers = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        make = makers.get(path)
        if make is None:
            return plain(404, f"there are {', '.join(makers)}")
        try:
            reply: HttpReply = self._kept(path, make)
            return reply
        except Exception:
            logger.exception("%s failed", path)
            return plain(500, f"{path} failed: the gateway's log says why")

    def _kept(self, what: str, make: Any) -> Any:
        """Returns the last result of `make`, or a new one if that is too old."""
        found = self._seen.get(what)
        if found is None or time.monotonic() - found[0] > KEPT_FOR:
            made = make()
            found = self._seen[what] = time.monotonic(), made
        return found[1]

    def _healthz(self) -> HttpReply:
        found = self._kept("node", self._describe)
        if isinstance(found, PenstockError):
            return plain(503, f"the node does not answer: {found}")
        return plain(200, "alive")

    def _readyz(self) -> HttpReply:
        found = self._kept("node", self._describe)
        sample = self._kept("sample", self._look)
        for error in (found, sample):
            if isinstance(error, PenstockError):
                return plain(503, f"not ready\nthe node does not answer: {error}")
        lacks = missing(sample, found)
        return plain(503, "\n".join(["not ready", *lacks])) if lacks else plain(200, "ready")

    def _metrics(self) -> HttpReply:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        began = time.monotonic()
        page = Page()
        sample = self._kept("sample", self._look)
        found = self._kept("node", self._describe)
        page.add("penstock_node_answers", int(isinstance(found, ms.NodeDescription)))
        if isinstance(sample, Sample):
            self._local.write(page, sample)
        else:
            page.add("penstock_node_up", 0)
        if isinstance(found, ms.NodeDescription):
            _write_node(page, found)
            _write_broker(page, found)
            if isinstance(sample, Sample):
                self._local.write_lags(page, sample, found.lags)
            if isinstance(sample, Sample) and found.coordinator:
                self._write_groups(page, sample)
        if self._counts is not None:
            topics = {}
            if isinstance(sample, Sample):
                topics = {part.topic_id: part.topic for part in sample.partitions.values()}
            wire.write(page, self._counts, topics)
        for status, count in sorted(self._server.replies.items()):
            page.add("penstock_http_replies_total", count, labels(status=status or "none"))
        page.add("penstock_omitted_series", page.omitted)
        page.add("penstock_sampling_seconds", round(time.monotonic() - began, 6))
        body = page.text() + generate_latest(self._own)
        return HttpReply(200, body, CONTENT_TYPE_LATEST)

    def _write_groups(self, page: Page, sample: Sample) -> None:
        try:
            self._groups.write(page, sample)
        except PenstockError as error:  # the coordinator is just loading, or the node went away
            page.omitted += 1
            logger.warning("no metrics of groups: %s", error)

    # --- looking ---
    def _look(self) -> Sample | PenstockError:
        try:
            if self._observer is None:
                place = find_node(f"shm://{self._folder}")
                self._observer = Observer(place, internal=True)
                self._local = LocalMetrics(self._observer)
                self._groups = GroupMetrics(self._ask, self._local)
            return self._local.sample()
        except PenstockError as error:
            return error

    def _describe(self) -> ms.NodeDescription | PenstockError:
        try:
            answer = self._ask(ms.DescribeNode(), ms.NodeDescription)
        except PenstockError as error:
            return error
        assert isinstance(answer, ms.NodeDescription)
        return answer

    def _ask(self, message: Any, expect: type[Any]) -> Any:
        if self._session is None:
            self._session = Session.attach(
                socket_in(self._folder), lo.KIND_ADMIN, client_id="metrics", timeout=NODE_TIMEOUT
            )
        try:
            return self._session.request(message, expect, NODE_TIMEOUT)
        except NotConnectedError:
            with contextlib.suppress(PenstockError):
                self._session.close()
            self._session = None
            raise


def _write_node(page: Page, node: ms.NodeDescription) -> None:
    versions = {key: node.versions.get(key, "") for key in ("version", "python", "layout")}
    versions["version"] = node.versions.get("penstock", "")
    page.add("penstock_node_info", 1, labels(**versions))
    page.add("penstock_clock_ahead_seconds", node.clock.get("ahead", 0))
    page.add("penstock_clock_jumps_total", node.clock.get("jumps", 0))
    for event, count in sorted(node.attach.items()):
        page.add("penstock_attach_events_total", count, labels(event=event))
    counts = dict(node.coordinator)
    if counts:
        page.add("penstock_coordinator_serving", counts.pop("serving", 0))
        page.add("penstock_coordinator_in_flight", counts.pop("in_flight", 0))
        page.add("penstock_coordinator_members", counts.pop("members", 0))
        counts.pop("epoch", 0)
        for event, count in sorted(counts.items()):
            page.add("penstock_coordinator_events_total", count, labels(event=event))
    if node.coordinator_seconds:
        total, *found = node.coordinator_seconds
        page.histogram("penstock_coordinator_seconds", LATENCY_BOUNDS, list(map(int, found)), total)


def _write_broker(page: Page, node: ms.NodeDescription) -> None:
    counts = node.cluster
    if not counts:
        return
    page.add("penstock_broker_fenced", counts["fenced"])
    page.add("penstock_broker_controller_active", int(counts["controller"] == counts["node_id"]))
    page.add("penstock_broker_replicas", counts["replicas"])
    page.add("penstock_broker_led_partitions", counts["leads"])
    page.add("penstock_broker_underreplicated_partitions", counts["underreplicated"])
    page.add("penstock_broker_below_min_insync_partitions", counts["below_min_insync"])
    page.add("penstock_broker_offline_replicas", counts["offline"])
    page.add("penstock_cluster_leaderless_partitions", counts["leaderless"])
    for event, count in sorted(node.controller.items()):
        page.add("penstock_controller_events_total", count, labels(event=event))
    for name in ("isr_shrinks", "isr_grows"):
        page.add(f"penstock_{name}_total", node.replicator.get(name, 0))
    for event, count in sorted(node.replicator.items()):
        page.add("penstock_replicator_events_total", count, labels(event=event))
