"""An application of FastStream on Penstock, which `faststream run faststream_application:app` runs.

Handlers tell what they do in a file, one line each.
"""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from faststream.exceptions import NackMessage, RejectMessage
from pydantic import BaseModel
from told_lines import may_end, tell

from penstock import Retry
from penstock.faststream import PenstockBroker, PenstockResponse, PenstockRouter
from penstock.faststream.annotations import PenstockMessage

NAME = os.environ["NAME"]


class Order(BaseModel):
    number: int


router = PenstockRouter(f"{NAME}.")
broker = PenstockBroker(graceful_timeout=20.0)


@router.subscriber(
    "work", share_group=NAME, max_workers=int(os.environ["WORKERS"]), max_deliveries=3,
    backoff=(0.0, 0.0), session_timeout=1.0,
)  # fmt: skip
@router.publisher("done")
async def work(text: str, message: PenstockMessage) -> PenstockResponse:
    """`long ...` until a file of its name is there."""
    deliveries = message.raw_message.deliveries
    tell(f"begins {text} {deliveries}")
    if text.startswith("fails"):
        raise ValueError(text)
    if text.startswith("rejects"):
        raise RejectMessage(reason="not mine")
    if text.startswith("later") and deliveries == 1:
        raise NackMessage(delay=0.05, reason="not yet")
    while text.startswith("long") and not may_end(text):
        await asyncio.sleep(0.02)
    tell(f"ends {text}")
    return PenstockResponse(text.upper(), key=text)


@router.subscriber("orders", group=f"{NAME}.orders", retry=Retry(max=2, backoff=(0.01,)))
def order(order: Order) -> None:
    tell(f"order {order.number}")
    if order.number < 0:
        raise ValueError(f"{order.number} is below 0")
    if order.number == 0:
        raise RejectMessage(reason="nothing to do")


broker.include_router(router)
app = FastStream(broker)
