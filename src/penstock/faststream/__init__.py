"""A broker of FastStream: the extra `faststream`.

    from faststream import FastStream
    from penstock.faststream import PenstockBroker

    broker = PenstockBroker("shm://")
    app = FastStream(broker)

    @broker.subscriber("pictures", share_group="resizing", max_workers=4)
    @broker.publisher("resized")
    async def resize(picture: Picture) -> Resized: ...

Applications run by `faststream run module:app`.
"""

from __future__ import annotations

from penstock.faststream.broker import PenstockBroker
from penstock.faststream.message import PenstockMessage
from penstock.faststream.producer import PenstockResponse
from penstock.faststream.registrator import PenstockPublisher, PenstockRoute, PenstockRouter
from penstock.faststream.testing import TestPenstockBroker

__all__ = [
    "PenstockBroker",
    "PenstockMessage",
    "PenstockPublisher",
    "PenstockResponse",
    "PenstockRoute",
    "PenstockRouter",
    "TestPenstockBroker",
]
