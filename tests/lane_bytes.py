"""Lanes made by hand for tests: positions and frame headers written out once more."""

from __future__ import annotations

import os
import struct

from crc32c import crc32c
from store_crash import memory

from penstock.ipc.lane import Ack, Frame, LaneIdentity, LaneReceiver, LaneSender, format_lane
from penstock.ipc.shm import Region

FRAMES_AT = 8192
# Positions of the cursors, as the format has them.
TAIL, TAIL_SEQUENCE, STATE, ACK_HEAD = 64, 72, 128, 144
HEAD, HEAD_SEQUENCE, GENERATION, ACK_TAIL = 192, 200, 208, 216
MANY = 1 << 30


def identity_of(capacity: int) -> LaneIdentity:
    return LaneIdentity(capacity, 11, 2, 3, 4242, 987654321, 0xFEDCBA9876543210)


def made(capacity: int) -> tuple[Region, LaneSender, LaneReceiver]:
    """A new lane with both its ends attached."""
    fd, region = memory(FRAMES_AT + capacity)
    os.close(fd)
    format_lane(region, identity_of(capacity))
    return region, LaneSender(region, "lane"), LaneReceiver(region, "lane", 1)


def at(region: Region, position: int) -> int:
    return int.from_bytes(region.bytes[position : position + 8], "little")


def put(region: Region, position: int, *numbers: int) -> None:
    struct.pack_into(f"<{len(numbers)}Q", region.bytes, position, *numbers)


def ack(frame: Frame) -> Ack:
    return Ack(frame.sequence, 1000 + frame.sequence, 77, 0, 5)


def frame_header(
    length: int = 64,
    page: int = 0,
    sequence: int = 0,
    fetch_epoch: int = 0,
    kind: int = 1,
    batch: int = 0,
    flags: int = 0,
) -> bytes:
    packed = struct.pack("<IIQIHHI", length, page, sequence, fetch_epoch, kind, flags, batch)
    return packed + struct.pack("<I", crc32c(packed))


def write(sender: LaneSender, data: bytes, page: int = 0, flags: int = 0) -> int | None:
    """Two pieces, as a batch comes: header and body."""
    return sender.try_write(page, [data[:3], data[3:]], len(data), flags)
