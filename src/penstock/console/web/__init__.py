"""The shell of the console: requests in, pages out."""

from __future__ import annotations
