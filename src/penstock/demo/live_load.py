"""The load of `penstock demo --console`: `python -m penstock.demo.live_load URL`.

    orders   a few hundred a second; most of them of one customer: a hot key
    billing  a group that keeps up with them
    shipping a group whose only member took records and never polls again: it is stuck
    mails    jobs of the queue `mailers`: some become dead letters, some take long

Ends with its parent, whose pipe it reads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client, connect
from penstock.client.share.jobs import Job
from penstock.core import errors as er
from penstock.demo.children import hear, say

ORDERS: Final = "orders"
MAILS: Final = "mails"
HOT: Final = b"customer-7"
HOT_SHARE: Final = 3
"""Of so many orders all but one are of the hot key."""
CUSTOMERS: Final = 200
TICK: Final = 0.05
ORDERS_PER_TICK: Final = 12
MAIL_EVERY: Final = 10
"""So many ticks for a mail."""
LEASE: Final = 30.0
RETRY: Final = 1.0


def main(arguments: list[str]) -> None:
    [url] = arguments
    with connect(url, client_id="demo-load", timeout=20.0) as client:
        make_topics(client)
        for name, work in (("orders", produce), ("billing", bill), ("mailers", send_mails)):
            begin(name, work, client)
        hang(client)
        say("ready")
        while hear(None) != "end":
            pass


def make_topics(client: Client) -> None:
    with client.admin() as admin:
        admin.create_topic(ORDERS, TopicConfig(partitions=4, retention=3600.0), if_not_exists=True)
        admin.create_topic(MAILS, TopicConfig(partitions=2), if_not_exists=True)


def begin(name: str, work: Callable[[Client], None], client: Client) -> None:
    """Does this work until the process ends, also while brokers die."""

    def again_and_again() -> None:
        while True:
            try:
                work(client)
            except er.ClosedError:
                return
            except er.PenstockError:
                time.sleep(RETRY)

    threading.Thread(target=again_and_again, name=name, daemon=True).start()


def produce(client: Client) -> None:
    """Sends orders, and mails about some of them."""
    number = 0
    with client.producer(acks="all", client_id="shop") as producer:
        while True:
            for _ in range(ORDERS_PER_TICK):
                number += 1
                key = HOT if number % HOT_SHARE else b"customer-%d" % (number % CUSTOMERS)
                order = {"order": number, "customer": key.decode(), "total": number * 7 % 100}
                producer.send(ORDERS, msgspec.json.encode(order), key=key)
            if number // ORDERS_PER_TICK % MAIL_EVERY == 0:
                address = f"c{number}@shop.example" if number % 5 else ""
                mail = {"to": address, "order": number}
                producer.send(MAILS, msgspec.json.encode(mail), headers={"tenant": b"shop"})
            time.sleep(TICK)


def bill(client: Client) -> None:
    """Keeps up with the orders."""
    with client.consumer(ORDERS, group="billing", client_id="billing") as consumer:
        for _ in consumer:
            pass


def send_mails(client: Client) -> None:
    """Answers for each mail; one without an address is given up, one in twenty is worked on for
    long."""
    with client.share_consumer(MAILS, group="mailers", client_id="mailer") as jobs:
        held: deque[tuple[float, Job]] = deque()
        while True:
            for job in jobs.poll(20, timeout=0.5):
                mail = msgspec.json.decode(job.value or b"{}")
                if not mail["to"]:
                    job.reject(f"ValueError: order {mail['order']} has no address")
                elif mail["order"] % 19 == 0:
                    held.append((time.monotonic() + LEASE, job))
                else:
                    job.ack()
            while held and held[0][0] <= time.monotonic():
                held.popleft()[1].ack()


def hang(client: Client) -> None:
    """Takes some orders in the group `shipping`, and never asks again."""
    consumer = client.consumer(ORDERS, group="shipping", client_id="shipping")
    taken = 0
    while taken < 5:
        taken += len(consumer.poll(5, timeout=1.0))


if __name__ == "__main__":
    main(sys.argv[1:])
