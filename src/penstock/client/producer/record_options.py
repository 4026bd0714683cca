"""The options of `send` and columns of `send_batch` beyond value and key.

Owns their checks and their conversion to plain values. Times that are counted from now become times
here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from numbers import Real
from operator import index
from typing import Any, Final, NamedTuple, TypedDict

from penstock.client.validation import (
    HeadersLike,
    as_headers,
    as_microseconds,
    check_columns,
    check_integer,
    check_names,
)
from penstock.core.encode import Headers
from penstock.core.work import DEDUP_ID_BYTES_MAX, PRIORITY_MAX, TIME_MAX, WorkFields

SPAN_MAX: Final = 10 * 365 * 86_400
"""Seconds from now within which records are due and expire: ten years."""


class RecordOptions(TypedDict, total=False):
    """See `Producer.send` for meanings and units. `work`: as another record has it, for who passes
    records on."""

    timestamp: int | datetime | None
    delay: float | None
    at: int | datetime | None
    ttl: float | None
    priority: int | None
    dedup_id: str | bytes | None
    work: WorkFields | None


class WorkOptions(TypedDict, total=False):
    """Of many records: see `Producer.send_batch`."""

    delays: Sequence[float | None] | None
    ats: Sequence[int | datetime | None] | None
    ttls: Sequence[float | None] | None
    priorities: Sequence[int | None] | None
    dedup_ids: Sequence[str | bytes | None] | None
    work: Sequence[WorkFields | None] | None


_OF_WORK: Final = ("delay", "at", "ttl", "priority", "dedup_id")
_OPTIONS: Final = ("key", "headers", "timestamp", "partition", *_OF_WORK, "work")
_NAMES: Final = frozenset(RecordOptions.__annotations__)
_OF_MANY: Final = ("delays", "ats", "ttls", "priorities", "dedup_ids")
_COLUMNS: Final = ("keys", "headers", "timestamps", "partition", *_OF_MANY, "work")


class RecordFields(NamedTuple):
    """The options of a record as its batch has them."""

    headers: Headers | None = None
    timestamp: int | None = None
    partition: int | None = None
    work: WorkFields | None = None


PLAIN: Final = RecordFields()


def is_plain(options: RecordOptions) -> bool:
    """Returns whether all given options are known and None. Runs for each record with options."""
    for name, value in options.items():  # noqa: SIM110 - a generator takes twice as long
        if value is not None or name not in _NAMES:
            return False
    return True


def record_fields(
    headers: HeadersLike | None, partition: int | None, options: RecordOptions
) -> RecordFields:
    """Returns the fields of a record with these options. Raises TypeError and ValueError, which say
    what is allowed."""
    check_names("send", options, _OPTIONS)
    given: Mapping[str, Any] = options
    work = options.get("work")
    told = {name: given[name] for name in _OF_WORK if given.get(name) is not None}
    if told:
        if work is not None:
            raise ValueError(f"work= says all that {', '.join(told)} would: give one or the other")
        work = as_work(time.time_ns() // 1000, **told)
    elif work is not None:
        work = _checked(work)
    stamp = as_microseconds(options.get("timestamp"))
    found = RecordFields(as_headers(headers), stamp, partition, work)
    return PLAIN if found == PLAIN else found


def as_work(
    now_us: int,
    delay: float | None = None,
    at: int | datetime | None = None,
    ttl: float | None = None,
    priority: int | None = None,
    dedup_id: str | bytes | None = None,
) -> WorkFields | None:
    """Returns the work queue's fields of a record that is sent now; None where none is given."""
    due = _due(now_us, delay, at)
    expires = None
    if ttl is not None:
        _check_seconds("ttl", ttl)
        if not ttl:
            raise ValueError("ttl=0 must be over 0: a record that has expired goes to nobody")
        expires = now_us + round(ttl * 1e6)
        if due is not None and expires <= due:
            raise ValueError(
                f"ttl={ttl!r} ends before the record is due: it counts from now, as delay= does"
            )
    found = WorkFields(due, expires, _priority(priority), _dedup_id(dedup_id))
    return None if found == _NOTHING else found


_NOTHING: Final = WorkFields()


def _due(now_us: int, delay: float | None, at: int | datetime | None) -> int | None:
    if delay is not None:
        if at is not None:
            raise ValueError(f"delay={delay!r} and at={at!r} both say when: give one of them")
        _check_seconds("delay", delay)
        return now_us + round(delay * 1e6) if delay else None
    try:
        due = as_microseconds(at)
    except TypeError:
        kind = type(at).__name__
        raise TypeError(f"at= is int microseconds or a datetime, not {kind}") from None
    if due is not None and not 0 <= due <= now_us + SPAN_MAX * 1_000_000:
        raise ValueError(
            f"at={at!r} must lie between 1970 and ten years from now; an int counts microseconds"
        )
    return due


def _checked(work: WorkFields) -> WorkFields:
    """Checks the work fields of another record, which may be sent again."""
    if not isinstance(work, WorkFields):
        raise TypeError(f"work= is that of a record (record.work), not {type(work).__name__}")
    for name, at in (("due", work.due), ("expires", work.expires)):
        if at is not None:
            check_integer(name, at)
            if not 0 <= at <= TIME_MAX:
                raise ValueError(f"{name}={at!r} must lie between 0 and {TIME_MAX} microseconds")
    return WorkFields(work.due, work.expires, _priority(work.priority), _dedup_id(work.dedup_id))


def _check_seconds(name: str, value: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"{name}={value!r} must be a number of seconds, not {kind}")
    if not 0 <= value <= SPAN_MAX:
        raise ValueError(
            f"{name}={value!r} must lie between 0 and {SPAN_MAX} seconds, which are ten years"
        )


def _priority(priority: int | None) -> int | None:
    if priority is None:
        return None
    if isinstance(priority, bool) or not hasattr(priority, "__index__"):
        raise TypeError(f"priority={priority!r} must be int, not {type(priority).__name__}")
    if not 0 <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority={priority!r} must lie between 0 and {PRIORITY_MAX}")
    return index(priority)


def _dedup_id(dedup_id: str | bytes | None) -> bytes | None:
    if dedup_id is None:
        return None
    if not isinstance(dedup_id, str | bytes):
        raise TypeError(
            f"dedup_id={dedup_id!r} must be str or bytes, not {type(dedup_id).__name__}"
        )
    found = dedup_id.encode() if isinstance(dedup_id, str) else dedup_id
    if not 0 < len(found) <= DEDUP_ID_BYTES_MAX:
        raise ValueError(
            f"a dedup_id has 1 to {DEDUP_ID_BYTES_MAX} bytes, not {len(found)}: take a hash of "
            "what is longer"
        )
    return found


def work_of_rows(
    topic: str, count: int, options: WorkOptions
) -> Sequence[WorkFields | None] | None:
    """Returns the work queue's fields of each of many records; None where none of them has any."""
    check_names("send_batch", options, _COLUMNS)
    columns: Mapping[str, Any] = options
    check_columns(topic, count, **columns)
    given = [columns.get(name) for name in _OF_MANY]
    passed_on = options.get("work")
    if passed_on is not None:
        return [each and _checked(each) for each in passed_on]
    if all(column is None for column in given):
        return None
    now_us = time.time_ns() // 1000
    filled = [repeat(None, count) if column is None else column for column in given]
    found = []
    for number, row in enumerate(zip(*filled, strict=True)):
        try:
            found.append(as_work(now_us, *row))
        except (TypeError, ValueError) as error:
            error.add_note(f"record {number} of {count} for {topic!r}; none of them was sent")
            raise
    return None if found.count(None) == count else found
