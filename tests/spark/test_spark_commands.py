"""`penstock spark ...`: what its commands print, and how they end."""

from __future__ import annotations

import json

import pytest
from cli_runner import call_cli, run_cli

pytest.importorskip("pyspark")

from penstock.testing import produce


@pytest.mark.usefixtures("spark")  # which the commands find running, and leave running
def test_the_jobs_run_by_their_commands(broker, tmp_path):
    broker.create_topic("commands", partitions=2)
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n" + "".join(f"{n % 7},name {n}\n" for n in range(70)))
    ran = call_cli(
        *("spark", "backfill", rows, "--topic", "commands", "--key", "id", "--encoding", "csv"),
        url=broker.url,
    )
    assert (ran.code, ran.lines) == (0, ["70 records of 1 files to commands"])
    again = call_cli(
        *("--format", "json", "spark", "backfill", rows, "--topic", "commands", "--key", "id"),
        *("--encoding", "csv"),
        url=broker.url,
    )
    assert [(o["records"], o["done_before"]) for o in again.objects] == [(0, 1)]
    out = tmp_path / "archive"
    ran = call_cli("spark", "archive", "commands", "-o", out, url=broker.url)
    assert (ran.code, ran.lines) == (0, [f"70 records in 1 batches to {out}"])
    assert "batch 0: 70 records" in ran.err
    ran = call_cli("spark", "snapshot", "commands", "-o", tmp_path / "latest", url=broker.url)
    assert (ran.code, ran.lines) == (0, [f"7 keys of 70 records to {tmp_path / 'latest'}"])
    ran = call_cli("spark", "hot-keys", "commands", "--top", "3", url=broker.url)
    assert ran.code == 0
    assert [line.split() for line in ran.lines[:1]] == [
        ["KEY", "PARTITION", "RECORDS", "BYTES", "SHARE"]
    ]
    ran = call_cli(
        *("spark", "rollup", "commands", "-o", tmp_path / "table", "--window", "1h", "-q"),
        url=broker.url,
    )
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.usefixtures("spark")
def test_an_audit_ends_by_what_it_found(broker, tmp_path):
    broker.create_topic("judged")
    ledger = tmp_path / "ledger.jsonl"
    ran = run_cli("verify", "producer", "--topic", "judged", "--max-messages", "20", url=broker.url)
    ledger.write_bytes(ran.out)
    ran = call_cli("spark", "audit", ledger, url=broker.url)
    assert ran.code == 0
    assert ran.lines[-1] == "0 lost, 0 doubled, 0 reordered, 0 misplaced, 0 phantom"
    produce(broker, "judged", [b"nobody's"])
    ran = call_cli("--format", "json", "spark", "audit", ledger, url=broker.url)
    assert ran.code == 1
    assert [o["finding"]["kind"] for o in ran.objects if "finding" in o] == ["phantom"]
    assert ran.objects[-1]["total"]["acked"] == 20
    ran = call_cli("spark", "audit", ledger, "--tolerate", "phantom", url=broker.url)
    assert ran.code == 0


@pytest.mark.usefixtures("spark")
def test_mistakes_are_sentences(broker, tmp_path):
    ran = call_cli("spark", "snapshot", "nowhere", "-o", tmp_path / "x", url=broker.url)
    assert ran.code == 1
    assert "nowhere" in ran.err
    assert "Traceback" not in ran.err
    ran = call_cli("spark", "archive", "t", "-o", tmp_path / "x", "-c", "wrong", url=broker.url)
    assert (ran.code, ran.err) == (2, "penstock: --conf 'wrong': write NAME=VALUE\n")
    (tmp_path / "ledger").write_text(json.dumps({"name": "startup_complete"}) + "\n")
    ran = call_cli("spark", "audit", tmp_path / "ledger", url=broker.url)
    assert ran.code == 2
    assert "no event tells of a topic" in ran.err
