"""The inputs behind tests/golden/*.hex, and the way to write those files again.

    python tests/golden_batches.py [name ...]

writes the named cases, all of them without a name. The format is frozen: do so only together with a
new version of it, or for a case that is new.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from penstock.core import header as hd
from penstock.core.control import ControlType, encode_control
from penstock.core.encode import EncodedBatch, encode_batch
from penstock.core.work import WorkColumns

FOLDER = Path(__file__).parent / "golden"
READ_ONLY = FOLDER / "read-only"
"""What must be read for ever, and need not be written to the byte: a compressor's own choice."""
TOPIC_ID = bytes(range(16))
BASE_TIME = 1_700_000_000_000_000
LINE_BYTES = 16
WORK = WorkColumns(
    due=[BASE_TIME + 30_000_000, None, BASE_TIME + 30_000_007],
    expires=[BASE_TIME + 60_000_000, BASE_TIME + (1 << 40), None],
    priorities=[0, 9, None],
    dedup_ids=[b"invoice-4711", None, "naïve".encode()],
)


def _batch(values: list[bytes | None], **columns: object) -> EncodedBatch:
    identity = hd.BatchIdentity(TOPIC_ID, 7, 0x1122334455667788, 3, 0x0102030405060708)
    given = {"base_timestamp": BASE_TIME, **columns}
    return encode_batch(values, identity, **given)  # type: ignore[arg-type]


def _stamped() -> EncodedBatch:
    encoded = _batch([b"stamped"])
    hd.stamp(
        encoded.header,
        base_offset=0x0A0B0C0D0E0F,
        leader_epoch=5,
        generation=9,
        append_timestamp=BASE_TIME + 1,
        flags=hd.FLAG_APPEND_TIME,
    )
    return encoded


def _control(kind: ControlType, epoch: int) -> EncodedBatch:
    image = encode_control(
        kind,
        producer_id=0x1122334455667788,
        producer_epoch=epoch,
        coordinator_epoch=0x0A0B0C0D,
        timestamp=BASE_TIME,
        topic_id=TOPIC_ID,
        partition=7,
    )
    return EncodedBatch(bytearray(image[: hd.HEADER_BYTES]), image[hd.HEADER_BYTES :])


CASES: dict[str, Callable[[], EncodedBatch]] = {
    "values": lambda: _batch([b"one", b"", b"three"]),
    "stamped": _stamped,
    "keys": lambda: _batch([b"1", b"22"], keys=[b"key", b""]),
    "nulls": lambda: _batch([b"a", None, b"", None] * 3, keys=[None, b"k", b"", b"kk"] * 3),
    "headers": lambda: _batch(
        [b"a", b"b", b"c", b"d"],
        headers=[(("trace", b"\x00\xff"), ("naïve", None)), None, (), (("", b""),)],
    ),
    "control-begin": lambda: _control(ControlType.BEGIN, 3),
    "control-commit": lambda: _control(ControlType.COMMIT, 4),
    "control-abort": lambda: _control(ControlType.ABORT, 4),
    "sparse": lambda: _batch([b"a", b"b"], offset_deltas=[1, 5], last_offset_delta=8),
    "empty": lambda: _batch([], offset_deltas=[], last_offset_delta=4),
    "timestamps-constant": lambda: _batch([b"a", b"b"], timestamps=[BASE_TIME - 5] * 2),
    "timestamps-int32": lambda: _batch([b"a", b"b"], timestamps=[BASE_TIME + 9, BASE_TIME - 4]),
    "timestamps-int64": lambda: _batch([b"a", b"b"], timestamps=[-1, (1 << 31) - 1]),
    "lz4": lambda: _batch([b"x" * 200, b"y" * 200], keys=[b"k", None], codec=hd.CODEC_LZ4),
    "lz4-not-smaller": lambda: _batch([b"abc"], codec=hd.CODEC_LZ4),
    "work": lambda: _batch([b"a", b"b", b"c"], keys=[b"k", None, b"kk"], work=WORK),
    "work-constant": lambda: _batch(
        [b"a", b"b"], work=WorkColumns([BASE_TIME + 1] * 2, priorities=[7, 7])
    ),
    "work-lz4": lambda: _batch([b"x" * 200] * 3, work=WORK, codec=hd.CODEC_LZ4),
    "work-lz4-not-smaller": lambda: _batch([b"abc"] * 3, work=WORK, codec=hd.CODEC_LZ4),
}


def as_text(image: bytes) -> str:
    lines = (image[at : at + LINE_BYTES].hex(" ", 4) for at in range(0, len(image), LINE_BYTES))
    return "\n".join(lines) + "\n"


def load(name: str, folder: Path = FOLDER) -> bytes:
    return bytes.fromhex((folder / f"{name}.hex").read_text())


def write(names: list[str]) -> None:
    for name in names or list(CASES):
        (FOLDER / f"{name}.hex").write_text(as_text(CASES[name]().image()))


if __name__ == "__main__":
    write(sys.argv[1:])
