"""Health and metrics over HTTP: what operators' machines ask, answered beside the gateway's loop.

    address     where to listen, and whether that is this host alone
    http        a small server: bounded requests, times and connections
    families    every metric: name, kind, labels, meaning
    page        text in which they are written
    histogram   how long something took, counted by bounds
    local       metrics of what shared memory and /proc tell
    groups      how far groups are behind, asked of the coordinator
    wire        metrics of the gateway
    ready       what is missing before a node is ready
    service     the thread that joins them

Never in the way of traffic: everything runs in one thread of its own, at most once a second.
"""

from __future__ import annotations
