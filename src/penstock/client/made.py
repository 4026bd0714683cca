"""Lists the objects that a client made and that still exist, each with a number.

It never closes them.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any


class Made:
    """Objects that a client made and that still exist. Any thread may use it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._found: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, made: Any) -> None:
        self._found[next(self._numbers)] = made

    def alive(self) -> dict[int, Any]:
        """By number, in the order in which they were made."""
        refs = self._found.valuerefs()  # in one step: other threads may add
        return {ref.key: made for ref in refs if (made := ref()) is not None}
