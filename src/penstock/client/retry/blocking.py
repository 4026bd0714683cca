"""Carries the steps of a run out in a thread, and has signals end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.app.handler import Handler
from penstock.client.consumer.records import Record
from penstock.client.retry.steps import HandleStep, Step, Steps, WaitStep
from penstock.client.stop_signals import stopped_by_signals
from penstock.core.errors import ConfigError
from penstock.ipc.waits import run


def carry_out(handler: Handler, steps: Steps[None], stop: Callable[[], object]) -> None:
    """Raises what ends the steps, also what is no Exception."""
    if handler.is_async:
        raise ConfigError(
            f"handler {handler.name} is a coroutine function: run() of a blocking consumer calls "
            "plain ones; use penstock.aio for coroutines"
        )
    with stopped_by_signals(stop):
        drive(handler, steps)


def drive(handle: Callable[[Record[Any, Any]], object], steps: Steps[None]) -> None:
    """The same, where signals are another one's."""
    result, failure = None, None
    while True:
        try:
            step = steps.send(result) if failure is None else steps.throw(failure)
        except StopIteration:
            return
        result = failure = None
        try:
            result = _done(handle, step)
        except BaseException as error:  # the steps say what becomes of it
            failure = error


def _done(handle: Callable[[Record[Any, Any]], object], step: Step) -> Any:
    if isinstance(step, HandleStep):
        return handle(step.record)
    return run(step.waits) if isinstance(step, WaitStep) else step.work()
