"""The web console: pages in a browser for who operates a node or a cluster.

A process of its own, started by `penstock console`, and a client like any other: the node allows
it what it allows the principal whose key it was given. Owns pages, actions and their checks, and
never a file or the shared memory of a node. Needs `penstock[console]`.
"""

from __future__ import annotations
