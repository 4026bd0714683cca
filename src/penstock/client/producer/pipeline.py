"""The way of a producer's records: from `send` to the lane, and their outcomes back.

    Pipeline ──> Boxes (accumulator) ──> batch_builder ──> Sender ──> lane
       room: Pressure (backpressure)     answers, time and sleep: Minder (io_thread)
       what became of them: Outcomes (callbacks)

Each part knows those behind it in this line, and none the pipeline. A call that has to wait gives
the lock back first, and begins again after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.client.producer import batch_builder, routes
from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.backpressure import Pressure
from penstock.client.producer.callbacks import Flushed, Outcomes
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.delivery import Box, Delivery
from penstock.client.producer.io_thread import Minder
from penstock.client.producer.record_options import (
    PLAIN,
    RecordFields,
    RecordOptions,
    record_fields,
)
from penstock.client.producer.repair import mend
from penstock.client.producer.routes import TopicRoutes
from penstock.client.producer.sender import Sender, SendGate
from penstock.client.producer.single_record import express
from penstock.client.producer.state import ProducerState, Terms
from penstock.client.remote.address import Place
from penstock.client.validation import HeadersLike, as_bytes, as_spread
from penstock.core import errors as er
from penstock.core.encode import record_overhead
from penstock.ipc.messages import TopicInfo


class SendPolicy(Protocol):
    """The differences of a producer of transactions from a plain one."""

    def terms(self, config: ProducerConfig) -> Terms:
        """Returns the terms of its batches."""

    def new_gate(self) -> SendGate:
        """Makes the gate of the sender."""

    def bind(
        self, state: ProducerState, outcomes: Outcomes, sender: Sender, boxes: Boxes, io: Minder
    ) -> None:
        """Takes the producer's parts, once all of them exist."""

    def check_may_send(self) -> None:
        """Raises unless records are welcome now (lock held)."""

    def metrics(self) -> dict[str, int]:
        """Returns its own counts."""

    def close(self) -> None:
        """Ends: nothing is sent any more."""

    def after_fork_in_child(self) -> str:
        """Gives up what belongs to the parent; returns why nothing may be sent in the child."""


