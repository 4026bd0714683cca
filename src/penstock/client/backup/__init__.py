"""Backups of topics and groups: made by a client, restored by a client."""

from __future__ import annotations
