"""`penstock demo --console`: a node with live load, a stuck group and dead letters, and a console,
which run until they are told to end. Nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

from cli_runner import call_cli, cli_process

from penstock.testing import wait_until


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def test_it_has_load_a_stuck_group_dead_letters_and_a_hot_key(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with cli_process("demo", "--console", "--format", "json", env=env) as running:
        told = json.loads(running.stdout.readline())
        url = told["url"]
        wait_until(lambda: "mails.dlq" in page(f"{url}/letters"), what="dead letters")
        wait_until(
            lambda: "has no address" in page(f"{url}/letters?topic=mails.dlq"), what="the reason"
        )
        assert "orders-" in page(f"{url}/group?name=shipping")
        assert page(f"{url}/records?topic=orders&key=customer-7").count("customer-7") > 10
        assert "leased" in page(f"{url}/queue?name=mailers")
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
    assert [name for name in os.listdir(tmp_path) if name.startswith("penstock-demo")] == []


def test_options_of_the_other_demo_are_refused() -> None:
    ran = call_cli("demo", "--console", "--records", "5")
    assert (ran.code, "leave --records" in ran.err) == (2, True)
