"""Errors that end a benchmark without a result."""

from __future__ import annotations

from penstock.core.errors import PenstockError


class BenchError(PenstockError):
    """The run cannot be made, or did not come to its end; the message says why."""


class BenchTimeout(BenchError, TimeoutError):
    """The run took longer than its `--timeout`."""


class MemberFailed(BenchError):
    """A producer or consumer process of the run failed; carries its traceback."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name} failed:\n{detail.rstrip()}")
        self.name = name
        self.detail = detail
