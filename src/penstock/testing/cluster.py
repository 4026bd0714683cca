"""`Cluster`: real brokers on throw-away folders, for tests of what their deaths do.

    with Cluster(brokers=3) as cluster:
        topic = cluster.create_topic(partitions=3)
        produce(cluster, topic, [b"1", b"2"])
        cluster.broker(cluster.leader_of(topic)).kill()
        assert_records(cluster, topic, [b"1", b"2"])

Owns which brokers there are, and the question which of them leads what.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.client.client import Client
from penstock.core.errors import ConfigError, NotConnectedError, PenstockError
from penstock.testing import remains
from penstock.testing.cluster_monitor import ASK_TIMEOUT, View, look
from penstock.testing.embedded import LOG_LINES
from penstock.testing.embedded_cluster import Places, start_together
from penstock.testing.housed import Housed
from penstock.testing.served import Durability, Served
from penstock.testing.waiting import wait_until

ROLES: Final = {
    b"penstock.server": "node",
    b"penstock.server.writer.main": "writer",
    b"penstock.server.gateway.main": "gateway",
    b"penstock.server.replicator.main": "replicator",
    b"penstock.server.cleaner.main": "cleaner",
}
"""The kinds of a broker's processes, by the module that each runs."""


class ClusterBroker(Housed):
    """One broker of a cluster, by its `number`. Made by `Cluster`."""

    def __init__(
        self,
        number: int,
        places: Places,
        *,
        writers: int | None,
        options: Mapping[str, object],
        start_timeout: float,
        before: Sequence[str],
        parent: Path | None,
    ) -> None:
        self.number = number
        super().__init__(
            writers=writers,
            options={**options, **places.options(number)},
            listen=places.listen(number),
            start_timeout=start_timeout,
            before=before,
            start=False,
            parent=parent,
        )

    def processes(self, *kinds: str) -> list[int]:
        """The pids of its processes of these kinds (`ROLES`); none given: all."""
        found = remains.processes_of(os.fspath(self.folder))
        return [pid for pid in found if not kinds or kind_of(pid) in kinds]

    def kill(self, *kinds: str) -> None:
        """SIGKILL to all its processes, as when its host loses its memory of them; or only to those
        of these kinds (`ROLES`), which the broker has to cope with."""
        if kinds:
            self._signal(signal.SIGKILL, kinds)
            return
        self.node.kill_all()

    def pause(self, *kinds: str) -> None:
        """SIGSTOP to all its processes, or those of these kinds, until `resume`."""
        self._signal(signal.SIGSTOP, kinds)

    def resume(self) -> None:
        self._signal(signal.SIGCONT, ())

    def _signal(self, number: int, kinds: Sequence[str]) -> None:
        found = self.processes(*kinds)
        if kinds and not found:  # one that died is being replaced
            what = f"a process of {', '.join(kinds)} at broker {self.number}"
            found = wait_until(lambda: self.processes(*kinds), what=what)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def connect(self, *, client_id: str = "", timeout: float = 5.0) -> Client:
        """A client that asks this broker first; it learns of the others."""
        return self.node.connect_tcp(client_id=client_id, timeout=timeout)

    def stop(self) -> int:
        """The clean end: it gives away what it leads, then drains, syncs and closes."""
        self.resume()
        return super().stop()


