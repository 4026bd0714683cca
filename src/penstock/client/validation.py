"""Checks and conversions of what callers hand in: clear errors first, plain types after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.core.encode import Headers

SPREAD_PARTS_MAX: Final = 1024
SPREAD_KEYS_MAX: Final = 1024
HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

HEADERS_MAX: Final = 64
SPIN_MAX: Final = 0.1
PREFETCH_MIN: Final = 4 << 10
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
Word = TypeVar("Word", bound=str)
P = ParamSpec("P")
Made = TypeVar("Made")


def check_names(verb: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError naming the option that there is not, and those like it."""
    for name in given:
        if name not in known:
            raise TypeError(f"{verb} has no option {name!r}; {meant(name, known)}")


def telling_options(verb: str) -> Callable[[Callable[P, Made]], Callable[P, Made]]:
    """Of a function, whose error for an option that there is not tells what is meant."""

    def decorated(function: Callable[P, Made]) -> Callable[P, Made]:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = [name for name in names if name != "self"]

        @wraps(function)
        def called(*given: P.args, **options: P.kwargs) -> Made:
            check_names(verb, options, known)
            return function(*given, **options)

        return called

    return decorated


def meant(name: str, known: Collection[str]) -> str:
    """Returns what to write instead. Loads modules that only mistyped options need."""
    import difflib

    from penstock.client.kafka_words import KAFKA_WORDS

    ours = KAFKA_WORDS.get(name.replace(".", "_").lower())
    if ours is not None:
        return f"what Kafka calls so is {ours} here"
    like = difflib.get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(like)}?" if like else f"there are {', '.join(known)}"


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be str, not {type(value).__name__}")


def check_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be int, not {type(value).__name__}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")


def check_callable(name: str, value: Callable[..., object] | None) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r} must be a function, not {type(value).__name__}")


def check_records_max(value: int) -> None:
    """Checks how many records a poll may bring. Seconds are given as `poll(timeout=...)`."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"max_records={value!r} is a number of records; seconds are timeout=")
    if value < 1:
        raise ValueError(f"max_records={value} must be at least 1")


def check_pair(value: object) -> tuple[str, int]:
    """A partition as (topic, number). TypeError for anything else."""
    match value:
        case (str(topic), number) if hasattr(number, "__index__"):
            return topic, int(number)
    raise TypeError(f"a partition is named by (topic, number), like ('orders', 0), not {value!r}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"{name}={value!r} must be a number from {low} to {high}, not {kind}")
    if not low <= value <= high:
        raise er.ConfigError(f"{name}={value!r} must lie between {low} and {high}")


def as_spelt(name: str, value: object, allowed: tuple[Word, ...]) -> Word:
    """One of these words, however its "-" was written; `ConfigError` for another."""
    if isinstance(value, str):
        for word in allowed:
            if word.replace("_", "-") == value.replace("_", "-"):
                return word
    check_choice(name, value, tuple(word.replace("_", "-") for word in allowed))
    raise AssertionError(f"{name}={value!r} is one of {allowed}")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise er.ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def check_consumer_options(
    on_out_of_range: str, prefetch_bytes: int, latest_only: str | None, spin: float, isolation: str
) -> None:
    """The options of a consumer. Raises `ConfigError` naming option, value and what is allowed."""
    check_choice("on_out_of_range", on_out_of_range, ("error", "earliest", "latest"))
    check_range("prefetch_bytes", prefetch_bytes, PREFETCH_MIN, 1 << 34)
    check_choice("latest_only", latest_only, (None, "key", "partition"))
    check_range("spin", spin, 0.0, SPIN_MAX)
    as_spelt("isolation", isolation, ISOLATIONS)


def as_spread(given: Mapping[Any, int] | None) -> dict[bytes, int]:
    """The option `spread` of producers by keys as bytes. Raises `ConfigError`."""
    found = {}
    for key, parts in (given or {}).items():
        if not isinstance(key, bytes | str) or not isinstance(parts, int):
            raise TypeError(f"spread={given!r:.200} has keys (bytes or str) and numbers of parts")
        check_range(f"spread[{key!r:.80}]", parts, 2, SPREAD_PARTS_MAX)
        found[key.encode() if isinstance(key, str) else key] = parts
    check_range("keys of spread", len(found), 0, SPREAD_KEYS_MAX)
    return found


def check_columns(topic: str, count: int, **columns: Sequence[object] | None) -> None:
    """Columns beside the values are None or as long as these. ValueError otherwise."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"send_batch to {topic!r}: {count} values but {len(column)} {name}")


def as_bytes(what: str, value: Any) -> bytes | None:
    """bytes as they are, other buffers copied, None kept. TypeError for anything else."""
    if value is None or value.__class__ is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a record's {what} is bytes, not {type(value).__name__}; encode it first")


def as_headers(headers: HeadersLike | None) -> Headers | None:
    """Headers as a tuple of (name, value) pairs. Raises TypeError, or ValueError above 64."""
    if headers is None:
        return None
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    if len(pairs) > HEADERS_MAX:
        raise ValueError(f"a record takes at most {HEADERS_MAX} headers, {len(pairs)} were given")
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"header {name!r}: a name is str and a value bytes or None")
        if not name.isascii():
            name.encode()  # a lone surrogate fails here and now, not with a whole box later
    return pairs


def as_microseconds(timestamp: int | datetime | None) -> int | None:
    """Microseconds since the epoch of an int (as it is) or a datetime (naive = local time).

    Raises ValueError for an int that does not fit 64 bits.
    """
    if timestamp is None:
        return None
    if timestamp.__class__ is int:
        if not -(1 << 63) <= timestamp < 1 << 63:
            raise ValueError(f"timestamp {timestamp} is not in the range of 64-bit microseconds")
        return timestamp
    if isinstance(timestamp, datetime):
        return round(timestamp.timestamp() * 1e6)  # a float: 1.2 % would fall a microsecond short
    raise TypeError(
        f"a timestamp is int microseconds or a datetime, not {type(timestamp).__name__}"
    )
