"""Seeds of random tests: a fresh one each run, printed where a failure shows it, or the one given.

`PENSTOCK_SEED=123 pytest ...` runs a test again as it was.
"""

from __future__ import annotations

import os
import random
import sys


def fresh_seed(what: str) -> int:
    given = int(os.environ.get("PENSTOCK_SEED", "0"))
    seed = given or random.SystemRandom().randrange(1, 1 << 40)
    print(f"{what}: PENSTOCK_SEED={seed}")
    return seed


def tell(*said: object, sep: str = " ") -> None:
    """What is to be seen of a test that passes, with pytest's capture disabled. By stderr: worker
    processes of pytest-xdist have no stdout."""
    print(*said, sep=sep, file=sys.stderr, flush=True)
