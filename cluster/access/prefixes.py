"""Finds the literal text that starts every name which a regular expression matches."""

from __future__ import annotations

from typing import Final

_SPECIAL: Final = frozenset(".^$*+?{}[]()|")


def literal_prefix(pattern: str) -> str:
    """The literal text that a whole match begins with; may be shorter than the longest there is."""
    if "|" in pattern:
        return ""
    prefix, place = "", 0
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            place += 1
            character = pattern[place : place + 1]
            if not character or character.isalnum():
                break  # a class like \d
        elif character in _SPECIAL:
            break
        place += 1
        if pattern[place : place + 1] in ("*", "?", "{"):
            break  # it may be missing
        prefix += character
    return prefix
