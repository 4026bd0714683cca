"""Type parameters of what carries records: the types of values and keys.

    Record, Consumer, ...          bytes | None, for both
    Record[Order], Job[Order]      values of this type; keys are bytes | None
    Record[Order, str]             both

For type checkers. Nothing of it costs anything at runtime.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Generic

    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes | None)
    K = TypeVar("K", default=bytes | None)
    V_co = TypeVar("V_co", default=bytes | None, covariant=True)
    K_co = TypeVar("K_co", default=bytes | None, covariant=True)

    class Typed(Generic[V_co, K_co]):
        """A class with these two parameters."""
else:
    from typing import TypeVar

    V = TypeVar("V")
    K = TypeVar("K")
    V_co = TypeVar("V_co", covariant=True)
    K_co = TypeVar("K_co", covariant=True)

    class Typed:
        """A class with these two parameters. Defaults of parameters are unknown to `typing` before
        Python 3.13, so that one of them may be named here."""

        __slots__ = ()

        def __class_getitem__(cls, kinds):
            return GenericAlias(cls, kinds)
