"""Every byte that processes of one host share, drawn once.

All cursors are aligned u64 and are written through `memoryview.cast("Q")`, one store each.
`struct.pack_into` zeroes bytes before it writes them, so it is used only for bytes that nobody
reads yet. Each 64-byte line has one writer. Positions below are bytes; `Q_*` are u64 indexes.

Lane: one producer -> one writer process (named shared memory)

       0 ┌ magic (last) │ version u32, writer u32 │ capacity │ producer id ┐  node, once
      32 └ epoch        │ pid                     │ start    │ boot hash   ┘
      64   tail         │ tail sequence                                       producer
     128   state        │ heartbeat  │ ack head                               producer
     192   head         │ head sequence │ generation │ ack tail               writer
     256   sleeping ticket                                                    writer
     320   sleeping ticket                                                    producer
    4096   128 acknowledgements of 32 bytes                                   writer
    8192   frames: 64-byte header + batch image, 64-aligned, never wrapping   producer

State table: one a data folder and boot; read by everybody

       0   magic │ version u32, stride u32 │ pages │ node uuid (16 bytes)     node, once
      64   disk level │ free │ total │ warn below │ stop below                node
     128   cleaner pid │ heartbeat │ runs │ errors │ time of the last run     cleaner
    1024   pages of namespaces whose bytes are at their limit: a bitmap       node
    4096   64 writer slots of 64 bytes: pid │ generation │ heartbeat │ passes │ restarts; its writer
    8192   pages of 512 bytes, page k = partition k of this node              the writer of k
           0 magic u32, version u32 │ topic id (16) │ partition │ generation │ leader epoch
          64 seqlock │ segment base │ valid bytes
         128 log end │ high watermark │ last stable │ durable │ log start
         256 reserved │ status │ errno │ oldest open transaction: producer id │ epoch │ began
         320 records │ bytes │ batches │ duplicates │ refusals │ throttles │ producers forgotten
         384 cleanings │ segments and bytes deleted │ records compacted │ errors │ time of the last
         448 microseconds in syncs │ syncs up to 1 ms │ 5 ms │ 20 ms │ 0.1 s │ 0.5 s │ 2 s │ longer

Client table: one a data folder and boot

       0   magic │ version u32, stride u32 │ slots                            node, once
    4096   slots of 4096 bytes, one per attached producer or consumer
           0 in use │ pid │ start time │ kind                                 node
          64 sleeping ticket │ assigned partitions                            client
         128 records given up by its own policy │ producer id │ last poll     client
         512 watched pages: a bitmap of 4096 partitions                       client
        1024 384 positions: (page + 1) << 51 | offset, 0 where there is none  client
"""

from __future__ import annotations

import struct
from typing import Final

LAYOUT_VERSION: Final = 1

# --- lane ---------------------------------------------------------------------------------------
LANE_MAGIC: Final = int.from_bytes(b"PSTKLANE", "little")
Q_LANE_MAGIC: Final = 0
LANE_VERSION_WRITER: Final = struct.Struct("<II")
LANE_VERSION_AT: Final = 8
Q_LANE_VERSION: Final = 1
Q_LANE_CAPACITY: Final = 2
Q_LANE_PRODUCER_ID: Final = 3
Q_LANE_EPOCH: Final = 4
Q_LANE_PID: Final = 5
Q_LANE_START_TIME: Final = 6
Q_LANE_BOOT_HASH: Final = 7

Q_LANE_TAIL: Final = 64 // 8
Q_LANE_TAIL_SEQUENCE: Final = 72 // 8
Q_LANE_STATE: Final = 128 // 8
Q_LANE_PRODUCER_HEARTBEAT: Final = 136 // 8
Q_LANE_ACK_HEAD: Final = 144 // 8
Q_LANE_HEAD: Final = 192 // 8
Q_LANE_HEAD_SEQUENCE: Final = 200 // 8
Q_LANE_GENERATION: Final = 208 // 8
Q_LANE_ACK_TAIL: Final = 216 // 8
Q_LANE_WRITER_SLEEPING: Final = 256 // 8
Q_LANE_PRODUCER_SLEEPING: Final = 320 // 8

LANE_ACKS_AT: Final = 4096
LANE_FRAMES_AT: Final = 8192
ACK: Final = struct.Struct("<QqQiI")  # lane sequence, base offset, append time, error, leader epoch
ACKS_MAX: Final = 128
assert ACK.size == 32
assert LANE_ACKS_AT + ACKS_MAX * ACK.size == LANE_FRAMES_AT

LANE_OPEN: Final = 1
LANE_CLOSED: Final = 2