class Cluster(Served):
    """Started when made; `with` (or `close`) takes all of it away.

    Args:
        brokers: how many there are; their numbers begin at 1.
        partitions: how many a topic gets that is made without saying.
        durability: the same ("os", "interval" or "fsync").
        writers: most writer processes of each broker; None leaves their default.
        options: further options of each by their names in the operations guide, such as
            `{"election_timeout": 0.5}`.
        start_timeout: seconds within which all must admit clients.
        hosts, before: addresses of the brokers and what goes before their commands, where they run
            on hosts of their own (network namespaces); else all listen at free ports of this one.
        parents: where the folder of each is made (file systems of their own); else all of them are
            among the temporary files.

    Raises `PenstockError` with the end of a broker's log when it does not start.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        partitions: int = 1,
        durability: Durability = "os",
        writers: int | None = None,
        options: Mapping[str, object] | None = None,
        start_timeout: float = 30.0,
        hosts: Sequence[str] = (),
        before: Sequence[Sequence[str]] = (),
        parents: Sequence[Path] = (),
    ) -> None:
        self._serve(partitions, durability, "tcp")
        self._owner = os.getpid()
        self._places = Places(brokers, hosts)
        self._brokers: dict[int, ClusterBroker] = {}
        try:
            for number in self._places.numbers:
                self._brokers[number] = ClusterBroker(
                    number,
                    self._places,
                    writers=writers,
                    options=options or {},
                    start_timeout=start_timeout,
                    before=before[number - 1] if before else (),
                    parent=parents[number - 1] if parents else None,
                )
            start_together({number: each.node for number, each in self._brokers.items()})
        except BaseException:
            self.close()
            raise

    # --- what it is ---
    @property
    def url(self) -> str:
        """All brokers, whichever of them live."""
        return self._places.url

    @property
    def brokers(self) -> list[ClusterBroker]:
        return list(self._brokers.values())

    def broker(self, number: int) -> ClusterBroker:
        found = self._brokers.get(number)
        if found is None:
            raise ConfigError(f"this cluster has no broker {number}: it has {list(self._brokers)}")
        return found

    @property
    def running(self) -> list[ClusterBroker]:
        return [each for each in self._brokers.values() if each.is_running]

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of each broker."""
        return "\n".join(
            f"--- broker {number}\n{each.log_tail(lines)}" for number, each in self._brokers.items()
        )

    # --- who does what ---
    def look(self, *topics: str) -> View:
        """The cluster and these topics as the first broker that answers sees them."""
        trouble = []
        for each in self.running:
            try:
                with each.connect(timeout=ASK_TIMEOUT) as client:
                    return look(client.admin(timeout=ASK_TIMEOUT), topics)
            except PenstockError as error:
                trouble.append(f"broker {each.number}: {error}")
        raise NotConnectedError("no broker answers: " + ("; ".join(trouble) or "none runs"))

    def leader_of(self, topic: str, partition: int = 0, timeout: float = 10.0) -> int:
        """The number of the broker that leads a partition, once one that runs does so."""
        return self._awaited(
            lambda: self.look(topic).partitions[topic, partition].leader,
            timeout,
            f"a leader of {topic}-{partition}",
        )

    def controller(self, timeout: float = 10.0) -> int:
        """The number of the broker whose controller decides, once one that runs does so."""
        return self._awaited(lambda: self.look().controller, timeout, "an active controller")

    def _awaited(self, find: Callable[[], int], timeout: float, what: str) -> int:
        last: object = None

        def found() -> int | None:
            nonlocal last
            try:
                last = find()
            except PenstockError as error:
                last = error
                return None
            return last if last in {each.number for each in self.running} else None

        number = wait_until(found, timeout, lambda: f"{what}: {last}\n{self.log_tail()}")
        assert number is not None
        return number

    def ailing(self) -> list[str]:
        """Returns faults: brokers that are not up, partitions without a leader or with replicas out
        of sync. Empty: all is well."""
        for each in self.running:
            with contextlib.suppress(PenstockError):
                with each.connect(timeout=ASK_TIMEOUT) as client:
                    cluster = client.admin(timeout=ASK_TIMEOUT).describe_cluster()
                states = {broker.broker: broker.state for broker in cluster.brokers}
                return [
                    *(
                        f"broker {number} is {states.get(number, 'not registered')}"
                        for number in self._brokers
                        if states.get(number) != "up"
                    ),
                    *(
                        f"{place.topic}-{place.partition}: leader {place.leader}, replicas "
                        f"{place.replicas}, in sync {place.isr}"
                        for place in cluster.ill
                    ),
                ]
        return ["no broker answers"]

    # --- what tests do to it ---
    def wait_ready(self, timeout: float = 30.0) -> None:
        """Until all that run admit clients; `PenstockError` says who does not in time."""
        deadline = time.monotonic() + timeout
        for each in self.running:
            try:
                each.node.await_ready(max(0.0, deadline - time.monotonic()))
            except PenstockError as error:
                raise PenstockError(f"{error}\n{self.log_tail()}") from error

    def kill(self, numbers: Iterable[int] = ()) -> None:
        """SIGKILL all processes of these brokers (none given: of all), one right after another."""
        for each in self._chosen(numbers):
            each.kill()

    def start(self, numbers: Iterable[int] = ()) -> None:
        """Start those of these brokers (none given: of all) that do not run, side by side."""
        away = {each.number: each.node for each in self._chosen(numbers) if not each.is_running}
        start_together(away)

    def advance(self, seconds: float) -> None:
        """Moves the clocks of all brokers' coordinators ahead; see `Broker.advance`."""
        for each in self.brokers:
            each.advance(seconds)

    def _chosen(self, numbers: Iterable[int]) -> list[ClusterBroker]:
        return [self.broker(number) for number in numbers] or self.brokers

    # --- the end ---
    def close(self) -> None:
        """Any number of times; in a forked child of the process that made it nothing happens."""
        if os.getpid() != self._owner:
            return
        for each in self._brokers.values():
            each.close()
        self._places.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def kind_of(pid: int) -> str:
    """Which of a broker's processes it is; empty where it is none, or gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    return next((kind for module, kind in ROLES.items() if module in words), "")
