"""`penstock work MODULE:HANDLER`: processes that work on a queue, until they are told to stop.

One parent watches its workers; each worker is a process with a share consumer of its own. So a job
that ends its process costs that process alone: its other jobs go on elsewhere at once, and after
`--max-deliveries` the job is a dead letter.

    worker ends by itself or is killed   another is started after a pause that doubles, 0.1 to 5 s
    worker cannot begin (status 2)       all end: the handler or the options are wrong
    SIGTERM, Ctrl-C                      each finishes the job in hand and gives back the rest
    a second one, or --grace is over     they are killed
"""

from __future__ import annotations

import inspect
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.command import Env, ExitCode, command, guarded
from penstock.cli.loading import load
from penstock.cli.stopping import SIGNALS, Stopper
from penstock.core import errors as er
from penstock.ipc.liveness import end_with_parent
from penstock.operations.wording import counted

if TYPE_CHECKING:
    from penstock.client.share.consumer import ShareConsumer
    from penstock.client.share.jobs import Job

logger = logging.getLogger("penstock.work")

PROCESSES_MAX: Final = 256
POLL_SECONDS: Final = 0.2
"""Between two looks for a signal: a member of a group is not to be torn out of a poll."""
PAUSE_MIN: Final = 0.1
PAUSE_MAX: Final = 5.0
"""Seconds before a worker that ended is replaced."""
STEADY: Final = 10.0
"""Seconds after which a worker counts as one that runs."""

Handler = Callable[["Job"], object]


def add_to(app: typer.Typer) -> None:
    command(app, "work")(work)


def work(
    env: Env,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="The module, found from this folder on, and a function of one job.",
        ),
    ],
    topics: Annotated[
        list[str], typer.Option("-t", "--topic", metavar="TOPIC", help="May be repeated.")
    ],
    group: Annotated[str, typer.Option("-g", "--group", metavar="GROUP", help="Of the workers.")],
    processes: Annotated[
        int, typer.Option("-c", "--processes", min=1, max=PROCESSES_MAX, help="Workers.")
    ] = 1,
    max_deliveries: Annotated[
        int,
        typer.Option(min=0, max=255, help="Then a job that fails is a dead letter. 0: no end."),
    ] = 5,
    backoff: Annotated[
        tuple[float, float],
        typer.Option(metavar="FIRST LONGEST", help="Seconds that a failed job waits."),
    ] = (1.0, 300.0),
    order: Annotated[
        str, typer.Option(metavar="key", help="Jobs of one key one after the other.")
    ] = "",
    fair: Annotated[
        str, typer.Option(metavar="key|header:NAME", help="Tenants that take turns.")
    ] = "",
    dead_letters: Annotated[
        str,
        typer.Option(metavar="TOPIC", help="{topic} is the job's; empty: none are written."),
    ] = "{topic}.dlq",
    otel: Annotated[
        bool, typer.Option("--otel", help="Trace jobs, by OpenTelemetry's global provider.")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="For the job in hand, at the end.")
    ] = 30.0,
) -> int:
    """Call a handler for each record of topics, in several processes, until SIGTERM or Ctrl-C.

    A job is done when the handler returns. Where it raises, the job comes again after a backoff.
    Records go to one worker of the group at a time; what a killed worker had goes to others at
    once. -v tells what runs, and each failure with its traceback."""
    options = {
        "group": group,
        "max_deliveries": max_deliveries or None,
        "backoff": backoff,
        "order": order or None,
        "fair": fair or None,
        "dead_letters": dead_letters or None,
    }

    def begin() -> int:
        return _work(env, target, topics, options, is_traced=otel)

    return _Pool(env, begin, processes, grace).run()


