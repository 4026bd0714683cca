"""The structs of the Arrow C data and C stream interfaces, and who frees what.

Each struct is a row of 8-byte words:

    ArrowSchema       0 format  1 name  2 metadata  3 flags  4 children  5 children**  6 dictionary*
                      7 release()  8 private
    ArrowArray        0 length  1 nulls  2 offset  3 buffers  4 children  5 buffers**  6 children**
                      7 dictionary*  8 release()  9 private
    ArrowArrayStream  0 get_schema()  1 get_next()  2 get_last_error()  3 release()  4 private

A struct that is given away keeps what it points to alive under a number of its own, which stands in
its last word. `release` forgets that number and those of the children that nobody has moved out of
their places (a moved struct leaves a release of 0 behind). Consumers release from any thread and as
late as they like, also while the interpreter ends; so callbacks reach nothing by global names, and
their machine code is never freed.

Owns memory layout and lifetimes. Knows nothing of columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from errno import EINVAL, EIO
from itertools import count
from typing import Any, Final

SCHEMA_WORDS: Final = 9
SCHEMA_CHILDREN: Final = (4, 5, 6)
SCHEMA_RELEASE: Final = 7
ARRAY_WORDS: Final = 10
ARRAY_CHILDREN: Final = (4, 6, 7)
ARRAY_RELEASE: Final = 8
STREAM_WORDS: Final = 5
STREAM_RELEASE: Final = 3
FLAG_NULLABLE: Final = 2
WORD: Final = 8

STREAM_NAME: Final = b"arrow_array_stream"
ARRAY_NAME: Final = b"arrow_array"
SCHEMA_NAME: Final = b"arrow_schema"

Words = ctypes.Array[ctypes.c_uint64]

RELEASE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GET: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
GET_ERROR: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_DESTROY: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_python = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _python))
_pointer_of_object = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_pointer_of_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)

_SCHEMA_TYPE: Final = ctypes.c_uint64 * SCHEMA_WORDS
_ARRAY_TYPE: Final = ctypes.c_uint64 * ARRAY_WORDS
_STREAM_TYPE: Final = ctypes.c_uint64 * STREAM_WORDS

kept: Final[dict[int, object]] = {}
"""What structs that are out there point to, by the number in their last word."""
_numbers = count(1).__next__


def keep(owner: object) -> int:
    """Keep `owner` alive until the struct that carries the number returned is released."""
    number = _numbers()
    kept[number] = owner
    return number


def pointer(capsule: object, name: bytes) -> int:
    """The address in a capsule. Raises ValueError for one of another name."""
    return int(_pointer_of_object(capsule, name))


def schema_at(address: int) -> Words:
    return _SCHEMA_TYPE.from_address(address)


def array_at(address: int) -> Words:
    return _ARRAY_TYPE.from_address(address)


def stream_at(address: int) -> Words:
    return _STREAM_TYPE.from_address(address)


def pointers_at(address: int, number: int) -> list[int]:
    """An array of pointers."""
    return list((ctypes.c_uint64 * number).from_address(address)) if number else []


def _immortal(callback: Any) -> int:
    """The address of a callback's machine code, which stays as long as the process."""
    _python.Py_IncRef(ctypes.py_object(callback))
    return int(ctypes.cast(callback, ctypes.c_void_p).value or 0)


def _releaser(
    words: type[Words], children: tuple[int, int, int], release_at: int
) -> Callable[[int], None]:
    """What frees a schema or an array with all that is still in its place below it."""
    number_at, list_at, dictionary_at = children
    table = ctypes.c_uint64
    forget = kept.pop

    def free(address: int) -> None:
        struct = words.from_address(address)
        owner = forget(struct[release_at + 1], None)
        below = []
        if struct[number_at]:
            below = list((table * struct[number_at]).from_address(struct[list_at]))
        if struct[dictionary_at]:
            below.append(struct[dictionary_at])
        for child in below:
            if words.from_address(child)[release_at]:
                free(child)
        struct[release_at] = 0
        del owner  # the memory of the children, not before they are dealt with

    return free


