"""Partitions that come to be while a group has members: opened late, written to at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.client.consumer.group.options import Guarantee
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.over_tcp


def test_a_partition_that_is_not_open_yet_is_read_once_it_is() -> None:
    """Its page is that of a deleted topic until then, and says nothing of where to begin."""
    with Broker(writers=2, options={"writer_stall_timeout": 120.0}) as broker:
        broker.create_topic("old", partitions=6)
        for partition in range(6):
            with broker.connect() as client, client.producer() as producer:
                producer.send_batch("old", [b"old"] * 50, partition=partition)
        with broker.connect() as client, client.admin() as admin:
            admin.delete_topic("old")
            broker.create_topic("orders", partitions=1)
            consumer = client.consumer("orders", group="billing")
            wait_until(lambda: not consumer.poll() and consumer.assignment(), 25.0, "it is joined")
            # The coordinator's writer goes on: the other one has half of the new partitions.
            busy = admin.describe_topic("__coordinator").partitions[0].writer
            writer = next(each.pid for each in admin.describe_node().writers if each.writer != busy)
            os.kill(writer, signal.SIGSTOP)
            adding = threading.Thread(target=admin.add_partitions, args=("orders", 4))
            adding.start()
            try:
                with broker.connect() as other, other.admin() as looking:

                    def is_given() -> bool:
                        consumer.poll()
                        found = looking.describe_group("billing").partitions
                        return len(found) == 4 and all(each.member_id for each in found)

                    wait_until(is_given, 25.0, "the member owns the new partitions")
                    consumer.poll(timeout=0.2)
            finally:
                os.kill(writer, signal.SIGCONT)
                adding.join(25)
            seen: list[bytes | None] = []
            with client.producer() as producer:
                for partition in range(4):
                    producer.send("orders", b"%d" % partition, partition=partition)

            def all_came() -> bool:
                seen.extend(record.value for record in consumer.poll(timeout=0.1))
                return len(seen) >= 4

            wait_until(all_came, 25.0, lambda: f"records of all partitions come: {seen}")
            assert set(seen) == {b"0", b"1", b"2", b"3"}
            consumer.close()


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
def test_what_is_written_to_a_new_partition_before_its_group_looks_is_not_passed_over(
    guarantee: Guarantee,
) -> None:
    """Also where the group begins at the latest: that was said of what was there then."""
    with Broker() as broker:
        broker.create_topic("orders", partitions=1)
        produce(broker, "orders", [b"before"])
        with (
            broker.connect() as client,
            client.admin() as admin,
            client.consumer(
                pattern="orders.*", group="g", guarantee=guarantee, start="latest"
            ) as c,
        ):
            wait_until(lambda: not c.poll() and c.assignment(), 25.0, "it is joined")
            c.poll()
            admin.add_partitions("orders", 2)
            broker.create_topic("orders-more")
            with client.producer() as producer:
                producer.send_batch("orders", [b"grown"] * 3, partition=1)
                producer.send_batch("orders-more", [b"more"] * 3)
            seen: list[bytes | None] = []

            def all_came() -> bool:
                seen.extend(record.value for record in c.poll(timeout=0.1))
                return len(seen) >= 6

            wait_until(all_came, 25.0, lambda: f"what was written meanwhile: {seen}")
            assert sorted(value or b"" for value in seen) == [b"grown"] * 3 + [b"more"] * 3
