"""The output of `penstock topic describe`: shared memory by way of an admin, and the files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli import output
from penstock.cli.command import Env
from penstock.observe.files import OnDisk, look
from penstock.operations import values, wording

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin, TopicDescription

RATES: Final = ("records", "bytes", "batches")


def describe_topic(
    env: Env, admin: Admin, name: str, data_folder: str | None, sample: float
) -> None:
    """Shows one topic; `sample` is how long to count for its rates, 0 for none. `data_folder` None:
    it is on another host."""
    topic = admin.describe_topic(name)
    rates: list[dict[str, float]] | None = None
    if sample:
        begun = time.monotonic()
        time.sleep(sample)
        before, topic = topic, admin.describe_topic(name)
        rates = _rates(before, topic, time.monotonic() - begun)
    disk = None
    if data_folder is not None:
        disk = [
            look(f"{data_folder}/{topic.topic_id}-{part.partition}", part.log_start, part.log_end)
            for part in topic.partitions
        ]
    if env.is_json:
        output.write_json(_fields(topic, disk, rates))
    else:
        _write(env, topic, disk, rates)


def describe_hot_keys(env: Env, admin: Admin, name: str) -> None:
    """Shows the most frequent keys of each partition, and advice."""
    from penstock.client.admin.hot_keys import as_fields, text_of

    found = admin.hot_keys(name)
    if env.is_json:
        output.write_json({"topic": name, "partitions": [as_fields(one) for one in found]})
        return
    output.write_columns(
        ["PARTITION", "SAMPLED", "RECORDS/S", "LOAD", "SHARE", "KEY"],
        [
            [one.partition, one.sampled, wording.human_count(one.rate), f"{one.load:.0%}",
             f"{key.share:.1%}", "(none)" if key.key is None else text_of(key.key)]
            for one in found
            for key in one.keys
        ],
    )  # fmt: skip
    for one in found:
        if one.advice:
            output.write_line(one.advice)


def numbers(brokers: Iterable[int]) -> str:
    """Brokers in a table."""
    return ",".join(map(str, brokers)) or "-"


def _rates(
    before: TopicDescription, after: TopicDescription, seconds: float
) -> list[dict[str, float]]:
    old = {part.partition: part.counters for part in before.partitions}
    return [
        {
            key: (part.counters[key] - old.get(part.partition, part.counters)[key]) / seconds
            for key in RATES
        }
        for part in after.partitions
    ]


def _fields(
    topic: TopicDescription, disk: list[OnDisk] | None, rates: list[dict[str, float]] | None
) -> dict[str, Any]:
    fields = asdict(topic)
    unknown = dict.fromkeys(OnDisk.__struct_fields__)
    for number, part in enumerate(fields["partitions"]):
        part |= unknown if disk is None else msgspec.structs.asdict(disk[number])
        if rates is not None:
            part |= {f"{key}_per_second": rates[number][key] for key in RATES}
    fields["disk_bytes"] = None if disk is None else sum(found.disk_bytes for found in disk)
    fields["offsets"] = offsets_held(topic)
    return fields


def offsets_held(topic: TopicDescription) -> int:
    """Offsets that are kept: records, markers of transactions, and what compaction took out. How
    many records that are only who reads the log knows."""
    return sum(part.high_watermark - part.log_start for part in topic.partitions)


def _write(
    env: Env,
    topic: TopicDescription,
    disk: list[OnDisk] | None,
    rates: list[dict[str, float]] | None,
) -> None:
    line = f"topic {topic.name}  id {topic.topic_id}  {offsets_held(topic)} offsets"
    if disk is not None:
        line += f"  {wording.human_bytes(sum(found.disk_bytes for found in disk))} on disk"
    output.write_line(line)
    known = {key: value for key, value in topic.settings.items() if value is not None}
    known.pop("partitions", None)
    output.write_line(
        "  " + "  ".join(f"{key}={values.setting(key, value)}" for key, value in known.items())
    )
    heads = ["partition", "status", "writer", "start", "end", "durable", "epoch"]
    is_held = any(part.last_stable != part.high_watermark for part in topic.partitions)
    rows: list[list[object]] = [
        [
            part.partition,
            part.status,
            part.writer,
            part.log_start,
            part.high_watermark,
            part.durable,
            part.leader_epoch,
        ]
        for part in topic.partitions
    ]
    if is_held:
        heads.insert(heads.index("end"), "stable")
        for row, part in zip(rows, topic.partitions, strict=True):
            row.insert(heads.index("stable"), part.last_stable)
    if any(part.replicas for part in topic.partitions):
        heads += ["leader", "replicas", "in-sync"]
        for row, part in zip(rows, topic.partitions, strict=True):
            row += ["-" if part.leader is None else part.leader, numbers(part.replicas),
                    numbers(part.isr)]  # fmt: skip
    if disk is not None:
        heads += ["segments", "size", "earliest", "latest"]
        for row, found in zip(rows, disk, strict=True):
            row += [found.segments, wording.human_bytes(found.disk_bytes),
                    _moment(found.earliest), _moment(found.latest)]  # fmt: skip
    if rates is not None:
        heads += [f"{key}/s" for key in RATES]
        for row, rate in zip(rows, rates, strict=True):
            row += [wording.human_count(rate["records"]), wording.human_bytes(rate["bytes"]),
                    wording.human_count(rate["batches"])]  # fmt: skip
    if env.is_wide:
        heads += topic.partitions[0].counters if topic.partitions else {}
        for row, part in zip(rows, topic.partitions, strict=True):
            row += part.counters.values()
    output.write_columns([head.upper() for head in heads], rows)
    if is_held:
        env.say(
            "readers of committed records get as far as STABLE: an open transaction holds them back"
            " (`penstock transaction list --open`)"
        )
    room = topic.disk
    if room["level"] != "ok":
        stopped = "writing has stopped, " if room["level"] == "full" else ""
        env.say(
            f"the disk is {room['level']}: {stopped}{room['free']} of {room['total']} bytes are "
            f"free (disk_warn {room['warn_below']}, disk_stop {room['stop_below']})"
        )


def _moment(timestamp: int | None) -> str | None:
    """Returns the time to the second."""
    if timestamp is None:
        return None
    text = wording.iso_time(timestamp)
    return text[:19] + "Z" if text.endswith("Z") else text
