"""An application of taskiq on Penstock, which `taskiq worker taskiq_application:broker` runs.

Tasks tell what they do in a file, one line each.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from told_lines import may_end, tell

from penstock.taskiq import DeadLetterMiddleware, PenstockBroker

broker = PenstockBroker(
    topic=os.environ["TASKS"],
    group=os.environ["TASKS"],
    prefetch=int(os.environ["PREFETCH"]),
    session_timeout=1.0,
)
broker.add_middlewares(SmartRetryMiddleware(default_retry_count=3), DeadLetterMiddleware())


@broker.task
async def note(text: str) -> None:
    tell(f"note {text}")


@broker.task(retry_on_error=True, delay=0.0)
async def fails(text: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    tell(f"fails {text} {context.message.labels.get('_retries', 0)}")
    raise ValueError(text)


@broker.task
async def works(text: str) -> None:
    """Until a file of its name is there."""
    tell(f"begins {text}")
    while not may_end(text):
        await asyncio.sleep(0.02)
    tell(f"ends {text}")


@broker.task
def plain(number: int) -> int:
    tell(f"plain {number}")
    return number + 1
