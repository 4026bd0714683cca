"""`penstock log ...`: look into partition folders without a node."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command
from penstock.core import errors as er
from penstock.operations import wording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.header import BatchHeader
    from penstock.core.segment import Scan
    from penstock.logcheck import Checked, CheckedPartition

Paths = Annotated[
    list[str], typer.Argument(metavar="FOLDER", help="Data folders, or partition folders.")
]
_TEXT_MAX: Final = 200
"""So many bytes of a key or value are shown as text; JSON shows all."""


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Look into partition folders without a node.", **settings)
    command(app, "dump")(dump)
    command(app, "verify")(verify)
    return app


def verify(env: Env, paths: Paths) -> int:
    """Check checksums, columns, offsets, indexes and producer sequences. Exits 1 on findings."""
    from penstock.logcheck import check_partition, find_partitions

    bad = 0
    for path in paths:
        for partition in find_partitions(path):
            checked = check_partition(partition)
            _show_check(env, checked)
            bad += len(checked.errors)
    return ExitCode.FAILED if bad else ExitCode.DONE


def _show_check(env: Env, checked: Checked) -> None:
    if env.is_json:
        output.write_json({**asdict(checked), "ok": not checked.errors})
        return
    for finding in checked.findings:
        where = finding.file if finding.position is None else f"{finding.file}:{finding.position}"
        kind = f"{finding.kind} (note)" if finding.is_note else finding.kind
        if not finding.is_note or env.is_wide or env.verbose:
            output.write_line(f"{checked.name}  {where}  {kind}: {finding.message}")
    verdict = f"{len(checked.errors)} findings" if checked.errors else "good"
    output.write_line(
        f"{checked.name}  {verdict}: offsets {checked.log_start} to {checked.log_end}, "
        f"{checked.records} records in {checked.batches} batches of {checked.producers} producers, "
        f"{checked.segments} segments, {checked.bytes} bytes"
    )


def dump(
    env: Env,
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records", help="Show the records of each batch as well.")
    ] = False,
    start: Annotated[
        int, typer.Option("-o", "--offset", min=0, help="Begin with the batch of this offset.")
    ] = 0,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="At most so many batches each.")
    ] = None,
) -> int:
    """Show the batches of partitions as they are in the files. Exits 1 where one is damaged."""
    from penstock.logcheck import find_partitions

    code = ExitCode.DONE
    for path in paths:
        for partition in find_partitions(path):
            if not _dump(env, partition, start, count, records):
                code = ExitCode.FAILED
    return code


def _dump(
    env: Env, partition: CheckedPartition, start: int, count: int | None, records: bool
) -> bool:
    """Shows one partition; returns whether its segments could be read to their ends."""
    from penstock.core.segment import Scan, Stop, list_segments, open_for_reading, segment_name
    from penstock.core.storage import Storage

    storage = Storage()
    bases = list_segments(storage, partition.folder)
    whole, left = True, count
    for i in range(max(bisect_right(bases, start) - 1, 0), len(bases)):
        base = bases[i]
        following = bases[i + 1] if i + 1 < len(bases) else None
        fd = open_for_reading(storage, partition.folder, base)
        try:
            scan = Scan(
                storage,
                fd,
                position=0,
                offset=base,
                owner=partition.owner,
                until=following,
                bodies=True,
            )
            for at, head in scan:
                if head.next_offset <= start:
                    continue
                if left is not None:
                    if left <= 0:
                        return whole
                    left -= 1
                _show_batch(env, partition, segment_name(base), at, head)
                if records:
                    _show_records(env, partition, scan, at, head)
            expected = (Stop.LIMIT,) if following is not None else (Stop.END, Stop.ZERO)
            if scan.stop not in expected:
                whole = False
                detail = f" ({scan.detail})" if scan.detail else ""
                output.narrate(
                    f"penstock: {partition.name} {segment_name(base)}: at byte {scan.position}, "
                    f"where offset {scan.offset} should begin: {scan.stop.value}{detail}"
                )
        finally:
            storage.close(fd)
    return whole


def _batch_fields(head: BatchHeader) -> dict[str, Any]:
    from penstock.core import header as hd

    names = ("transactional", "control", "keys", "headers", "sparse")
    marks = [name for bit, name in enumerate(names) if head.attributes >> bit & 1]
    flags = ("append_time", "compacted", "delete_horizon")
    marks += [name for bit, name in enumerate(flags) if head.flags >> bit & 1]
    return {
        "base_offset": head.base_offset,
        "last_offset": head.last_offset,
        "records": head.record_count,
        "bytes": head.length,
        "codec": hd.CODEC_NAMES[head.codec],
        "producer_id": head.producer_id,
        "producer_epoch": head.producer_epoch,
        "base_sequence": head.base_sequence,
        "leader_epoch": head.leader_epoch,
        "generation": head.generation,
        "append_timestamp": head.append_timestamp,
        "base_timestamp": head.base_timestamp,
        "max_timestamp": head.max_timestamp,
        "raw_body_bytes": head.raw_body_length,
        "body_crc": f"{head.body_crc:08x}",
        "flags": marks,
        **_control_fields(head),
    }


def _control_fields(head: BatchHeader) -> dict[str, Any]:
    """Returns the fields of a control batch; none for any other."""
    from penstock.core import control

    if not control.is_control(head):
        return {}
    try:
        found = control.control_of(head)
    except (er.CorruptBatchError, er.UnsupportedVersionError) as error:
        return {"control": str(error)}
    return {
        "control": found.type.name.lower(),
        "transaction_epoch": found.epoch,
        "coordinator_epoch": found.coordinator_epoch,
    }


def _show_batch(
    env: Env, partition: CheckedPartition, file: str, at: int, head: BatchHeader
) -> None:
    fields = _batch_fields(head)
    if env.is_json:
        output.write_json(
            {"kind": "batch", "partition": partition.name, "file": file, "position": at, **fields}
        )
        return
    what = f"{head.record_count} records"
    if "control" in fields:
        what = f"{fields['control']} of epoch {fields.get('transaction_epoch')}"
    elif "transactional" in fields["flags"]:
        what += " in a transaction"
    text = (
        f"{partition.name}  offsets {head.base_offset}..{head.last_offset}  at {at}  "
        f"{what}  {head.length} bytes  {fields['codec']}  "
        f"producer {head.producer_id}/{head.producer_epoch}  sequence {head.base_sequence}  "
        f"epoch {head.leader_epoch}/{head.generation}  {wording.iso_time(head.append_timestamp)}"
    )
    if env.is_wide:
        text += f"  {file}  crc {fields['body_crc']}  {','.join(fields['flags']) or '-'}"
    output.write_line(text)


def _show_records(
    env: Env, partition: CheckedPartition, scan: Scan, at: int, head: BatchHeader
) -> None:
    from penstock.client.consumer.records import Chunk
    from penstock.core.columns import decode
    from penstock.core.header import ATTR_CONTROL
    from penstock.operations.record_json import json_fields

    if head.attributes & ATTR_CONTROL or not head.record_count:
        return
    try:
        columns = decode(memoryview(bytes(scan.body(at, head))), 0, head, verify=False)
    except (er.CorruptBatchError, er.UnsupportedVersionError) as error:
        raise er.CorruptBatchError(f"{partition.name}, batch at byte {at}: {error}") from error
    topic, _, _ = partition.name.rpartition("-")
    for record in Chunk(topic, head.partition, columns).records():
        if env.is_json:
            output.write_json({"kind": "record", **json_fields(record)})
            continue
        cells: Iterator[str] = iter(
            (
                str(record.offset),
                wording.iso_time(record.timestamp),
                _shown(record.key),
                _shown(record.value),
                *(f"{name}={_shown(value)}" for name, value in record.headers),
            )
        )
        output.write_line("    " + "  ".join(cells))


def _shown(data: bytes | None) -> str:
    """Returns bytes on one line: null, or a Python literal without its b."""
    if data is None:
        return "null"
    text = repr(data[:_TEXT_MAX])[1:]
    return f"{text}... ({len(data)} bytes)" if len(data) > _TEXT_MAX else text
