"""Packages whose names are loaded when they are first used: what is not needed is not imported.

__getattr__, __dir__ = loaded(__name__, {"Broker": "broker"})  # from the package's own modules
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loaded(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562). `homes`: the module in it that has each
    name."""
    there = vars(sys.modules[package])

    def __getattr__(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{home}"), name)
        there[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*there, *homes})

    return __getattr__, __dir__
