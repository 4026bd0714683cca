"""What the demo on a cluster shows at the end: what happened, when, and whether all is there."""

from __future__ import annotations

from typing import Any

from penstock.cli.output import human_bytes, human_seconds
from penstock.demo.clusterstage import ClusterOutcome, Killed
from penstock.demo.report import print_rows

Row = tuple[str, str]


def as_fields(outcome: ClusterOutcome) -> dict[str, Any]:
    """The outcome as one JSON object. Seconds, bytes, records a second."""
    produced, consumed, killed = outcome.produced, outcome.consumed, outcome.killed
    complaints = outcome.complaints()
    return {
        "ok": not complaints,
        "complaints": complaints,
        "brokers": outcome.brokers,
        "replicas": outcome.replicas,
        "records": produced["records"],
        "value_bytes": produced["value_bytes"],
        "partitions": outcome.partitions,
        "aircraft": consumed["aircraft"],
        "producer_seconds": produced["seconds"],
        "producer_rate": produced["records"] / max(produced["seconds"], 1e-9),
        "consumer_seconds": consumed["seconds"],
        "consumer_rate": consumed["records"] / max(consumed["seconds"], 1e-9),
        **{name: consumed[name] for name in (
            "latency_p50", "latency_p99", "latency_max", "lost", "doubled", "out_of_order",
        )},
        "failover": None if killed is None else _failover(killed),
        "batches": outcome.batches,
        "data_bytes": outcome.data_bytes,
        "data_folder": outcome.kept,
        "started_seconds": outcome.started_in,
        "total_seconds": outcome.total_seconds,
    }  # fmt: skip


def _failover(killed: Killed) -> dict[str, Any]:
    told = killed.told
    followed = {} if told is None else {
        "led_partitions": told.led,
        "was_controller": told.was_controller,
        "fenced_seconds": told.fenced,
        "new_controller": told.controller,
        "new_controller_seconds": told.decided,
        "new_leader": told.heir,
        "new_leader_seconds": told.led_again,
        "acknowledged_seconds": told.acknowledged,
        "in_sync_seconds": told.in_sync,
    }  # fmt: skip
    return {
        "broker": killed.broker,
        "at_record": killed.at_record,
        "outage_seconds": killed.outage,
        "restarted_seconds": killed.restarted,
        "admitted_seconds": killed.admitted,
        **followed,
    }


def print_table(outcome: ClusterOutcome) -> None:
    """The outcome for people, on stdout."""
    copies = f", and every one of them on {outcome.replicas} brokers"
    print_rows(_rows(outcome), outcome.complaints(), copies)


def _rows(outcome: ClusterOutcome) -> list[Row]:
    fields = as_fields(outcome)
    rows = [
        ("cluster", f"{outcome.brokers} brokers, up in {human_seconds(outcome.started_in)}; every "
         f"record on {outcome.replicas} of them"),
        ("flights", f"{fields['records']:,} records of {fields['aircraft']:,} aircraft, "
         f"{human_bytes(fields['value_bytes'])}, {outcome.partitions} partitions"),
        ("producer", f"{fields['producer_rate']:,.0f} records/s, each acknowledged once it is "
         "committed (acks=all)"),
        ("end to end", f"p50 {human_seconds(fields['latency_p50'])}, p99 "
         f"{human_seconds(fields['latency_p99'])}, at full speed and across the failover"),
    ]  # fmt: skip
    if outcome.killed is not None:
        rows += _story(outcome.killed)
    rows += [
        ("check", f"lost {fields['lost']}, doubled {fields['doubled']}, out of order "
         f"{fields['out_of_order']}; {outcome.batches:,} batches in the files verified"),
        ("data folders", human_bytes(outcome.data_bytes)
         + (f", kept in {outcome.kept}" if outcome.kept else ", removed")),
        ("time", f"{human_seconds(outcome.total_seconds)} in all"),
    ]  # fmt: skip
    return rows


def _story(killed: Killed) -> list[Row]:
    """What happened, in the order in which it did."""
    victim, told = killed.broker, killed.told
    events: list[tuple[float | None, str]] = [
        (killed.restarted, f"broker {victim} started again"),
        (killed.admitted, f"broker {victim} admits clients"),
    ]
    role = ""
    if told is not None:
        role = f", leader of {told.led} partitions" + " and the controller" * told.was_controller
        events += [
            (told.decided, f"broker {told.controller} decides"),
            (told.fenced, f"broker {victim} is fenced"),
            (told.led_again, f"broker {told.heir} leads its partition"),
            (told.acknowledged, "that partition acknowledges again: it did not for "
             f"{human_seconds(killed.outage)}"),
            (told.in_sync, "every replica is in sync again"),
        ]  # fmt: skip
    first = (0.0, f"kill -9: broker {victim}{role}, at record {killed.at_record:,}")
    seen = sorted((at, text) for at, text in events if at is not None)
    return [(f"{at:+.3f} s", text) for at, text in [first, *seen]]
