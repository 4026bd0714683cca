"""Which errors of handlers were told of with a traceback already: one each is a flood."""

from __future__ import annotations


class KnownErrors:
    """By kind and line: as many as lines fail."""

    def __init__(self) -> None:
        self._told: set[object] = set()

    def is_new(self, error: Exception) -> bool:
        """Whether no error of this kind was told of this line."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = None if place is None else (place.tb_frame.f_code.co_filename, place.tb_lineno)
        known, name = self._told, (type(error).__qualname__, where)
        is_new = name not in known
        known.add(name)
        return is_new
