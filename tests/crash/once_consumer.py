"""A consumer whose results are rows of a database, for tests that kill it.

python once_consumer.py URL DSN TABLE TOPIC one|batch
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import penstock
from penstock.database.dsn import connect
from penstock.dedup import once


def main(url: str, dsn: str, table: str, topic: str, mode: str) -> None:
    with closing(connect(dsn)) as connection, penstock.connect(url) as client:
        consumer = client.consumer(
            topic, group=table, guarantee="at-least-once", commit_interval=0.05,
            session_timeout=1.0,
        )  # fmt: skip
        with consumer:
            while True:
                batch = consumer.poll(max_records=20, timeout=1.0)
                if mode == "batch":
                    for record in once(connection, table, batch, table=table):
                        keep(connection, table, record)
                    continue
                for record in batch:
                    with once(connection, table, record, table=table) as is_new:
                        if is_new:
                            keep(connection, table, record)


def keep(connection: Any, table: str, record: penstock.Record) -> None:
    connection.execute(
        f"INSERT INTO {table}_results VALUES ({record.partition}, {record.offset}, "
        f"{int(record.value or b'')})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
