"""Names for places in a log, where a consumer begins to read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.core.errors import ConfigError

Place = Literal["earliest", "latest", "exact", "time", "relative", "from_start", "from_end"]


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in a partition, resolved when it is used. Make one by the class methods."""

    place: Place
    number: int = 0

    @classmethod
    def earliest(cls) -> Offset:
        """Returns the log start."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> Offset:
        """Returns the high watermark: only records that come from now on."""
        return cls("latest")

    @classmethod
    def exact(cls, offset: int) -> Offset:
        """Returns this very offset."""
        if offset < 0:
            raise ConfigError(f"offset {offset} is negative; count from the end by from_end()")
        return cls("exact", offset)

    @classmethod
    def at(cls, moment: datetime | float) -> Offset:
        """Returns the first record at or after `moment` (a datetime, or seconds since the epoch);
        the high watermark where there is none."""
        seconds = moment.timestamp() if isinstance(moment, datetime) else moment
        return cls("time", round(seconds * 1e6))

    @classmethod
    def relative(cls, records: int) -> Offset:
        """Returns the place so many offsets after the consumer's position (negative: before)."""
        return cls("relative", records)

    @classmethod
    def from_start(cls, records: int) -> Offset:
        return cls("from_start", records)

    @classmethod
    def from_end(cls, records: int) -> Offset:
        """Returns the place so many offsets before the high watermark."""
        return cls("from_end", records)

    @classmethod
    def of(cls, given: Offset | str | int | datetime) -> Offset:
        """Converts what users write: "earliest", "latest", an int, a datetime or an `Offset`."""
        if isinstance(given, Offset):
            return given
        if isinstance(given, datetime):
            return cls.at(given)
        if isinstance(given, int) and not isinstance(given, bool):
            return cls.exact(given)
        if given in ("earliest", "start"):
            return cls.earliest()
        if given in ("latest", "end"):
            return cls.latest()
        raise ConfigError(
            f'{given!r} is no place in a log: use "earliest", "latest", an offset, a datetime or '
            "one of Offset's class methods"
        )