LANE_CAPACITY_DEFAULT: Final = 4 << 20
LANE_CAPACITY_MIN: Final = 64 << 10
LANE_CAPACITY_MAX: Final = 1 << 30
FRAME_SHARE: Final = 4
"""A frame takes at most capacity / FRAME_SHARE bytes, so that a lane always streams."""

PRODUCER_COUNTER_BITS: Final = 40
"""The counter's bits in a producer id. The other 24 bits come from the data folder's uuid, or from
a broker's block. The node's own coordinator has the counter 0."""

FRAME_BYTES: Final = 64
FRAME_ALIGN: Final = 64
FRAME: Final = struct.Struct("<IIQIHHI")  # length, page, sequence, fetch epoch, kind, flags, batch
FRAME_CRC: Final = struct.Struct("<I")
FRAME_CRC_AT: Final = FRAME.size
KIND_DATA: Final = 1
KIND_PAD: Final = 2
KIND_REPLICA: Final = 3
"""One batch as it is in the leader's log; its fetch epoch is the leader epoch that it came in."""
KIND_ROLE: Final = 4
"""No batch but a struct of `roles`, packed: what a replica is to do or to know."""
FRAME_SYNC: Final = 1
"""Flag: its producer waits for stable storage, so sync soon whatever the topic says."""
FRAME_COMMITTED: Final = 2
"""Flag: its producer waits for the in-sync replicas (acks=all). For the gateway; writers ignore
it."""
FRAME_IN_EPOCH: Final = 4
"""Flag: only for the leader epoch that the frame names; in another one it is refused."""
FRAME_AGAIN: Final = 8
"""Flag: the first batch of its page since one was sent back for want of a leader. For a remote
client's carrier, which sends no other one on."""

# --- state table --------------------------------------------------------------------------------
STATE_MAGIC: Final = int.from_bytes(b"PSTKSTAT", "little")
STATE_HEADER: Final = struct.Struct("<QIIQ16s")
DISK_SLOT_AT: Final = 64
Q_DISK_LEVEL: Final = 0
Q_DISK_FREE: Final = 1
Q_DISK_TOTAL: Final = 2
Q_DISK_WARN: Final = 3
Q_DISK_STOP: Final = 4
DISK_OK: Final = 0
DISK_WARN: Final = 1
DISK_STOP: Final = 2
DISK_NAMES: Final = {0: "ok", 1: "low", 2: "full"}
CLEANER_SLOT_AT: Final = 128
Q_CLEANER_PID: Final = 0
Q_CLEANER_HEARTBEAT: Final = 1
Q_CLEANER_RUNS: Final = 2
Q_CLEANER_ERRORS: Final = 3
Q_CLEANER_LAST_RUN: Final = 4
Q_CLEANER_UNREAD: Final = 5
Q_CLEANER_HELD: Final = 6

FULL_PAGES_AT: Final = 1024

WRITERS_MAX: Final = 64
WRITER_SLOTS_AT: Final = 4096
WRITER_SLOT_BYTES: Final = 64
Q_WRITER_PID: Final = 0
Q_WRITER_GENERATION: Final = 1
Q_WRITER_HEARTBEAT: Final = 2
Q_WRITER_PASSES: Final = 3
Q_WRITER_RESTARTS: Final = 4

PAGES_AT: Final = 8192
PAGE_BYTES: Final = 512
PAGES_MAX: Final = 4096
assert FULL_PAGES_AT + PAGES_MAX // 8 <= WRITER_SLOTS_AT
PAGE_MAGIC: Final = int.from_bytes(b"PAGE", "little")
PAGE_IDENTITY: Final = struct.Struct("<II16sQ")  # magic, version, topic id, partition
Q_PAGE_MAGIC: Final = 0
PAGE_TOPIC_ID_AT: Final = 8
Q_PAGE_PARTITION: Final = 24 // 8
Q_PAGE_GENERATION: Final = 32 // 8
Q_PAGE_LEADER_EPOCH: Final = 40 // 8
Q_PAGE_SEQLOCK: Final = 64 // 8
Q_PAGE_SEGMENT_BASE: Final = 72 // 8
Q_PAGE_VALID_BYTES: Final = 80 // 8
Q_PAGE_LOG_END: Final = 128 // 8
Q_PAGE_HIGH_WATERMARK: Final = 136 // 8
Q_PAGE_LAST_STABLE: Final = 144 // 8
Q_PAGE_DURABLE: Final = 152 // 8
Q_PAGE_LOG_START: Final = 160 // 8
Q_PAGE_STATUS: Final = 264 // 8
Q_PAGE_ERRNO: Final = 272 // 8
Q_PAGE_OPEN_PRODUCER: Final = 280 // 8
Q_PAGE_OPEN_EPOCH: Final = 288 // 8
Q_PAGE_OPEN_BEGAN: Final = 296 // 8
Q_PAGE_RECORDS: Final = 320 // 8
Q_PAGE_BYTES: Final = 328 // 8
Q_PAGE_BATCHES: Final = 336 // 8
Q_PAGE_DUPLICATES: Final = 344 // 8
Q_PAGE_REFUSALS: Final = 352 // 8
Q_PAGE_THROTTLES: Final = 360 // 8
Q_PAGE_PRODUCERS_EXPIRED: Final = 368 // 8
Q_PAGE_CLEANINGS: Final = 384 // 8
Q_PAGE_SEGMENTS_DELETED: Final = 392 // 8
Q_PAGE_BYTES_DELETED: Final = 400 // 8
Q_PAGE_RECORDS_COMPACTED: Final = 408 // 8
Q_PAGE_CLEANING_ERRORS: Final = 416 // 8
Q_PAGE_CLEANED_AT: Final = 424 // 8
Q_PAGE_SYNC_US: Final = 448 // 8
Q_PAGE_SYNC_COUNTS: Final = 456 // 8
SYNC_BOUNDS_US: Final = (1_000, 5_000, 20_000, 100_000, 500_000, 2_000_000)
"""A sync is counted under the first bound that it does not exceed, or behind the last."""
assert (Q_PAGE_SYNC_COUNTS + len(SYNC_BOUNDS_US) + 1) * 8 == PAGE_BYTES

