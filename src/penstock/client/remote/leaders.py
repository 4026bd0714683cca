"""The leaders of a cluster's partitions as a client knows them: the newest that any broker named.

Owns what brokers said and what is doubted of it. A broker that denies its leadership is about to
become leader, or has just ceased to be. Until another one is named, it is asked again after a
pause, which grows from time to time. Pure: no socket, no clock.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.client.remote.link import Host
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.messages import NOBODY
from penstock.core.errors import ConfigError
from penstock.ipc.paths import parse_url

logger = logging.getLogger("penstock.remote")

COORDINATOR: Final = -1
"""In the place of a page: what answers for groups and transactions."""
DOUBT_FIRST: Final = 0.02
DOUBT_LAST: Final = 0.5
"""Seconds until a broker is asked again for what it said that it does not lead."""
LAST_AFTER: Final = 1.0
"""Seconds without a leader after which the last one is asked: it knows whether there is still such
a partition."""


class _Doubt:
    __slots__ = ("broker", "pause", "until")

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.pause = DOUBT_FIRST
        self.until = 0.0


class Brokers:
    """The known leaders and addresses of brokers. `hosts`: where the live brokers are."""

    def __init__(self) -> None:
        self.version = -1
        self.hosts: dict[int, Host] = {}
        self._leaders: dict[int, int] = {}
        self._last: dict[int, int] = {}
        """The last leaders of pages that have none now."""
        self._coordinator = NOBODY
        self._doubts: dict[int, _Doubt] = {}

    def forget(self) -> None:
        """Forgets all: it belongs to another cluster."""
        self.version, self.hosts, self._leaders = -1, {}, {}
        self._last.clear()
        self._coordinator = NOBODY
        self._doubts.clear()

    def take(self, said: fr.Leaders) -> bool:
        """Takes this in, if nothing newer is known. Returns whether it did."""
        if said.version <= self.version:
            return False
        self.version = said.version
        self.hosts = {broker: host for broker, url in said.brokers if (host := _host(broker, url))}
        self._last.update(self._leaders)
        self._leaders = {page: broker for page, broker in said.leaders if broker != NOBODY}
        for page in self._leaders:
            self._last.pop(page, None)
        self._coordinator = said.coordinator
        for what, doubt in list(self._doubts.items()):
            if self._may_lead(what) != doubt.broker:
                del self._doubts[what]
        return True

    def leader(self, what: int) -> int:
        """Returns the reported leader of this page (or of `COORDINATOR`); or `NOBODY`."""
        if what == COORDINATOR:
            return self._coordinator
        return self._leaders.get(what, NOBODY)

    def _may_lead(self, what: int) -> int:
        """Returns its leader, or the last one."""
        leader = self.leader(what)
        return self._last.get(what, NOBODY) if leader == NOBODY else leader

    def settled(self, what: int, now: float, waited: float = 0.0) -> int:
        """Returns the broker to ask now; `NOBODY` while its leader is in doubt, or not known.
        `waited`: the seconds since the wait began."""
        broker = self.leader(what) if waited < LAST_AFTER else self._may_lead(what)
        doubt = self._doubts.get(what)
        return NOBODY if doubt is not None and now < doubt.until else broker

    def doubt(self, what: int, broker: int, now: float) -> None:
        """Notes that this broker denied its leadership."""
        if self._may_lead(what) != broker:
            return
        doubt = self._doubts.get(what)
        if doubt is None or doubt.broker != broker:
            doubt = self._doubts[what] = _Doubt(broker)
        if now >= doubt.until:  # several answers to what was sent together are one doubt
            doubt.until = now + doubt.pause
            doubt.pause = min(2 * doubt.pause, DOUBT_LAST)

    def trust(self, what: int) -> None:
        """Ends a doubt: its leader has answered as a leader does."""
        if self._doubts:
            self._doubts.pop(what, None)


def _host(broker: int, url: str) -> Host | None:
    """Returns a broker's address; None where the text is no address."""
    try:
        target = parse_url(url)
    except ConfigError as error:
        logger.warning("broker %d is passed over: %s", broker, error)
        return None
    return target.hosts[0] if target.hosts else None
