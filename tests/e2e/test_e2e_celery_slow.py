"""Celery on Penstock for longer: a task of ten minutes, and the benchmark beside other brokers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from celery_fixture import CeleryApp

from penstock.bench.cli import main
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.slow
TEN_MINUTES = 600.0


@pytest.mark.timeout(900)
def test_a_task_of_ten_minutes_runs_once(node: Broker, tmp_path: Path) -> None:
    shop = CeleryApp(tmp_path, node, "long.")
    with shop.worker("first", "-P", "solo"), shop.worker("second", "-P", "solo"):
        shop.tasks.late.delay("job")
        wait_until(lambda: shop.told("begun"), timeout=30)
        until = time.monotonic() + TEN_MINUTES
        wait_until(lambda: time.monotonic() > until or len(shop.told("begun")) > 1, timeout=660)
        shop.go("job")
        wait_until(lambda: shop.told("done"), timeout=30)
    assert len(shop.told("begun")) == len(shop.told("done")) == 1


def test_the_benchmark_measures_penstock(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--tasks", "50", "--turns", "1", "--singles", "5", "--kills", "1", "--idle", "0.2")
    code = main(["celery", "--only", "penstock-shm", "--format", "json", *sizes])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out)["brokers"]["penstock-shm"]
    assert min(found["sent_per_second"], found["done_per_second"]) > [0]
    assert found["latency_p50_ms"] > 0
    assert len(found["killed_ms"]) == 1
