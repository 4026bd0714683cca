"""How a run of `penstock bench celery` and its workers speak: settings and a datagram."""

from __future__ import annotations

import struct
from typing import Final

BROKER: Final = "PENSTOCK_BENCH_BROKER"
OPTIONS: Final = "PENSTOCK_BENCH_OPTIONS"
SOCKET: Final = "PENSTOCK_BENCH_SOCKET"
"""Environment of workers and senders: broker URL, its options as JSON, and the run's socket."""

TOLD: Final = struct.Struct("<ddq")
"""When a task was sent, and when it began (CLOCK_MONOTONIC); the process of the worker."""
