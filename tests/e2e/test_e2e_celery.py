"""Celery on Penstock: real workers, what they do for an application, and what becomes of tasks when
they end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery_fixture import CeleryApp, CeleryWorker

from penstock.core.errors import UnknownTopicError
from penstock.testing import Broker, drain, wait_until

PREFIXES = (f"celery-{number}." for number in itertools.count())
WITHIN = 30.0
pytestmark = pytest.mark.over_tcp


@pytest.fixture(scope="module")
def shop(node: Broker, tmp_path_factory: pytest.TempPathFactory) -> CeleryApp:
    return CeleryApp(tmp_path_factory.mktemp("shop"), node, next(PREFIXES))


@pytest.fixture(scope="module")
def worker(shop: CeleryApp) -> Iterator[CeleryWorker]:
    """Two processes of a pool, for most tests."""
    with shop.worker("shared", "-c", "2") as made:
        yield made


@pytest.fixture
def alone(node: Broker, tmp_path: Path) -> CeleryApp:
    """An application of its own, without a worker."""
    return CeleryApp(tmp_path, node, next(PREFIXES))


def test_tasks_chains_groups_chords_and_retries_give_results(shop, worker):
    tasks = shop.tasks
    results = [
        tasks.add.delay(2, 3),
        chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4)).delay(),
        group(tasks.add.s(number, number) for number in range(5)).delay(),
        chord((tasks.add.s(number, number) for number in range(5)), tasks.total.s()).delay(),
        tasks.stubborn.delay(2),
    ]
    assert [result.get(timeout=WITHIN, interval=0.05) for result in results] == [
        5, 10, [0, 2, 4, 6, 8], 20, 2,
    ]  # fmt: skip


def test_a_worker_tells_what_it_does_and_forgets_what_is_revoked(shop, worker):
    tasks, control = shop.tasks, shop.app.control
    inspect = control.inspect([worker.name], timeout=WITHIN)
    assert inspect.ping() == {worker.name: {"ok": "pong"}}
    assert shop.tasks.add.name in inspect.registered()[worker.name]
    held = [tasks.early.delay("held-1"), tasks.early.delay("held-2")]
    wait_until(lambda: len(shop.told("begun")) == 2, timeout=WITHIN)
    assert {one["id"] for one in inspect.active()[worker.name]} == {one.id for one in held}
    revoked = tasks.note.delay("revoked")
    control.revoke(revoked.id)
    wait_until(lambda: revoked.id in inspect.revoked()[worker.name], timeout=WITHIN)
    shop.go("held-1")
    shop.go("held-2")
    tasks.add.delay(0, 0).get(timeout=WITHIN)
    wait_until(lambda: revoked.status == "REVOKED", timeout=WITHIN)
    assert shop.told("noted", "revoked") == []


def test_tasks_of_days_from_now_hold_up_nothing(shop, worker):
    """They are not even in the worker's hands: its prefetch count is two."""
    tasks = shop.tasks
    for _ in range(8):
        tasks.note.apply_async(("far",), countdown=3 * 86_400)
    soon = tasks.add.apply_async((1, 1), countdown=0.2)
    assert tasks.add.delay(2, 2).get(timeout=WITHIN, interval=0.05) == 4
    assert soon.get(timeout=WITHIN, interval=0.05) == 2
    inspect = shop.app.control.inspect([worker.name], timeout=WITHIN)
    assert inspect.scheduled() == inspect.reserved() == {worker.name: []}
    assert shop.told("noted", "far") == []


def test_a_rejected_task_is_a_dead_letter(shop, worker):
    shop.tasks.rejected.delay("bad")
    letters: list[Any] = []

    def came() -> bool:
        try:
            letters[:] = drain(shop.node, f"{shop.prefix}queue.celery.dlq")
        except UnknownTopicError:
            return False
        return bool(letters)

    wait_until(came, timeout=WITHIN)
    assert b"bad" in letters[0].value


def test_events_of_workers_come_to_who_listens(shop, worker):
    seen: set[str] = set()
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.add(event["type"])}
        )
        with receiver.consumer_context() as (own, _, _):
            shop.app.control.enable_events(reply=True)
            shop.tasks.add.delay(1, 1)
            while "task-succeeded" not in seen:
                own.drain_events(timeout=WITHIN)
            shop.app.control.disable_events()


# --- workers that end ----------------------------------------------------------------------------
def test_a_task_of_a_killed_worker_runs_elsewhere(alone):
    with alone.worker("first", "-P", "solo") as first, alone.worker("second", "-P", "solo"):
        alone.app.control.cancel_consumer("celery", destination=["second@host"], reply=True)
        alone.tasks.late.delay("job")
        wait_until(lambda: alone.told("begun"), timeout=WITHIN)
        assert alone.told("begun")[0][2] == str(first.pid)
        alone.app.control.add_consumer("celery", destination=["second@host"], reply=True)
        first.kill()
        wait_until(lambda: len(alone.told("begun")) == 2, timeout=WITHIN)
        alone.go("job")
        wait_until(lambda: alone.told("done"), timeout=WITHIN)
    assert len(alone.told("done")) == 1


def test_a_task_that_is_acknowledged_early_does_not_run_again(alone):
    with alone.worker("first", "-P", "prefork", "-c", "1") as first:
        alone.tasks.early.delay("job")
        wait_until(lambda: alone.told("begun"), timeout=WITHIN)
        topic = f"{alone.prefix}queue.celery"
        with alone.node.connect() as client, client.admin() as admin:
            wait_until(lambda: admin.describe_share_group(topic).lag == 0, timeout=WITHIN)
        first.kill()
    alone.tasks.note.delay("other")
    with alone.worker("second", "-P", "solo"):
        wait_until(lambda: alone.told("noted", "other"), timeout=WITHIN)
    assert len(alone.told("begun")) == 1


def test_a_worker_that_is_stopped_finishes_its_task_and_gives_back_the_rest(alone):
    with alone.worker("first", "-P", "prefork", "-c", "1") as first:
        alone.tasks.late.delay("job")
        wait_until(lambda: alone.told("begun"), timeout=WITHIN)
        alone.tasks.note.delay("rest")
        first.process.terminate()
        wait_until(lambda: "Warm shutdown" in first.said(), timeout=WITHIN)
        alone.go("job")
        assert first.process.wait(WITHIN) == 0
    assert len(alone.told("done")) == 1
    topic = f"{alone.prefix}queue.celery"
    with alone.node.connect() as client, client.admin() as admin:
        found = admin.describe_share_group(topic)
        noted = len(alone.told("noted"))
        assert found.lag == 1 - noted
        assert sum(part.leased for part in found.partitions) == 0


def test_a_worker_goes_on_when_the_broker_is_back(alone):
    """The task in its hands runs once, and what comes later runs."""
    with Broker() as node:
        shop = CeleryApp(alone.here, node, alone.prefix)
        with shop.worker("first", "-P", "prefork", "-c", "1") as first:
            shop.tasks.late.delay("job")
            wait_until(lambda: shop.told("begun"), timeout=WITHIN)
            node.restart(kill=True)
            shop.go("job")
            wait_until(lambda: shop.told("done"), timeout=WITHIN)
            shop.tasks.note.delay("after")
            wait_until(lambda: shop.told("noted", "after"), timeout=WITHIN, what=first.said)
            topic = f"{shop.prefix}queue.celery"
            with node.connect() as client, client.admin() as admin:
                wait_until(lambda: admin.describe_share_group(topic).lag == 0, timeout=WITHIN)
        assert len(shop.told("begun")) == len(shop.told("done")) == 1
