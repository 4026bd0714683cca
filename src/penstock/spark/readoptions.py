"""The options of `spark.read` and `spark.readStream`, checked: those of the source.

Names and meanings are those of Spark's Kafka connector where it has them. Spark hands all names
over in lower case and all values as text. Pure: it never checks whether topics exist.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from penstock.client.consumer.partition_cursor import Isolation
from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.positions import Partition

logger = logging.getLogger("penstock.spark")

LATEST: Final = -1
EARLIEST: Final = -2
"""In the place of an offset, as Spark's Kafka connector has it."""
BATCH_ROWS: Final = 65_536
BATCH_ROWS_MAX: Final = 1 << 24
TRIGGER_DELAY: Final = 15 * 60.0

SOURCE: Final = (
    "bootstrap", "transport", "keys", "subscribe", "subscribePattern", "assign", "startingOffsets",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "failOnDataLoss", "includeHeaders",
    "batchRows", "groupId", "isolation",
)  # fmt: skip
SINK: Final = ("topic", "txnId", "txnEpoch", "compression", "transactionDurability")
"""Not the source's, and let be: programs keep one set of options for both."""
NAMES: Final = {name.lower(): name for name in (*SOURCE, *SINK)}
"""All options of both, by what Spark makes of their names."""
_ONLY_BATCH: Final = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_ONLY_STREAM: Final = (
    "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "groupid"
)  # fmt: skip

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """The topics to read: by name, by pattern, or single partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None

    def chosen(self, there: Callable[[], list[str]]) -> list[str]:
        """Returns the names of the topics; `there` lists all existing ones."""
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            return [name for name in there() if matches(name)]
        return sorted(self.partitions or self.names)


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of reading. `option` is the option that set it. `offsets` may hold `LATEST`
    and `EARLIEST`; `time` is for all partitions, `times` for each, in milliseconds."""

    option: str
    place: Literal["earliest", "latest", "offsets", "time", "times"]
    offsets: Offsets | None = None
    times: Offsets | None = None
    time: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of the source; docs/guide/spark.md explains each."""

    address: NodeAddress
    topics: SourceTopics
    starting: Bound
    ending: Bound
    is_late_error: bool
    """Whether a starting time is an error where no record is as late."""
    offsets_max: int | None
    offsets_min: int | None
    trigger_delay: float
    partitions_min: int | None
    fail_on_data_loss: bool
    include_headers: bool
    batch_rows: int
    group: str | None
    isolation: Isolation

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Raises `ConfigError` naming the option."""
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given, streaming=streaming)
        strategy = _choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        isolation = _choice(given, "isolation", ("read-committed", "read-uncommitted"))
        least = _number(given, "minOffsetsPerTrigger")
        most = _number(given, "maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise ConfigError(
                f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}"
            )
        rows = _number(given, "batchRows") or BATCH_ROWS
        if rows > BATCH_ROWS_MAX:
            raise ConfigError(f"batchRows is {rows}: it is at most {BATCH_ROWS_MAX}")
        return cls(
            address=NodeAddress.of(given),
            topics=_topics(given),
            starting=_bound(given, "starting", "latest" if streaming else "earliest", streaming),
            ending=_bound(given, "ending", "latest", streaming),
            is_late_error=strategy == "error",
            offsets_max=most,
            offsets_min=least,
            trigger_delay=_duration(given, "maxTriggerDelay", TRIGGER_DELAY),
            partitions_min=_number(given, "minPartitions"),
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
            include_headers=_flag(given, "includeHeaders", False),
            batch_rows=rows,
            group=given.get("groupid") or None,
            isolation="read-committed" if isolation == "read-committed" else "read-uncommitted",
        )


def includes_headers(options: Mapping[str, str]) -> bool:
    """Returns whether the source's own schema has the column `headers`."""
    return _flag({name.lower(): value for name, value in options.items()}, "includeHeaders", False)


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    for name in given:
        if name == "path":
            raise ConfigError(
                f"load({given[name]!r}): topics are named by option('subscribe', ...), then load()"
            )
        if name not in NAMES and "." not in name:  # with a dot it is a setting of Spark's own
            close = get_close_matches(name, NAMES, 1)
            meant = f"did you mean {NAMES[close[0]]}?" if close else f"it has {', '.join(SOURCE)}"
            raise ConfigError(f"the source penstock has no option {name!r}; {meant}")
    wrong = [name for name in given if name in (_ONLY_BATCH if streaming else _ONLY_STREAM)]
    if wrong and streaming:
        raise ConfigError(f"{NAMES[wrong[0]]} is for batch queries: a stream has no end")
    if wrong:
        logger.warning(
            "left aside, being for streams: %s", ", ".join(NAMES[name] for name in wrong)
        )