STATUS_ABSENT: Final = 0
STATUS_ONLINE: Final = 1
STATUS_OFFLINE: Final = 2
STATUS_FULL: Final = 3
STATUS_DELETED: Final = 4
STATUS_FOLLOWING: Final = 5
"""Open, and led elsewhere or by nobody: takes no batches of producers."""
STATUS_NAMES: Final = {
    STATUS_ABSENT: "absent",
    STATUS_ONLINE: "online",
    STATUS_OFFLINE: "offline",
    STATUS_FULL: "storage full",
    STATUS_DELETED: "deleted",
    STATUS_FOLLOWING: "following",
}

# --- client table -------------------------------------------------------------------------------
CLIENT_MAGIC: Final = int.from_bytes(b"PSTKCLNT", "little")
CLIENT_HEADER: Final = struct.Struct("<QIIQ")
CLIENT_SLOTS_AT: Final = 4096
CLIENT_SLOT_BYTES: Final = 4096
CLIENTS_MAX: Final = 1024
Q_CLIENT_IN_USE: Final = 0
Q_CLIENT_PID: Final = 1
Q_CLIENT_START_TIME: Final = 2
Q_CLIENT_KIND: Final = 3
Q_CLIENT_NOTICE: Final = 4
Q_CLIENT_SLEEPING: Final = 64 // 8
Q_CLIENT_ASSIGNED: Final = 72 // 8
Q_CLIENT_DROPPED: Final = 128 // 8
Q_CLIENT_PRODUCER_ID: Final = 136 // 8
Q_CLIENT_POLLED: Final = 144 // 8
"""Microseconds of the monotonic clock; 0: not known."""
CLIENT_WATCH_AT: Final = 512
CLIENT_POSITIONS_AT: Final = 1024
POSITIONS_MAX: Final = 384
"""Partitions of one consumer whose positions are published; it may read more."""
POSITION_BITS: Final = 51
assert CLIENT_WATCH_AT + PAGES_MAX // 8 == CLIENT_POSITIONS_AT
assert CLIENT_POSITIONS_AT + POSITIONS_MAX * 8 == CLIENT_SLOT_BYTES

KIND_PRODUCER: Final = 1
KIND_CONSUMER: Final = 2
KIND_ADMIN: Final = 3
KIND_CLEANER: Final = 4
KIND_REPLICATOR: Final = 5


def is_coordinators(producer_id: int) -> bool:
    """Whether this is the producer id of a node's coordinator."""
    return not producer_id & ((1 << PRODUCER_COUNTER_BITS) - 1)


def replicators_id(prefix: int) -> int:
    """The producer id of a node's replicator: its prefix, and the counter that nobody reaches."""
    return prefix | ((1 << PRODUCER_COUNTER_BITS) - 1)


def is_replicators(producer_id: int) -> bool:
    """Whether this is the producer id of a node's replicator."""
    return replicators_id(producer_id) == producer_id


def lane_bytes(capacity: int) -> int:
    """Size of the shared-memory object of a lane whose frames take `capacity` bytes."""
    return LANE_FRAMES_AT + capacity


def state_table_bytes(pages: int = PAGES_MAX) -> int:
    return PAGES_AT + pages * PAGE_BYTES


def client_table_bytes(slots: int = CLIENTS_MAX) -> int:
    return CLIENT_SLOTS_AT + slots * CLIENT_SLOT_BYTES
