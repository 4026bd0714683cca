"""Seeds of random tests: a fresh one each run, printed where a failure shows it, or the one given.

`PENSTOCK_SEED=123 pytest ...` runs a test again as it was.
"""

from __future__ import annotations

import os
import random


def fresh_seed(what: str) -> int:
    given = int(os.environ.get("PENSTOCK_SEED", "0"))
    seed = given or random.SystemRandom().randrange(1, 1 << 40)
    print(f"{what}: PENSTOCK_SEED={seed}")
    return seed