class _Pool:
    """The parent. Has no client and no thread of its own, so that it can fork."""

    def __init__(self, env: Env, begin: Callable[[], int], processes: int, grace: float) -> None:
        self._env = env
        self._begin = begin
        self._grace = grace
        self._missing = processes
        self._workers: dict[int, tuple[int, float]] = {}
        """By its pid: a pidfd of it, and when it began."""
        self._pause = PAUSE_MIN
        self._next = 0.0
        self._failure = ExitCode.DONE
        self._pid = os.getpid()

    def run(self) -> int:
        with Stopper() as stopper:
            try:
                while not stopper.requested and not self._failure:
                    self._fill()
                    self._wait(stopper)
                self._stop(signal.SIGTERM)
                deadline = time.monotonic() + self._grace
                while self._workers and time.monotonic() < deadline:
                    self._wait(None, deadline - time.monotonic())
            finally:  # also by a second signal
                killed = len(self._workers)
                self._stop(signal.SIGKILL)
                while self._workers:
                    self._wait(None)
        if killed:
            what = f"{counted(killed, 'worker')} {'was' if killed == 1 else 'were'}"
            self._env.say(f"penstock: {what} killed with a job in hand")
            return ExitCode.PARTLY
        return self._failure

    def _fill(self) -> None:
        while self._missing and time.monotonic() >= self._next:
            # The parent's handlers are not the worker's: a signal right behind the fork would only
            # tell the parent to stop.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                pid = os.fork()
                if pid == 0:
                    os._exit(self._in_child(mask))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._workers[pid] = os.pidfd_open(pid), time.monotonic()
            self._missing -= 1
            logger.info("worker %d begins", pid)

    def _in_child(self, mask: Collection[int]) -> int:
        """Runs a worker in its process and returns the status. The worker tells its own errors."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd, _ in self._workers.values():
            os.close(fd)
        if not end_with_parent(self._pid, signal.SIGTERM):
            return ExitCode.DONE
        try:
            return guarded(self._env, self._begin)
        except BaseException:  # nothing of the parent's may be done by its worker
            logger.exception("worker %d ends", os.getpid())
            return ExitCode.FAILED
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _wait(self, stopper: Stopper | None, seconds: float | None = None) -> None:
        """Until a worker ended, a stop is wanted, or one is to be started."""
        poller = select.poll()
        by_fd = {fd: pid for pid, (fd, _) in self._workers.items()}
        for fd in (*by_fd, *(() if stopper is None else (stopper.fileno(),))):
            poller.register(fd, select.POLLIN)
        if self._missing and stopper is not None:
            seconds = max(self._next - time.monotonic(), 0.0)
        for fd, _ in poller.poll(None if seconds is None else seconds * 1000):
            if fd in by_fd:
                self._ended(by_fd[fd])

    def _ended(self, pid: int) -> None:
        fd, since = self._workers.pop(pid)
        os.close(fd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._missing += 1
        if status == ExitCode.USAGE:
            self._failure = ExitCode.FAILED
        elif status:
            lived = time.monotonic() - since
            self._pause = PAUSE_MIN if lived > STEADY else min(self._pause * 2, PAUSE_MAX)
            self._next = time.monotonic() + self._pause
            why = f"by signal {-status}" if status < 0 else f"with status {status}"
            self._env.say(f"penstock: worker {pid} ended {why}; its jobs go to others")

    def _stop(self, number: signal.Signals) -> None:
        for fd, _ in self._workers.values():
            signal.pidfd_send_signal(fd, number)


# --- a worker -------------------------------------------------------------------------------------
def _work(
    env: Env, target: str, topics: list[str], options: dict[str, Any], *, is_traced: bool
) -> int:
    with Stopper(patient=True) as stopper:
        handler = _handler(target)
        if is_traced:
            handler = _traced(handler, options["group"])
        with env.connect() as client, client.share_consumer(*topics, **options) as jobs:
            _loop(handler, jobs, stopper)
            found = jobs.metrics()
    logger.info("worker %d ends: %d done, %d failed", os.getpid(), found["acked"], found["nacked"])
    return ExitCode.DONE


def _traced(handler: Handler, group: str) -> Handler:
    from penstock.client.tracing import Tracing

    tracing = Tracing()

    def traced(job: Job) -> object:
        with tracing.process(job, group):
            return handler(job)

    return traced


def _handler(target: str) -> Handler:
    try:
        what = "a function of one job by MODULE:HANDLER, such as images:resize"
        _, _, found = load(target, what)
    except er.ConfigError:
        raise
    except Exception as error:
        logger.exception("%s cannot be loaded", target)
        raise er.ConfigError(f"{target} cannot be loaded: {error!r}") from error
    if not callable(found):
        raise er.ConfigError(f"{target} is no function of one job: it is {found!r}")
    if inspect.iscoroutinefunction(found):
        raise er.ConfigError(
            f"{target} is a coroutine function: `penstock work` calls plain ones; use "
            "penstock.aio and its share_consumer for coroutines"
        )
    handler: Handler = found
    return handler


def _loop(handler: Handler, jobs: ShareConsumer, stopper: Stopper) -> None:
    """Few jobs at a time where they take long, so that the others can go elsewhere."""
    from penstock.client.consumer.group.run_length import RunPace

    pace = RunPace()
    while not stopper.requested:
        batch = jobs.poll(pace.records, timeout=POLL_SECONDS)
        begun = time.monotonic()
        for job in batch:
            if stopper.requested:
                job.release()
                continue
            try:
                with job:
                    handler(job)
            except Exception:
                logger.exception(
                    "%s-%d at offset %d failed, delivery %d",
                    job.topic, job.partition, job.offset, job.deliveries,
                    extra={"topic": job.topic, "partition": job.partition, "offset": job.offset},
                )  # fmt: skip
        if batch:
            pace.note(len(batch), time.monotonic() - begun)
