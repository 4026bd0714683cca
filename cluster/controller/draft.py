"""The controller's next decision: records in the making. Owns no state that lasts."""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.controller import elections as el
from penstock.cluster.controller import records as rec
from penstock.cluster.controller.image import Image, Place
from penstock.cluster.controller.records import BrokerRegistration, Partition
from penstock.cluster.decisions import Record


class Draft:
    """Records in the making, and the image as it will be with them."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._brokers: dict[int, BrokerRegistration] = {}
        self._partitions: dict[Place, Partition] = {}
        self._drained: dict[int, bool] = {}
        self._others: list[Record] = []

    def add(self, record: Record) -> None:
        self._others.append(record)

    def put(self, at: Place, partition: Partition) -> None:
        self._partitions[at] = partition

    def put_broker(self, broker: int, value: BrokerRegistration) -> None:
        self._brokers[broker] = value

    def partition(self, at: Place) -> Partition:
        return self._partitions.get(at) or self._image.partitions[at]

    def may_lead(self, broker: int) -> bool:
        known = self._brokers.get(broker) or self._image.brokers.get(broker)
        return known is not None and not known.is_fenced and not known.is_leaving

    def is_drained(self, broker: int) -> bool:
        return self._drained.get(broker, self._image.is_drained(broker))

    def may_be_given(self, broker: int) -> bool:
        """Whether it may lead, and is not drained."""
        return self.may_lead(broker) and not self.is_drained(broker)

    def drain(self, broker: int, epoch: int | None) -> None:
        """In this epoch of it; None: no more."""
        self._drained[broker] = epoch is not None
        value = None if epoch is None else b"%d" % epoch
        self.add(rec.record(rec.SETTING, rec.DRAINED, str(broker), value=value))

    def each(self, broker: int, step: Callable[[Partition], Partition | None]) -> None:
        """Do that with every partition that has a replica there."""
        for at in sorted(self._image.places.get(broker, ())):
            self.change(at, step)

    def change(self, at: Place, step: Callable[[Partition], Partition | None]) -> bool:
        now = step(self.partition(at))
        if now is not None:
            self._partitions[at] = self.relieved(at, now)
        return now is not None

    def relieved(self, at: Place, now: Partition) -> Partition:
        """As it is to become, but led by one that is not drained, where there is one."""
        return el.relieved(self.partition(at), now, self.may_lead, self.is_drained) or now

    def count(self, name: str, count: int = 1) -> int:
        first = self._image.counters.get(name, 1)
        self.add(rec.record(rec.COUNTER, name, value=first + count))
        return first

    def records(self) -> tuple[Record, ...]:
        return (
            *(rec.record(rec.BROKER, broker, value=it) for broker, it in self._brokers.items()),
            *self._others,
            *(rec.record(rec.PARTITION, *at, value=it) for at, it in self._partitions.items()),
        )
