"""Carries the steps of a run out in an event loop."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.client.aio.waits import Turns, WaitRunner, in_thread
from penstock.client.app.handler import Handler
from penstock.client.retry.steps import BlockStep, HandleStep, Step, Steps, WaitStep


async def carry_out(handler: Handler, steps: Steps[None], carrier: WaitRunner) -> None:
    """Raises what ends the steps, cancellation too."""
    turns = Turns()
    result, failure = None, None
    while True:
        try:
            step = steps.send(result) if failure is None else steps.throw(failure)
        except StopIteration:
            return
        result = failure = None
        try:
            result = await _done(handler, step, carrier)
            await turns.share()
        except BaseException as error:  # the steps say what becomes of it
            failure = error


async def _done(handler: Handler, step: Step, carrier: WaitRunner) -> Any:
    if isinstance(step, WaitStep):
        return await carrier.carry(step.waits)
    if isinstance(step, BlockStep):
        return await in_thread(step.work)
    result = handler(step.record) if isinstance(step, HandleStep) else step.work()
    return await result if inspect.isawaitable(result) else result
