"""The version of this software, for what must not import the names of the whole package."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
