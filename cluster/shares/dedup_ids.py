"""Dedup ids as they travel and are kept: digests, so that no id is longer than another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

DIGEST_BYTES: Final = 16
STAMP_BYTES: Final = 8


class IdsSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The columns of the parts of `duplicates.KnownIds`, as bytes."""

    parts: list[tuple[bytes, bytes, bytes]]


def columns_of_ids(
    ids: Iterable[tuple[bytes | None, bytes]], stamps: Sequence[int]
) -> tuple[bytes, bytes]:
    """Digests of (key, dedup id), 16 bytes each, and timestamps, 8 bytes each."""
    digests = b"".join(digest_of(key, dedup_id) for key, dedup_id in ids)
    return digests, b"".join(stamp.to_bytes(STAMP_BYTES, "little", signed=True) for stamp in stamps)


def digest_of(key: bytes | None, dedup_id: bytes) -> bytes:
    """Returns 16 bytes for an id of this key. No key is another one than an empty one."""
    length = b"" if key is None else len(key).to_bytes(4, "little")
    return blake2b(
        length + (key or b"") + dedup_id,
        digest_size=DIGEST_BYTES,
        person=b"keyless" if key is None else b"keyed",
    ).digest()
