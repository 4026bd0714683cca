"""Which processors shared memory between processes is made for.

The structures in shared memory publish by plain stores, data first and cursor last, and their one
barrier orders stores before loads (`doorbell.fence`). Other cores of x86-64 see stores in the order
in which they were made. Those of other machines, such as aarch64, need not: a consumer could
read a cursor before the data behind it.

A remote client keeps the same structures in memory of its own process, between two threads that
the interpreter's lock takes turns with. That lock is the barrier, on every machine.
"""

from __future__ import annotations

import os
import sys

from penstock.core.errors import AttachRefusedError


def check_machine() -> None:
    """Raises `AttachRefusedError` where processes must not share memory."""
    machine = os.uname().machine
    if machine == "x86_64" and sys.maxsize > 1 << 32:
        return
    raise AttachRefusedError(
        f"this machine is {machine} with a Python of {sys.maxsize.bit_length() + 1} bits: nodes, "
        "and clients by shared memory, need x86-64, whose processors keep the order of stores. "
        "Run the node on such a machine, and connect from here by tcp://HOST:PORT"
    )