# --- which topics ---------------------------------------------------------------------------------
def _topics(given: Mapping[str, str]) -> SourceTopics:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        what = " and ".join(chosen) or "none of them"
        raise ConfigError(
            f"{what} given: say what to read by exactly one of subscribe ('orders,clicks'), "
            "subscribePattern ('orders-.*') and assign ('{\"orders\": [0, 1]}')"
        )
    option = chosen[0]
    text = given[option.lower()]
    if option == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise ConfigError("subscribe names no topic")
        return SourceTopics(names)
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern {text!r} is no regular expression: {error}") from (
                error
            )
        return SourceTopics(pattern=text)
    found = _json(option, text)
    partitions = {
        topic: tuple(dict.fromkeys(numbers))
        for topic, numbers in found.items()
        if isinstance(numbers, list) and all(_is_count(number) for number in numbers)
    }
    if len(partitions) != len(found) or not any(partitions.values()):
        raise ConfigError(f"assign is {text!r}: it is like '{{\"orders\": [0, 1]}}'")
    return SourceTopics(partitions=partitions)


# --- where to begin and to end --------------------------------------------------------------------
def _bound(
    given: Mapping[str, str], which: Literal["starting", "ending"], default: str, streaming: bool
) -> Bound:
    """Reads a bound. One time for all wins over times, and these over offsets, as in Spark's Kafka
    connector."""
    time, times, offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if time.lower() in given:
        return Bound(time, "time", time=_time(time, given[time.lower()]))
    if times.lower() in given:
        return Bound(times, "times", times=_by_partition(times, given[times.lower()], 0))
    text = given.get(offsets.lower(), default).strip()
    place = text.lower()
    impossible, meant = ("earliest", EARLIEST) if which == "ending" else ("latest", LATEST)
    if place == "earliest" or place == "latest":
        if place == impossible and not streaming:
            raise ConfigError(f"{offsets} is {place!r}: a batch query would read nothing")
        return Bound(offsets, "earliest" if place == "earliest" else "latest")
    if not text.startswith("{"):
        raise ConfigError(
            f"{offsets} is {text!r}: it is 'earliest', 'latest', or an offset for each partition, "
            'like \'{"orders": {"0": 23, "1": -2}}\''
        )
    found = _by_partition(offsets, text, EARLIEST)
    if not streaming and meant in found.values():
        raise ConfigError(f"{offsets} has {meant} ({impossible}): a batch would read nothing there")
    return Bound(offsets, "offsets", offsets=found)


def _by_partition(option: str, text: str, least: int) -> Offsets:
    found: Offsets = {}
    for topic, numbers in _json(option, text).items():
        for number, value in numbers.items() if isinstance(numbers, dict) else [("", LATEST)]:
            if not number.isdecimal() or not _is_count(value, least):
                raise ConfigError(
                    f'{option} is {text!r}: it is like \'{{"orders": {{"0": 23, "1": 7}}}}\''
                    + (", with -2 for earliest and -1 for latest" if least < 0 else "")
                )
            found[topic, int(number)] = value
    return found


# --- values ---------------------------------------------------------------------------------------
def _json(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is {text!r}, which is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{option} is {text!r}: a JSON object by topics is wanted")
    return found


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _time(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{option} is {text!r}: milliseconds since 1970 are wanted")
    return int(text)


def _number(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{option} is {text!r}: a whole number from 1 on is wanted")
    return int(text)


def _flag(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{option} is {text!r}: it is true or false")
    return text == "true"


def _choice(given: Mapping[str, str], option: str, choices: tuple[str, ...]) -> str:
    """Reads an option with choices; the first is the default."""
    text = given.get(option.lower(), choices[0]).strip().lower().replace("_", "-")
    if text not in choices:
        raise ConfigError(f"{option} is {text!r}: it is one of {', '.join(choices)}")
    return text


_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", re.IGNORECASE)


def _duration(given: Mapping[str, str], option: str, default: float) -> float:
    text = given.get(option.lower())
    if text is None:
        return default
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{option} is {text!r}: it is like '500ms', '30s', '15m' or '1h'")
    return int(found[1]) * _UNITS[found[2].lower()]
