"""Penstock: a distributed message queue, a partitioned and replicated log at shared-memory speed.

Importing any part of Penstock runs this module first, so it stays light: see
`docs/decisions/0001-packaging.md`.
"""

from __future__ import annotations

__version__ = "0.1.0"