RELEASE_SCHEMA: Final = _immortal(RELEASE(_releaser(_SCHEMA_TYPE, SCHEMA_CHILDREN, SCHEMA_RELEASE)))
RELEASE_ARRAY: Final = _immortal(RELEASE(_releaser(_ARRAY_TYPE, ARRAY_CHILDREN, ARRAY_RELEASE)))


class Source:
    """A stream's producing end: `schema` fills a schema struct, `arrays` brings functions that fill
    an array struct each. Used by one thread at a time."""

    __slots__ = ("arrays", "error", "schema")

    def __init__(
        self, schema: Callable[[Words], None], arrays: Iterator[Callable[[Words], None]]
    ) -> None:
        self.schema = schema
        self.arrays = arrays
        self.error = b""


def _stream_callbacks() -> tuple[int, int, int, int, int]:
    """Addresses of get_schema, get_next, get_last_error, release and the capsule's destructor."""
    sources = kept
    streams, arrays, schemas = _STREAM_TYPE, _ARRAY_TYPE, _SCHEMA_TYPE
    string, address_of, pointer_of, name = (
        ctypes.create_string_buffer, ctypes.addressof, _pointer_of_address, STREAM_NAME,
    )  # fmt: skip
    failed, misused = EIO, EINVAL

    def source_of(stream: int) -> Any:
        return sources[streams.from_address(stream)[4]]

    def fail(source: Any, error: BaseException) -> int:
        text = f"{type(error).__name__}: {error}"
        source.error = string(text.encode("utf-8", "replace"))
        return misused if isinstance(error, ValueError) else failed

    def get_schema(stream: int, out: int) -> int:
        source = source_of(stream)
        try:
            source.schema(schemas.from_address(out))
        except BaseException as error:
            return fail(source, error)
        return 0

    def get_next(stream: int, out: int) -> int:
        source = source_of(stream)
        words = arrays.from_address(out)
        try:
            fill = next(source.arrays, None)
            if fill is None:
                words[ARRAY_RELEASE] = 0  # the end
            else:
                fill(words)
        except BaseException as error:
            return fail(source, error)
        return 0

    def get_last_error(stream: int) -> int | None:
        error = source_of(stream).error
        return address_of(error) if error else None

    def release(stream: int) -> None:
        words = streams.from_address(stream)
        source: Any = sources.pop(words[4], None)
        words[STREAM_RELEASE] = 0
        close = getattr(getattr(source, "arrays", None), "close", None)
        if close is not None:
            close()

    def destroy(capsule: int) -> None:
        """The capsule goes: who consumed it has moved the stream out, or else it ends here."""
        stream = pointer_of(capsule, name)
        words = streams.from_address(stream)
        number = words[4] if words[STREAM_RELEASE] else 0
        if number:
            release(stream)
        sources.pop(-stream, None)

    return (
        _immortal(GET(get_schema)),
        _immortal(GET(get_next)),
        _immortal(GET_ERROR(get_last_error)),
        _immortal(RELEASE(release)),
        _immortal(_DESTROY(destroy)),
    )


_GET_SCHEMA, _GET_NEXT, _GET_LAST_ERROR, _RELEASE_STREAM, _DESTROY_STREAM = _stream_callbacks()


def stream_capsule(source: Source) -> object:
    """A capsule of an ArrowArrayStream over `source`, as `__arrow_c_stream__` returns it."""
    words = _STREAM_TYPE(_GET_SCHEMA, _GET_NEXT, _GET_LAST_ERROR, _RELEASE_STREAM, keep(source))
    address = ctypes.addressof(words)
    kept[-address] = words  # the struct's own memory is the capsule's, until `destroy`
    return _new_capsule(address, STREAM_NAME, _DESTROY_STREAM)
