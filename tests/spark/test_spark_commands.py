"""`penstock spark ...`: what its commands print, and how they end."""

from __future__ import annotations

import json
import os

import pytest
from cli_runner import call_cli, run_cli

pytest.importorskip("pyspark")

from penstock import AccessEntry, NotConnectedError, connect
from penstock.security.keys import create_key
from penstock.testing import Broker, produce, wait_until


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


def is_shut(url):
    """Whether nobody comes in without a key."""
    try:
        connect(url, timeout=0.5).close()
    except NotConnectedError:
        return True
    return False


@pytest.mark.usefixtures("spark")
def test_the_jobs_show_the_key_that_they_are_given(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_KEY", raising=False)
    rows, file, out = tmp_path / "rows.csv", tmp_path / "job.json", tmp_path / "out"
    rows.write_text("id,name\n" + "".join(f"{n % 7},name {n}\n" for n in range(70)))
    with Broker(listen=True) as made:
        topic = made.create_topic()
        create_key(os.fspath(made.data), "job", file)
        with made.connect() as client, client.admin() as admin:
            kinds = ("topic", "group", "transactional_id")
            admin.add_access(*(AccessEntry("job", "allow", "all", kind, "*") for kind in kinds))
        wait_until(lambda: is_shut(made.tcp_url), timeout=20.0)

        def ran(*words):
            return call_cli("spark", *words, url=made.tcp_url)

        sent = ran("backfill", rows, "--topic", topic, "--key", "id", "--keys", file)
        assert (sent.code, sent.lines) == (0, [f"70 records of 1 files to {topic}"])
        for words in (("archive", topic, "-o", out), ("hot-keys", topic)):
            done = ran(*words, "--keys", file)
            assert done.code == 0, done.err


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
