"""An application that writes into an outbox while relays, node and database are killed.

Each transaction writes rows of an outbox and the same rows into a ledger. So the ledger is what
committed, also where a commit had no answer. At the end the topic has to have the ledger's rows,
each once and in order of its key.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from cli_runner import COMMAND, environment
from crash.node_under_test import NodeUnderTest
from database_fixture import Database, outbox_in

from penstock import outbox
from penstock.testing import wait_until

WRITERS: Final = 3
KEYS: Final = 4
"""Keys of each writer: no other one writes them."""
MOVES_WITHIN: Final = 60.0
WAITING_MAX: Final = 300
"""Rows that wait before the writers do."""
NEVER: Final = b"never"
"""The value of rows that are rolled back."""
PROGRESS: Final = "outbox.progress"


class OutboxTrial:
    """`kill_database`: kills it and starts it again, where that can be done."""

    def __init__(
        self,
        node: NodeUnderTest,
        database: Database,
        seed: int,
        *,
        relays: int = 1,
        kill_database: Callable[[], None] | None = None,
    ) -> None:
        self.struck: Counter[str] = Counter()
        self._node = node
        self._database = outbox_in(database)
        self._chance = random.Random(seed)
        self._topic = f"trial-{database.name}"
        with node.connect() as client, client.admin() as admin:
            admin.create_topic(self._topic)
        with closing(database.connect()) as connection:
            connection.execute(f"CREATE TABLE {database.name}_ledger (k INTEGER, n INTEGER)")
            connection.commit()
        self._faults: dict[str, Callable[[], None]] = {
            "relay": self._kill_relay,
            "node": self._kill_node,
        }
        if kill_database is not None:
            self._faults["database"] = kill_database
        self._log = tempfile.NamedTemporaryFile("w", suffix=".relays")  # noqa: SIM115
        self._relays = [self._relay() for _ in range(relays)]
        self._is_over = threading.Event()
        self._failed: list[BaseException] = []
        self._writers = [
            threading.Thread(target=self._write, args=(number, self._chance.random()))
            for number in range(WRITERS)
        ]
        for thread in self._writers:
            thread.start()

    def _relay(self) -> subprocess.Popen[bytes]:
        where = ("--dsn", self._database.dsn, "--table", self._database.name)
        return subprocess.Popen(
            [*COMMAND, "outbox", "relay", *where, "--batch-rows", "50"],
            env=environment(self._node.url),
            stderr=self._log,
        )

    def tail(self) -> str:
        """What the relays said last."""
        self._log.flush()
        return "\n".join(Path(self._log.name).read_text().splitlines()[-40:])

    # --- the application ---
    def _write(self, number: int, seed: float) -> None:
        try:
            chance = random.Random(seed)
            while not self._is_over.is_set():
                with suppress(*_passing()), closing(self._database.connect()) as connection:
                    self._write_on(connection, number, chance)
        except BaseException as error:
            self._failed.append(error)

    def _write_on(self, connection: Any, number: int, chance: random.Random) -> None:
        """Until the connection fails, or all is over."""
        table = self._database.name
        while not self._is_over.is_set():
            key = number * KEYS + chance.randrange(KEYS)
            [[last]] = connection.execute(
                f"SELECT coalesce(max(n), -1) FROM {table}_ledger WHERE k = {key}"
            ).fetchall()
            commits, count = chance.random() < 0.8, chance.randint(1, 6)
            for n in range(last + 1, last + 1 + count):
                outbox.enqueue(
                    connection, self._topic, b"%d" % n if commits else NEVER, key=b"%d" % key,
                    table=table,
                )  # fmt: skip
                connection.execute(f"INSERT INTO {table}_ledger VALUES ({key}, {n})")
            if commits:
                connection.commit()
            else:
                connection.rollback()
            while not self._is_over.wait(0.002) and self._is_behind(connection):
                connection.rollback()

    def _is_behind(self, connection: Any) -> bool:
        """Whether the relays have enough to do."""
        [[count]] = connection.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM {self._database.name} LIMIT {WAITING_MAX}) AS w"
        ).fetchall()
        return bool(count == WAITING_MAX)

    # --- faults ---
    def round(self, fault: str | None = None) -> None:
        """Lets it move on, then kills something at any moment."""
        before = self._batch()
        wait_until(lambda: self._batch() > before, MOVES_WITHIN, "the relay goes on")
        name = fault or self._chance.choice([*self._faults])
        self._is_over.wait(self._chance.uniform(0.0, 0.1))
        self._faults[name]()
        self.struck[name] += 1

    def _batch(self) -> int:
        with suppress(*_passing()):
            return int(self._database.rows(f"SELECT batch FROM {self._database.name}_relay")[0][0])
        return -1

    def _kill_relay(self) -> None:
        place = self._chance.randrange(len(self._relays))
        self._relays[place].kill()
        self._relays[place].wait(10)
        self._relays[place] = self._relay()

    def _kill_node(self) -> None:
        self._node.kill()
        self._node.start()

    # --- the end ---
    def end(self) -> int:
        """Judges, and returns how many rows committed."""
        self._is_over.set()
        for thread in self._writers:
            thread.join(60)
        assert not self._failed, self._failed
        while self._database.state_of():
            before = self._batch()
            wait_until(
                lambda: self._batch() > before or not self._database.state_of(),  # noqa: B023
                MOVES_WITHIN, "the rest is sent",
            )  # fmt: skip
        expected: dict[int, list[int]] = {}
        for key, n in self._database.rows(
            f"SELECT k, n FROM {self._database.name}_ledger ORDER BY k, n"
        ):
            expected.setdefault(key, []).append(n)
        found: dict[int, list[int]] = {}
        with (
            self._node.connect() as client,
            client.consumer(self._topic, isolation="read_committed", follow=False) as consumer,
        ):
            for record in consumer:
                assert record.value != NEVER, record
                found.setdefault(int(record.key or b""), []).append(int(record.value or b""))
        for key, numbers in expected.items():
            differing = _differing(numbers, found.get(key, []))
            assert found.get(key) == numbers, f"key {key}: {differing}"
        assert found.keys() == expected.keys()
        return sum(map(len, expected.values()))

    def close(self) -> None:
        self._is_over.set()
        for relay in self._relays:
            relay.kill()
            relay.wait(10)
        for thread in self._writers:
            thread.join(60)
        self._log.close()


def _passing() -> tuple[type[Exception], ...]:
    """What connections raise while the database is away."""
    import sqlite3

    import psycopg

    from penstock.core.errors import NotConnectedError

    return (sqlite3.OperationalError, psycopg.OperationalError, NotConnectedError)


def _differing(numbers: list[int], found: list[int]) -> str:
    doubled = [n for n, count in Counter(found).items() if count > 1]
    lost = sorted({*numbers} - {*found})
    place = next((at for at, (a, b) in enumerate(zip(numbers, found, strict=False)) if a != b), -1)
    return f"lost {lost[:10]}, doubled {doubled[:10]}, first difference at {place}"
