"""A member is given a partition before its writer has opened it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.testing import Broker, wait_until

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
