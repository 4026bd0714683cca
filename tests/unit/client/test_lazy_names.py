"""Names that are loaded when they are first used are what they say, whatever was loaded before."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules, walk_packages

import penstock

LAZY = ("penstock.dedup", "penstock.outbox")


def test_no_name_of_a_package_is_also_that_of_a_module_in_it():
    """Loading the module would put it where the name was to be."""
    homes = {name: getattr(import_module(name), "_HOMES", None) for name in _packages()}
    assert {name for name, names in homes.items() if names}.issuperset(LAZY)
    for package, names in homes.items():
        modules = {each.name for each in iter_modules(import_module(package).__path__)}
        assert not modules & set(names or ()), package


def _packages() -> list[str]:
    found = walk_packages(penstock.__path__, "penstock.", onerror=lambda _: None)
    return ["penstock", *(each.name for each in found if each.ispkg)]
