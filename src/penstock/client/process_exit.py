"""The end of a process: producers that nobody has closed send what they hold, and are closed; then
members of groups leave.

    the interpreter ends       `atexit`, registered by `import penstock`: other threads have ended,
                               a producer's own still runs
    a process that
    multiprocessing started    a finalizer of its own: such a process does not run `atexit`
    os._exit, a signal that
    ends it by default         nothing runs, so nothing is sent

It is not done before other threads are joined (`threading._register_atexit`): they may send until
they end. Daemon threads may run on; what they send after this is refused (`ClosedError`).

A member commits what is done by then, but not where records were not delivered: they may have been
made of it. One that a thread which still runs has polled is left alone; its node notices the end.

Owns the moment, its bound, and what is said of records that were not delivered. Never sends.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

# In a forked child, copies of the parent's connections are let go of before `_open` is emptied,
# which keeps some producers alive: hooks run in the order in which modules were loaded.
import penstock.client.fork_safety  # noqa: F401
from penstock.client.producer.config import ProducerConfig
from penstock.core.errors import DeliveryError, PenstockError, PenstockTimeout
from penstock.ipc.waits import Waits, run

logger = logging.getLogger("penstock.producer")

Failed = tuple[str, int, Exception, int]

EXPIRY_SLACK: Final = 1.0
"""Seconds behind its `delivery_timeout` until a producer is not waited for any more: deliveries
that are overdue fail first, with a reason."""
SILENT_MAX: Final = 1.0
"""Seconds for which the process waits before it says that it waits, and for what."""
NEVER: Final = -float("inf")
LAST: Final = -1000
"""The priority of the finalizer: behind those of the queues of multiprocessing."""


class _Unthreaded(Protocol):
    hand_over: Callable[[float], object]

    def begin_flush(self, callback: Callable[[], object], /) -> None: ...

    def waits_for(self) -> str: ...

    def raise_unseen(self) -> None: ...


class _Producer(Protocol):
    """The part of a producer that the end of a process uses."""

    config: ProducerConfig

    @property
    def unthreaded(self) -> _Unthreaded: ...

    def close(self, timeout: float | None, /) -> None: ...


class _Member(Protocol):
    """The part of a group member that the end of a process uses.

    `thread` is the last thread that polled.
    """

    @property
    def thread(self) -> int: ...

    def closing(self, *, commits: bool) -> Waits[None]: ...


_open: set[_Producer] = set()
"""Kept alive here: nobody else may know a producer that was not closed, and its records count."""
_members: weakref.WeakSet[_Member] = weakref.WeakSet()
_finalizer: Any = None
_is_over = False


def remember(producer: _Producer) -> None:
    """Closes it when this process ends, unless it is forgotten before."""
    _open.add(producer)
    _register_with_multiprocessing()


def forget(producer: _Producer) -> None:
    _open.discard(producer)


def remember_member(member: _Member) -> None:
    """Makes it leave its group when this process ends, unless it is forgotten before."""
    _members.add(member)
    _register_with_multiprocessing()


def forget_member(member: _Member) -> None:
    _members.discard(member)


def is_over() -> bool:
    """Whether the process is at its end, and its producers are closed for that."""
    return _is_over


def hint() -> str:
    """Returns the text that a closed producer adds to its refusal."""
    return ": this process is ending, see 'The end of a program' in the guide" if _is_over else ""


def _register_with_multiprocessing() -> None:
    """Registers the end of this process with multiprocessing, if multiprocessing started it.

    A program without multiprocessing does not load that module.
    """
    global _finalizer
    process = sys.modules.get("multiprocessing.process")
    if _finalizer is None and process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        _finalizer = Finalize(None, _end_of_child, exitpriority=LAST)


def _in_forked_child() -> None:
    """Forgets the open producers and members: they belong to the parent."""
    global _finalizer, _is_over
    _open.clear()
    _members.clear()
    _finalizer, _is_over = None, False


def _end_of_child() -> None:
    """multiprocessing joins the threads of such a process after its finalizers, by this call; it
    does nothing the second time."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        end()


def end() -> None:
    """Closes them all, and says what is lost. Called once, by the end of the process."""
    global _is_over
    _is_over = True
    _Leaving(list(_open), list(_members)).leave()


class _Leaving:
    """How the producers of a process are closed, side by side, within the bounds of each, and then
    its members of groups. A Ctrl-C takes away the time that is left."""

    def __init__(self, producers: list[_Producer], members: list[_Member]) -> None:
        self._producers = producers
        self._members = members
        self._failed: list[Failed] = []
        self._since = time.monotonic()

    def leave(self) -> None:
        self._try(self._begin)
        for producer in self._producers:
            self._close(producer)
        if self._failed:
            self._try(lambda: _tell(_in_words(self._failed)))
        running = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        for member in self._members:
            if member.thread not in running:
                self._part(member)

    def _begin(self) -> None:
        """Makes all of them send at once; says so where that takes a while."""
        told: queue.SimpleQueue[None] = queue.SimpleQueue()
        until = self._since + SILENT_MAX
        try:
            for producer in self._producers:
                with suppress(PenstockError):  # closed meanwhile
                    producer.unthreaded.begin_flush(lambda: told.put(None))
            for _ in self._producers:
                told.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            for producer in self._producers:
                if said := producer.unthreaded.waits_for():
                    _tell(f"{said}; waiting for up to delivery_timeout, Ctrl-C gives them up")

    def _close(self, producer: _Producer) -> None:
        """Closes one, and keeps what it could not deliver and nobody has asked about."""
        until = self._since + producer.config.delivery_timeout
        self._try(lambda: producer.unthreaded.hand_over(until))
        self._try(lambda: producer.close(max(0.0, until + EXPIRY_SLACK - time.monotonic())))
        self._try(producer.unthreaded.raise_unseen)

    def _part(self, member: _Member) -> None:
        commits = self._since != NEVER and not self._failed
        self._try(lambda: run(member.closing(commits=commits)))

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except DeliveryError as error:
            self._failed += error.failed
        except PenstockTimeout as error:
            logger.warning("at the end of the process: %s", error)
        except KeyboardInterrupt:
            self._since = NEVER
        except Exception:
            logger.exception("at the end of the process")


def _in_words(failed: list[Failed]) -> str:
    counts: Counter[str] = Counter()
    for topic, _, _, count in failed:
        counts[topic] += count
    listed = ", ".join(f"{count} for {topic!r}" for topic, count in counts.items())
    topic, partition, error, _ = failed[0]
    where = topic if partition < 0 else f"{topic}-{partition}"
    return (
        f"{counts.total()} records were not delivered when this process ended ({listed}); "
        f"first: {where}: {error}"
    )


def _tell(text: str) -> None:
    """In the log, and on stderr: who runs a program that ends sees one of them at least."""
    logger.error("%s", text)
    if logger.hasHandlers() and sys.stderr is not None:  # else logging has put it there itself
        with suppress(OSError, ValueError):
            print(f"penstock: {text}", file=sys.stderr, flush=True)


os.register_at_fork(after_in_child=_in_forked_child)
