"""CRC-32C, the checksum of what is stored and sent.

Owns where the function in C comes from. Its package loads parsers of e-mails, zip files and command
lines beside it, which took a fifth of the start of each process.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final

PACKAGE: Final = "crc32c"


def _function() -> Any:
    package = find_spec(PACKAGE)  # which does not run it
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec(f"{PACKAGE}._crc32c", places)
    if found is None or found.loader is None:
        import crc32c as whole

        return whole.crc32c
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.crc32c


if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    crc32c = _function()
