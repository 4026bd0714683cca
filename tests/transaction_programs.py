"""Processes that tests stop and kill: `python transaction_programs.py PROGRAM URL TOPIC ...`."""

from __future__ import annotations

import sys
from typing import Any

import penstock


def zombie(url: str, topic: str) -> None:
    """Sends in a transaction that stays open until a line comes, then commits."""
    with penstock.connect(url) as client:
        producer = client.producer(transactional_id=topic, linger=0.0)
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"zombie", partition=partition).result()
        print("sent", flush=True)
        sys.stdin.readline()
        try:
            producer.send(topic, b"zombie again", partition=0)
            producer.commit_transaction()
            print("committed", flush=True)
        except penstock.PenstockError as error:
            print(type(error).__name__, flush=True)
        producer.close()


def job(url: str, source: str, target: str, name: str) -> None:
    """Reads, transforms and writes exactly once, until it is killed or nothing is left to read.
    Prints a line for each transaction that it committed."""
    with (
        penstock.connect(url) as client,
        client.producer(transactional_id=name, transaction_timeout=10.0) as producer,
        client.consumer(source, group=name, guarantee="exactly-once", start="earliest") as consumer,
    ):
        partitions = len(client.admin().describe_topic(source).partitions)
        print("ready", flush=True)
        while True:
            batch = consumer.poll(20, timeout=1.0)
            if not batch:
                lags = consumer.lag()
                if len(lags) == partitions and not any(lags.values()):
                    break
                continue
            with producer.transaction(consumed=batch):
                for record in batch:
                    producer.send(target, b"did " + (record.value or b""), key=record.key)
            print("committed", flush=True)
        print("idle", flush=True)


if __name__ == "__main__":
    programs: dict[str, Any] = {"zombie": zombie, "job": job}
    programs[sys.argv[1]](*sys.argv[2:])
