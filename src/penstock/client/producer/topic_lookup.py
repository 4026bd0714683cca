"""Looks up topics that a producer is to send to and does not know yet.

Owns what a topic needs before its first record: its routes, and lanes to its writers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.client.producer.routes import learn as routes_of

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer
    from penstock.ipc.messages import TopicInfo


def learn(self: Producer, topic: str) -> None:
    """Look a topic up, if need be (lock not held)."""
    deadline = time.monotonic() + self.timeout
    while not _look_up(self, topic, deadline - time.monotonic()):
        self._minder.await_node(topic, self.timeout, deadline - time.monotonic())


def _look_up(self: Producer, topic: str, left: float) -> bool:
    """Ask the node of a topic. False while there is no node to ask."""
    with self._lock:
        self.books.open()
        self._check_usable()
        info = None
        if self._known(topic) is None:
            if self._session is None:
                self._attach()  # a forked child makes its own attachment
            info = self._minder.find_topic(topic, left)
            if info is not None:
                _adopt(self, topic, info)
        is_known = topic in self._outbox.topics
        self.books.close()
    return is_known


def _adopt(self: Producer, topic: str, info: TopicInfo) -> None:
    assert self._session is not None
    outbox = self._outbox
    routes = routes_of(self._session, info)
    outbox.adopt(routes)
    for writer in {route.writer for route in routes.routes} - set(outbox.links):
        self._minder.open_lane(writer)  # refused now, and not once records wait for it
    self.boxes.know(topic)
    outbox.topics[topic] = routes
