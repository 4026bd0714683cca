"""Notes which functions of the product have a marked value in their hands, in every thread of a
process that imports this at its start (see `value_way`).

A function has it when one of its variables, or what it returns, is bytes with the mark, or plain
data around such bytes: a list, a tuple, or an object with slots alone.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

MARK: Final = b"a marked value"
OFF, ON, TELL = range(3)
"""What the first byte of the file `switch` says: look away, look, write down what was seen."""
SIZE_MAX: Final = 4096
"""Bytes of what is looked at: a batch with one record is smaller."""
ITEMS_MAX: Final = 16
DEPTH: Final = 3

_folder = Path(os.environ.get("PENSTOCK_VALUE_TRACE", ""))
_seen: dict[str, None] = {}
_thread = threading.local()


def _holds(thing: Any, depth: int) -> bool:
    kind = type(thing)
    if kind in (bytes, bytearray):
        return len(thing) <= SIZE_MAX and MARK in thing
    if kind is memoryview:
        return thing.nbytes <= SIZE_MAX and MARK in thing.tobytes()
    if not depth:
        return False
    if issubclass(kind, (list, tuple)):
        return len(thing) <= ITEMS_MAX and any(_holds(item, depth - 1) for item in list(thing))
    if kind.__module__.startswith("penstock.") and not kind.__dictoffset__:
        slots: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__slots__", ())
        return any(_holds(getattr(thing, name, None), depth - 1) for name in tuple(slots))
    return False


def _look(frame: FrameType, event: str, result: Any) -> None:
    if _switch[0] != ON or event not in ("call", "return"):
        if _switch[0] == TELL:
            _tell()
        return
    module = frame.f_globals.get("__name__", "")
    if getattr(_thread, "is_busy", False) or "/penstock/" not in frame.f_code.co_filename:
        return
    _thread.is_busy = True
    try:
        if _holds(result, DEPTH) or any(_holds(it, DEPTH) for it in frame.f_locals.values()):
            _seen[module] = None
    except (ValueError, RuntimeError):
        pass  # a view that is closed by now, a list that grows
    finally:
        _thread.is_busy = False


def _tell() -> None:
    """Writes the modules down once, in the order in which they had it."""
    target = _folder / f"{os.getpid()}.json"
    if not target.exists():
        part = target.with_suffix(".part")
        command = Path("/proc/self/cmdline").read_text().replace("\0", " ")
        part.write_text(json.dumps([command, list(_seen)]))
        part.rename(target)


if _folder.name:
    with (_folder / "switch").open("rb") as _file:
        _switch = mmap.mmap(_file.fileno(), 1, access=mmap.ACCESS_READ)
    threading.setprofile(_look)
    sys.setprofile(_look)