class Pipeline:
    """The path of a producer's records, from a call to the lanes. One per producer."""

    def __init__(
        self, socket: Place, config: ProducerConfig, policy: SendPolicy | None = None
    ) -> None:
        self._socket = socket
        self.config = config
        self._policy = policy
        self._build()

    def _build(self) -> None:
        """Makes everything that a forked child must not inherit."""
        policy = self._policy
        terms = None if policy is None else policy.terms(self.config)
        state = self.state = ProducerState(self._socket, self.config, terms)
        self._lock = state.lock
        self._books = state.books
        self.outcomes = Outcomes(state)
        gate = None if policy is None else policy.new_gate()
        self.sender = Sender.of(state, self.outcomes.finished, gate)
        self.boxes = Boxes(state, self.outcomes, self.sender)
        self.pressure = Pressure(state, self.outcomes, self.sender, self.boxes)
        self.io = Minder(state, self.outcomes, self.sender, self.boxes, self.pressure)
        self.boxes.awaited = self.io
        state.books.mend = partial(mend, state, self.outcomes, self.sender, self.boxes)
        if policy is not None:
            policy.bind(state, self.outcomes, self.sender, self.boxes, self.io)

    def attach(self, first: Callable[[], None]) -> None:
        """Attaches to the node and starts the thread. Calls `first` before that, and does nothing
        where there is an attachment."""
        state = self.state
        with self._lock:
            self._books.open()
            state.check_usable()
            if state.settings is None:
                first()
                self.io.start(state.session or state.attach(self.config.timeout))
            self._books.close()

    @property
    def settings(self) -> batch_builder.SealSettings:
        """Returns the settings within the limits of the attachment. Raises `ClosedError` without
        one."""
        settings = self.state.settings
        if settings is None:
            raise er.ClosedError("this producer was closed while a call sent by it")
        return settings

    # --- one record ------------------------------------------------------------------------------
    def got_in(self, box: Box, ordinal: int) -> bool:
        """Returns whether a record appended to a box that was being sealed is part of it."""
        with self._lock:
            self._books.open()
            got_in = box.holds(ordinal)
            self._books.close()
        return got_in

    def send_slowly(
        self, topic: str, value: Any, key: Any, headers: HeadersLike | None,
        partition: int | None, options: RecordOptions,
    ) -> Delivery:  # fmt: skip
        """Sends one record that cannot join an open box without a lock. Checks it, waits if it
        must, and takes the lock."""
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        if key is not None:
            key = as_bytes("key", key)
        fields = PLAIN
        if options or headers is not None or partition is not None:
            fields = record_fields(headers, partition, options)
        size = record_overhead(value, key, fields.headers, fields.work) + 8
        until: float | None = None
        config = self.config
        while True:
            with self._lock:
                self._books.open()
                found = self.known(topic)
                if found is not None:
                    if fields.partition is not None or size > found.record_bytes_max:
                        found.check_record(fields.partition, size)
                    settings = self.state.settings
                    queues = config.linger or topic in self.boxes.open or settings is None
                    if not queues and self.sender.buffered < config.buffer_bytes_max:
                        assert settings is not None
                        alone = express(
                            self.io, self.sender, found, settings, value, key, fields,
                            config.delivery_timeout,
                        )  # fmt: skip
                        if alone is not None:
                            self.io.posted()
                            self._books.close()
                            return Delivery(alone, 0)
                    if not self.must_wait():
                        taken = self._gather(topic, size, value, key, fields)
                        self._books.close()
                        return taken
                self._books.close()
            until = self._make_ready(topic, found, until)

    def _gather(
        self, topic: str, size: int, value: bytes | None, key: bytes | None, fields: RecordFields
    ) -> Delivery:
        """Puts a record into the open box of its topic, unless it is dropped (lock held)."""
        wide = fields is not PLAIN
        refused = self.pressure.refuse(topic, 1, size, wide=wide)
        if refused is not None:
            return Delivery(refused, 0)
        box = self.boxes.open.get(topic)
        if box is not None and not box.takes(size, wide=wide):
            self._seal(box)
        box, ordinal = self.boxes.append(topic, size, value, key, fields)
        if self.config.linger == 0:
            self.io.gathered(box)
        else:
            self.io.expect(box.linger_until)
        return Delivery(box, ordinal)

    def _seal(self, box: Box) -> None:
        self.boxes.seal(box)
        self.io.posted()

    def hurry(self, topic: str) -> None:
        """Ends the linger of a topic's open box."""
        with self._lock:
            self._books.open()
            box = self.boxes.open.get(topic)
            if box is not None:
                self._seal(box)
            self._books.close()

    # --- many records ----------------------------------------------------------------------------
    def send_rows(self, topic: str, rows: batch_builder.Rows, partition: int | None) -> Box:
        """Sends many records, unless they are dropped; returns the box of their deliveries."""
        until: float | None = None
        while True:
            with self._lock:
                self._books.open()
                found = self.known(topic)
                if found is not None:
                    found.check_partition(partition)
                    if topic in self.boxes.open:
                        self._seal(self.boxes.open[topic])
                    if not self.must_wait():
                        refused = self.pressure.refuse(topic, len(rows.values), rows.values)
                        box = refused or self.boxes.launch_rows(topic, rows, found)
                        if box.batches:
                            self.io.posted()
                        self._books.close()
                        return box
                self._books.close()
            until = self._make_ready(topic, found, until)

    # --- what a call waits for -------------------------------------------------------------------
    def _make_ready(
        self, topic: str, found: TopicRoutes | None, until: float | None
    ) -> float | None:
        """Waits for what a send lacks (lock not held): the topic's routes, or room."""
        if found is None:
            self.learn(topic)
            return until
        return self.await_room(until)

    def must_wait(self) -> bool:
        """Returns whether new records have to wait for room first (lock held). Raises
        `BufferFullError` where the policy is to refuse them."""
        if self.pressure.is_full:
            self.io.reap()
        return self.pressure.must_wait()

    def await_room(self, until: float | None) -> float:
        """Waits for room (lock not held), until `until` if given, and returns until when it may
        wait. Raises `BufferFullError`."""
        pressure = self.pressure
        if until is None:
            until = pressure.begin_wait()
        told = pressure.told()
        if not self.io.wait(pressure.has_room, max(0.0, until - time.monotonic())):
            raise pressure.timed_out(told)
        return until

    def known(self, topic: str) -> TopicRoutes | None:
        """Returns the routes of a topic's records, None where it is to be looked up (lock held).
        Raises where no record may be sent now."""
        state = self.state
        if state.is_closed or state.forbidden:
            state.check_usable()
        if self._policy is not None:
            self._policy.check_may_send()
        return self.sender.topics.get(topic)

    def learn(self, topic: str) -> None:
        """Looks a topic up, if need be (lock not held)."""
        timeout = self.config.timeout
        deadline = time.monotonic() + timeout
        while not self._look_up(topic, deadline - time.monotonic()):
            self.io.await_node(topic, timeout, deadline - time.monotonic())

    def _look_up(self, topic: str, left: float) -> bool:
        """Asks the node about a topic. Returns False while there is no node to ask."""
        with self._lock:
            self._books.open()
            if self.known(topic) is None:
                info = self.io.find_topic(topic, left)
                if info is not None:
                    self._adopt(topic, info)
            is_known = topic in self.sender.topics
            self._books.close()
        return is_known

    def _adopt(self, topic: str, info: TopicInfo) -> None:
        """Gives a topic its routes, and lanes to its writers, before its first record."""
        assert self.state.session is not None
        sender = self.sender
        spread = as_spread(self.config.spread)
        found = routes.learn(self.state.session, info, spread)
        sender.adopt(found)
        for writer in {route.writer for route in found.routes} - set(sender.links):
            sender.open_lane(writer)  # refused now, and not once records wait for it
        self.boxes.know(topic)
        sender.topics[topic] = found

    # --- outcomes --------------------------------------------------------------------------------
    def flush(self, timeout: float | None) -> None:
        """Flushes as `Producer.flush` says."""
        with self._lock:
            self._books.open()
            self.state.check_usable()
            self.io.seal_open(None)
            flushed = Flushed(self.sender, self.outcomes.callbacks)
            self._books.close()
        if not self.io.wait(flushed, timeout):
            raise self.flush_timeout(timeout)
        self.raise_unseen()

    def flush_timeout(self, timeout: float | None) -> er.PenstockTimeout:
        sender = self.sender
        return er.PenstockTimeout(
            f"flush: {sender.buffered} bytes are unacknowledged after {timeout} s{sender.why()}"
        )

    def raise_unseen(self) -> None:
        """Raises `DeliveryError` for deliveries that have failed, and nobody has looked at."""
        with self._lock:
            self._books.open()
            error = self.outcomes.unseen()
            self._books.close()
            if error is not None:
                raise error

    def metrics(self) -> dict[str, int]:
        return {
            **self.state.counts, **self.pressure.counts, "reconnects": self.io.reconnects,
            **self.sender.counts(), **({} if self._policy is None else self._policy.metrics()),
        }  # fmt: skip

    # --- its end ---------------------------------------------------------------------------------
    def leave(self) -> None:
        """Ends the pipeline. After an interrupt it may be called again."""
        with self._lock:
            self._books.open()
            self.state.is_closed = True
            self._books.close()
        self.io.stop()
        with self._lock:
            self._books.open()
            self.io.wind_up()
            self._books.close()
        self.outcomes.callbacks.run()
        if self._policy is not None:
            self._policy.close()
        if self.state.session is not None:
            self.state.session.close()
        self.state.settings = None

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent, and makes all parts again."""
        old, links = self.state, list(self.sender.links.values())
        self._build()
        self.state.is_closed = old.is_closed
        if self._policy is not None:
            self.state.forbidden = self._policy.after_fork_in_child()
        old.is_stale = True
        for link in links:
            link.detach()
        if old.session is not None:
            old.session.close(polite=False)
