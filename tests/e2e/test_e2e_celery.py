"""Celery on Penstock: real workers, what they do for an application, and what becomes of tasks when
they end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import chain, chord, group
from celery_fixture import CeleryApp, CeleryWorker, broker_url
from keyed_fixture import World

from penstock.core.errors import AccessDeniedError, UnknownTopicError
from penstock.testing import Broker, drain, wait_until

PREFIXES = (f"celery-{number}." for number in itertools.count())
WITHIN = 30.0


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
def test_of_a_killed_worker_others_run_what_was_not_acknowledged(alone):
    with alone.worker("first", "-c", "2") as first, alone.worker("second", "-P", "solo"):
        control = alone.app.control
        control.cancel_consumer("celery", destination=["second@host"], reply=True)
        for task in (alone.tasks.early, alone.tasks.late):
            task.delay(task.__name__)
        wait_until(lambda: len(alone.told("begun")) == 2, timeout=WITHIN)
        with alone.node.connect() as client, client.admin() as admin:
            topic = f"{alone.prefix}queue.celery"
            wait_until(lambda: admin.describe_share_group(topic).lag == 1, timeout=WITHIN)
        control.add_consumer("celery", destination=["second@host"], reply=True)
        first.kill()
        wait_until(lambda: len(alone.told("begun", "late")) == 2, timeout=WITHIN)
        alone.go("late")
        alone.tasks.note.delay("other")
        wait_until(lambda: alone.told("noted", "other"), timeout=WITHIN)
    assert len(alone.told("begun", "early")) == len(alone.told("done", "late")) == 1


def test_a_worker_outlives_its_broker_and_ends_in_order(alone):
    """The task in its hands runs once, what comes later runs, and what it had not begun with when
    it is stopped goes to others."""
    with Broker() as node:
        shop = CeleryApp(alone.here, node, alone.prefix)
        topic = f"{shop.prefix}queue.celery"
        with shop.worker("first", "-c", "1") as first, node.connect() as client:
            admin = client.admin()
            shop.tasks.late.delay("job")
            wait_until(lambda: shop.told("begun"), timeout=WITHIN)
            node.restart(kill=True)
            shop.go("job")
            wait_until(lambda: shop.told("done"), timeout=WITHIN)
            shop.tasks.note.delay("after")
            wait_until(lambda: shop.told("noted", "after"), timeout=WITHIN, what=first.said)
            wait_until(lambda: admin.describe_share_group(topic).lag == 0, timeout=WITHIN)
            shop.tasks.late.delay("last")
            wait_until(lambda: shop.told("begun", "last"), timeout=WITHIN)
            shop.tasks.note.delay("rest")
            first.process.terminate()
            wait_until(lambda: "Warm shutdown" in first.said(), timeout=WITHIN)
            shop.go("last")
            assert first.process.wait(WITHIN) == 0
            found = admin.describe_share_group(topic)
            assert (found.lag, found.partitions[0].leased) == (
                1 - len(shop.told("noted", "rest")),
                0,
            )
        assert len(shop.told("begun")) == len(shop.told("done")) == 2


def test_a_worker_and_its_client_have_keys_and_rights(tmp_path):
    with World(tmp_path) as world:
        for name in ("worker", "sender"):
            world.key(name)
        world.allow("worker allow all topic shop.*", "worker allow all group shop.*")
        node, prefix = world.broker, "shop."
        way = {"transport": "tcp", "keys": str(tmp_path / "worker.key"), "session_timeout": 0.3}
        shop = CeleryApp(tmp_path, node, prefix, **way)
        with shop.worker("first", "-P", "solo"):
            assert shop.app.control.ping(timeout=WITHIN, limit=1) == [
                {"first@host": {"ok": "pong"}}
            ]
            shop.tasks.late.delay("long")
            wait_until(lambda: shop.told("begun"), timeout=WITHIN)
            # Many times as long as a session: the task stays with its worker all the same.
            with shop.app.connection_for_read() as other:
                consumer = kombu.Consumer(other, [kombu.Queue("celery")], accept=["json"])
                with consumer, pytest.raises(TimeoutError):
                    other.drain_events(timeout=1.5)
            shop.go("long")
            wait_until(lambda: shop.told("done"), timeout=WITHIN)
            assert len(shop.told("begun")) == 1
            world.allow("sender allow write topic shop.queue.*")
            way.update(keys=str(tmp_path / "sender.key"), prefix=prefix)
            url = broker_url(node, by_tcp=True)
            with kombu.Connection(url, transport_options=way) as connection:
                task = shop.app.amqp.as_task_v2("1", shop.tasks.note.name, ("sent",))
                amqp, producer = shop.app.amqp, kombu.Producer(connection)
                amqp.send_task_message(producer, "note", task, routing_key="celery")
                wait_until(lambda: shop.told("noted", "sent"), timeout=WITHIN)
                with pytest.raises(AccessDeniedError):
                    connection.default_channel.basic_get("celery")
