"""The committed offsets of a group as a document, which is written out and read in again.

Owns its form and its bounds. `groups` decides which offsets a group is moved to.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.core.errors import ConfigError

SCHEMA: Final = 1
EXPORT_BYTES_MAX: Final = 64 << 20
"""Bytes of a document that is read in."""

_Number = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]


class ExportedOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Place of a group in one partition: the next offset that it wants.

    `leader_epoch` is the epoch of the record before it. `topic_id` tells the topic from another
    one of its name.
    """

    topic: str
    topic_id: str
    partition: _Number
    offset: _Number
    leader_epoch: Annotated[int, msgspec.Meta(ge=-1)]
    """Leader epoch; -1: the member that committed the offset did not know it."""


class ExportedOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets that a group had committed at one moment (`exported_at`: seconds since 1970)."""

    group: str
    guarantee: str
    exported_at: float
    offsets: list[ExportedOffset]
    schema: int = SCHEMA

    def to_json(self) -> str:
        """A line for the group, and one for each partition."""
        head = msgspec.json.encode(msgspec.structs.replace(self, offsets=[])).decode()
        rows = ",\n".join(f"  {msgspec.json.encode(each).decode()}" for each in self.offsets)
        return head.replace('"offsets":[]', f'"offsets":[\n{rows}\n]' if rows else '"offsets":[]')

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportedOffsets:
        """Raises `ConfigError` for anything else than `to_json` makes."""
        if len(text) > EXPORT_BYTES_MAX:
            raise ConfigError(f"exported offsets are over {EXPORT_BYTES_MAX} bytes")
        try:
            found = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(f"these are no exported offsets of a group: {error}") from error
        if found.schema != SCHEMA:
            raise ConfigError(
                f"exported offsets of schema {found.schema}: this version reads {SCHEMA}"
            )
        seen: set[tuple[str, int]] = set()
        for each in found.offsets:
            place = (each.topic, each.partition)
            if place in seen:
                raise ConfigError(f"exported offsets have {each.topic}-{each.partition} twice")
            seen.add(place)
        return found
