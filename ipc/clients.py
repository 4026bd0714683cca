"""The client table: each attached producer or consumer informs the writers, without a message.

The node gives out a slot, and alone writes its first line; the client writes the rest. That is its
sleeping ticket and a bitmap of the partitions (pages) whose new records should wake it. Observers
also find its positions in them there, and the records that it gave up by its own policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.errors import UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc.shm import Region


def format_table(region: Region, slots: int = lo.CLIENTS_MAX) -> None:
    """Makes zeroed memory a client table; the magic last."""
    packed = lo.CLIENT_HEADER.pack(0, lo.LAYOUT_VERSION, lo.CLIENT_SLOT_BYTES, slots)
    region.bytes[8 : len(packed)] = packed[8:]
    region.q[0] = lo.CLIENT_MAGIC


def check_table(region: Region) -> bool:
    """Whether this is a finished client table of this layout. Raises on another version."""
    if len(region.bytes) < lo.CLIENT_SLOTS_AT:
        return False
    magic, version, stride, slots = lo.CLIENT_HEADER.unpack_from(region.bytes)
    if magic != lo.CLIENT_MAGIC:
        return False
    if version != lo.LAYOUT_VERSION or stride != lo.CLIENT_SLOT_BYTES:
        raise UnsupportedVersionError(
            f"the client table has layout version {version}, this build {lo.LAYOUT_VERSION}: run "
            "the same Penstock version in the node and its clients"
        )
    return len(region.bytes) >= lo.client_table_bytes(slots)


class ClientSlot:
    """One slot; which methods a process may call is told by the line they write."""

    __slots__ = ("_base", "_bytes", "_q", "index")

    def __init__(self, region: Region, index: int) -> None:
        if not 0 <= index < lo.CLIENTS_MAX:
            raise ValueError(f"client slot {index} is outside 0..{lo.CLIENTS_MAX - 1}")
        self._q = region.q
        self._bytes = region.bytes
        self._base = (lo.CLIENT_SLOTS_AT + index * lo.CLIENT_SLOT_BYTES) // 8
        self.index = index

    # --- node ---
    def assign(self, pid: int, start_time: int, kind: int) -> None:
        """Gives a cleared slot to a client."""
        start = self._base * 8
        self._bytes[start : start + lo.CLIENT_SLOT_BYTES] = bytes(lo.CLIENT_SLOT_BYTES)
        self._q[self._base + lo.Q_CLIENT_PID] = pid
        self._q[self._base + lo.Q_CLIENT_START_TIME] = start_time
        self._q[self._base + lo.Q_CLIENT_KIND] = kind
        self._q[self._base + lo.Q_CLIENT_IN_USE] = 1

    def free(self) -> None:
        self._q[self._base + lo.Q_CLIENT_SLEEPING] = 0
        self._q[self._base + lo.Q_CLIENT_IN_USE] = 0

    def give_notice(self) -> int:
        """Tells the client that the coordinator has something to say, such as another assignment;
        its doorbell is rung after this."""
        self._q[self._base + lo.Q_CLIENT_NOTICE] += 1
        return self.notice

    def copy_notice(self, notice: int) -> None:
        """Sets the notice to that of the slot that this one is a copy of."""
        self._q[self._base + lo.Q_CLIENT_NOTICE] = notice

    @property
    def in_use(self) -> bool:
        return bool(self._q[self._base + lo.Q_CLIENT_IN_USE])

    @property
    def pid(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_PID])

    # --- client ---
    @property
    def notice(self) -> int:
        """Grows with each `give_notice`: one load tells that nothing has changed."""
        return int(self._q[self._base + lo.Q_CLIENT_NOTICE])

    def publish_sleeping(self, ticket: int) -> None:
        self._q[self._base + lo.Q_CLIENT_SLEEPING] = ticket

    def watch(self, pages: Iterable[int]) -> None:
        """Asks to be woken for exactly these pages."""
        bits = bytearray(lo.PAGES_MAX // 8)
        for page in pages:
            bits[page >> 3] |= 1 << (page & 7)
        start = self._base * 8 + lo.CLIENT_WATCH_AT
        self._bytes[start : start + len(bits)] = bits

    def watch_one(self, page: int, wanted: bool) -> None:
        """Ask to be woken for this page too, or not any more."""
        at = self._base * 8 + lo.CLIENT_WATCH_AT + (page >> 3)
        bit = 1 << (page & 7)
        self._bytes[at] = self._bytes[at] | bit if wanted else self._bytes[at] & ~bit

    def publish_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        """Another assignment: (page, offset) each, of which the first `POSITIONS_MAX` find room."""
        known = positions[: lo.POSITIONS_MAX]
        for place, (page, offset) in enumerate(known):
            self.publish_position(place, page, offset)
        rest = self._base * 8 + lo.CLIENT_POSITIONS_AT + len(known) * 8
        end = (self._base * 8) + lo.CLIENT_SLOT_BYTES
        self._bytes[rest:end] = bytes(end - rest)
        self._q[self._base + lo.Q_CLIENT_ASSIGNED] = len(positions)

    def publish_position(self, place: int, page: int, offset: int) -> None:
        """The next offset wanted of `page`, the `place`-th partition assigned: one store."""
        if place < lo.POSITIONS_MAX:
            at = self._base + lo.CLIENT_POSITIONS_AT // 8 + place
            self._q[at] = (page + 1) << lo.POSITION_BITS | offset

    def publish_producer(self, producer_id: int) -> None:
        """Publishes the producer that these records belonged to."""
        self._q[self._base + lo.Q_CLIENT_PRODUCER_ID] = producer_id

    def publish_dropped(self, records: int) -> None:
        """Records that the client's own policy gave up so far: one store a burst."""
        self._q[self._base + lo.Q_CLIENT_DROPPED] = records

    def publish_polled(self, at: int) -> None:
        """When the client last looked for records (microseconds of the monotonic clock)."""
        self._q[self._base + lo.Q_CLIENT_POLLED] = at

    # --- observers ---
    @property
    def polled(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_POLLED])

    @property
    def producer_id(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_PRODUCER_ID])

    @property
    def dropped(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_DROPPED])

    @property
    def start_time(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_START_TIME])

    @property
    def kind(self) -> int:
        return int(self._q[self._base + lo.Q_CLIENT_KIND])

    @property
    def assigned(self) -> int:
        """How many partitions the client reads; `positions` may tell of fewer."""
        return int(self._q[self._base + lo.Q_CLIENT_ASSIGNED])

    def positions(self) -> list[tuple[int, int]]:
        """(page, next offset wanted) of each partition that a consumer reads."""
        start = self._base + lo.CLIENT_POSITIONS_AT // 8
        words = self._q[start : start + min(self.assigned, lo.POSITIONS_MAX)].tolist()
        mask = (1 << lo.POSITION_BITS) - 1
        return [((word >> lo.POSITION_BITS) - 1, word & mask) for word in words if word]

    # --- writer ---
    @property
    def ticket(self) -> int:
        """Non-zero while the client sleeps; read it only after a fence."""
        return int(self._q[self._base + lo.Q_CLIENT_SLEEPING])

    def watches(self, page: int) -> bool:
        at = self._base * 8 + lo.CLIENT_WATCH_AT + (page >> 3)
        return bool(self._bytes[at] & (1 << (page & 7)))
