"""Seeds of random tests: all derive from the seed of the day, which a run prints first.

`PENSTOCK_DAY=20260731 pytest ...` repeats the random tests of another day or machine. What a test
that failed prints, `PENSTOCK_SEED=123 pytest ...`, begins that one test where it failed.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import sys
from typing import Final

DAY: Final = "PENSTOCK_DAY"
SEED: Final = "PENSTOCK_SEED"


def seed_of_day() -> int:
    """The one given, or the date (UTC)."""
    given = os.environ.get(DAY)
    return int(given or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")


def seed_of(what: str) -> int:
    """The seed that a test begins with: of its own by the day, or the one given."""
    given = int(os.environ.get(SEED) or "0")
    digest = hashlib.sha256(f"{seed_of_day()}/{what}".encode()).digest()
    seed = given or 1 + int.from_bytes(digest[:5], "big")
    print(f"{what}: {SEED}={seed}")
    return seed


def tell(*said: object, sep: str = " ") -> None:
    """What is to be seen of a test that passes, with pytest's capture disabled. By stderr: worker
    processes of pytest-xdist have no stdout."""
    print(*said, sep=sep, file=sys.stderr, flush=True)
