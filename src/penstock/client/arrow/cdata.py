"""The structs of the Arrow C data and C stream interfaces, as they are read.

Each struct is a row of 8-byte words:

    ArrowSchema       0 format  1 name  2 metadata  3 flags  4 children  5 children**  6 dictionary*
                      7 release()  8 private
    ArrowArray        0 length  1 nulls  2 offset  3 buffers  4 children  5 buffers**  6 children**
                      7 dictionary*  8 release()  9 private
    ArrowArrayStream  0 get_schema()  1 get_next()  2 get_last_error()  3 release()  4 private

Reading only: what is given out goes by pyarrow. A `release` written in Python may be called while
an exception unwinds, which ctypes does not survive (docs/decisions/0010).
"""

from __future__ import annotations

import ctypes
from typing import Final

SCHEMA_WORDS: Final = 9
SCHEMA_RELEASE: Final = 7
ARRAY_WORDS: Final = 10
ARRAY_RELEASE: Final = 8
STREAM_WORDS: Final = 5
STREAM_RELEASE: Final = 3

STREAM_NAME: Final = b"arrow_array_stream"

Words = ctypes.Array[ctypes.c_uint64]

RELEASE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GET: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
GET_ERROR: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def pointer(capsule: object, name: bytes) -> int:
    """Returns the address in a capsule. Raises ValueError for one of another name."""
    return int(_pointer_of(capsule, name))


def schema_at(address: int) -> Words:
    return (ctypes.c_uint64 * SCHEMA_WORDS).from_address(address)


def array_at(address: int) -> Words:
    return (ctypes.c_uint64 * ARRAY_WORDS).from_address(address)


def stream_at(address: int) -> Words:
    return (ctypes.c_uint64 * STREAM_WORDS).from_address(address)


def pointers_at(address: int, number: int) -> list[int]:
    """Returns an array of pointers."""
    return list((ctypes.c_uint64 * number).from_address(address)) if number else []
