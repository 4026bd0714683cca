"""Looking at a running node from outside: shared memory, /proc and files, all of them only read.

    place      which data folder a URL means, and which process serves it
    processes  what /proc tells of a process
    shared     the tables and lanes, mapped read-only
    sample     everything at one moment; `report` what lies between two moments
    ages       when the record at an offset was appended
    files      sizes and times of a partition on disk

Never asks the node and never writes, so it works while the node is stopped or busy.
"""

from __future__ import annotations
