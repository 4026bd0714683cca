"""Members that always have records to read, so that they never sleep on the word of their node."""

from __future__ import annotations

from penstock.testing import Broker, produce, wait_until


def test_a_busy_exactly_once_member_comes_back_to_a_restarted_node() -> None:
    """It commits by somebody else's transactions, so nothing of its own would notice."""
    with Broker() as broker:
        broker.create_topic("orders")
        produce(broker, "orders", [b"%d" % number for number in range(10)])
        with (
            broker.connect() as client,
            client.consumer(
                "orders", group="billing", guarantee="exactly-once", session_timeout=0.5
            ) as consumer,
        ):
            consumer.poll(1, timeout=25)
            broker.restart()

            def is_back() -> bool:
                """A transaction that is aborted again and again."""
                batch = consumer.poll(1, timeout=25)
                consumer.rewind(batch)
                with broker.connect() as other, other.admin() as admin:
                    members = admin.describe_group("billing").members
                return [one.is_connected for one in members] == [True] and bool(batch)

            wait_until(is_back, 20.0, "the member is attached to the new node")
