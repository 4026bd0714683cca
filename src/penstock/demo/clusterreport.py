"""The final report of the demo on a cluster: the events, their times, and whether all is there."""

from __future__ import annotations

from typing import Any

from penstock.demo.clusterstage import ClusterOutcome, Killed
from penstock.demo.report import Row, fields_of, latency_row, print_rows, sent_row, stock_rows
from penstock.operations.wording import human_seconds


def as_fields(outcome: ClusterOutcome) -> dict[str, Any]:
    """Returns the outcome as one JSON object. Seconds, bytes, records a second."""
    return {
        **fields_of(outcome),
        "brokers": outcome.brokers,
        "replicas": outcome.replicas,
        "failover": None if outcome.killed is None else _failover(outcome.killed),
        "started_seconds": outcome.started_in,
    }


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
    """Prints the outcome for people, on stdout."""
    copies = f", and every one of them on {outcome.replicas} brokers"
    print_rows(_rows(outcome), outcome.complaints(), copies)


def _rows(outcome: ClusterOutcome) -> list[Row]:
    fields = as_fields(outcome)
    rows = [
        ("cluster", f"{outcome.brokers} brokers, up in {human_seconds(outcome.started_in)}; every "
         f"record on {outcome.replicas} of them"),
        sent_row(fields),
        ("producer", f"{fields['producer_rate']:,.0f} records/s, each acknowledged once it is "
         "committed (acks=all)"),
        latency_row(fields, "failover"),
    ]  # fmt: skip
    if outcome.killed is not None:
        rows += _story(outcome.killed)
    rows += [
        *stock_rows(fields, "data folders"),
        ("time", f"{human_seconds(outcome.total_seconds)} in all"),
    ]  # fmt: skip
    return rows


def _story(killed: Killed) -> list[Row]:
    """Returns the events in the order in which they happened."""
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
