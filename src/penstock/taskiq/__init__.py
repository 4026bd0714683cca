"""A broker of taskiq on a share group: the extra `taskiq`.

    from penstock.taskiq import PenstockBroker

    broker = PenstockBroker("shm://", topic="tasks")

    @broker.task(priority=9)
    async def resize(name: str) -> None: ...

    await resize.kiq("cat.png")

Workers run by `taskiq worker module:broker`.
"""

from __future__ import annotations

from penstock.taskiq.broker import DeadLetterMiddleware, PenstockBroker

__all__ = ["DeadLetterMiddleware", "PenstockBroker"]
