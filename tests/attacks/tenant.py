"""A tenant that loads the node in one of the ways of `attacks.loads`.

`python -m attacks.tenant SITE PAIR SIDE` prepares that, reads seconds from its input, line by line,
works for so long, and prints how many steps of it that were.
"""

from __future__ import annotations

import json
import sys
import time

from attacks.loads import PAIRS
from attacks.site import ATTACKER, NEIGHBOUR, Site


def main(site: str, pair: str, side: str) -> None:
    attack, behaved = PAIRS[pair]
    where = Site(**json.loads(site))
    load = attack(where, ATTACKER) if side == "attack" else behaved(where, NEIGHBOUR)
    next(load)
    print("ready", flush=True)
    for line in sys.stdin:
        until, steps = time.monotonic() + float(line), 0
        while time.monotonic() < until:
            steps += next(load)
        print(steps, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
