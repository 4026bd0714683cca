"""How a worker reads its leases where records do not come at once, as from another host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.client.share.lease_reader import LeaseReader
from penstock.client.share.leases import OpenLeases
from penstock.client.share.look_ahead import LookAhead
from penstock.ipc import sharing as sh

TOPIC = bytes(16)


class SlowCursor:
    """Brings what it stands at the second time that it is asked; none of it holds a record."""

    def __init__(self, partition: int) -> None:
        self.name = ("jobs", partition)
        self.offset = 0
        self.page = SimpleNamespace(leader_epoch=0)
        self._was_asked = False

    def look(self, offset: int, bytes_max: int | None) -> None:
        self.offset = offset
        self._was_asked = False

    def take(self, room: int, bytes_max: int) -> list[Any]:
        self._was_asked, has_come = True, self._was_asked
        self.offset += room if has_come else 0
        return []


def test_a_lease_whose_records_are_on_their_way_is_left_for_no_other_of_its_partition():
    counts: dict[str, int] = {}
    leases = OpenLeases("g", counts, lambda: "m")
    cursors = {("jobs", partition): SlowCursor(partition) for partition in (0, 1)}
    group: Any = SimpleNamespace(partitions=cursors)
    ahead = LookAhead(sh.ShareSettings(), 1 << 20)
    reader = LeaseReader(group, leases, counts, 1 << 20, ahead, False)
    for lease, partition, first in ((1, 0, 100), (2, 0, 300), (3, 1, 500)):
        run = (first, first + 10)
        leases.add("jobs", sh.LeasedRecords(TOPIC, partition, lease, [run], [(1, *run)]))
    reader.read(100, now=0.0)
    assert (cursors["jobs", 0].offset, cursors["jobs", 1].offset) == (100, 500)
    reader.read(100, now=1.0)
    assert (leases.unread, counts["skipped"]) == (10, 20)
    reader.read(100, now=2.0)
    assert (leases.unread, counts["skipped"]) == (0, 30)
