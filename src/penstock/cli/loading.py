"""Loads the object that a command line names by MODULE:NAME."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from penstock.core import errors as er


def load(target: str, what: str) -> tuple[ModuleType, str, object]:
    """Returns the module, the name, and the object of that name in it; None without one. `what`:
    the form of a target, for the error. Raises `ConfigError`, and what the module raises."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise er.ConfigError(f"{target!r}: name {what}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise er.ConfigError(
            f"there is no module {error.name!r} in {folder} or on Python's path"
        ) from error
    return loaded, name, getattr(loaded, name, None)
