"""The client for asyncio: the same verbs as `penstock`, awaited.

    from penstock import aio

    async with aio.connect("shm://") as client, client.consumer("orders") as consumer:
        async for record in consumer:
            ...

Calls that wait are awaited; the others are plain calls as in the blocking client. Reading and
sending are that client's own: this package only adds how an event loop waits.
"""

from __future__ import annotations

from penstock.client.aio.admin import Admin
from penstock.client.aio.client import Client, connect
from penstock.client.aio.consumer import Consumer
from penstock.client.aio.dead_letters import DeadLetterQueue
from penstock.client.aio.delivery import BatchDelivery, Delivery
from penstock.client.aio.group import GroupConsumer
from penstock.client.aio.producer import Producer
from penstock.client.aio.share import ShareConsumer
from penstock.client.aio.transactions import Stage, TransactionalProducer

__all__ = [
    "Admin", "BatchDelivery", "Client", "Consumer", "DeadLetterQueue", "Delivery",
    "GroupConsumer", "Producer", "ShareConsumer", "Stage", "TransactionalProducer", "connect",
]  # fmt: skip
