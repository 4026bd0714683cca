"""Calls a handler for each job of a share group, and answers for it.

    the handler returns            done, once what it sent is delivered
    it raises                      the job comes again after the group's backoff, and is a dead
                                   letter in the end
    its value cannot be decoded    a dead letter at once
    a stop                         the job in hand is finished, the others go back uncounted

Few jobs are taken at a time where they take long, so that others get the rest. Owns that order.
Never touches threads, signals or other workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.client.app.known_errors import KnownErrors
from penstock.client.consumer.group.run_length import RunPace
from penstock.client.consumer.records import place_of
from penstock.client.share.consumer import ShareConsumer
from penstock.client.share.jobs import Job, told_of
from penstock.serializers.serializer import DecodeError

logger = logging.getLogger("penstock.app")

POLL_SECONDS: Final = 0.2
"""Between two looks whether to stop, while nothing comes."""


class JobLoop:
    """`call` the handler `name`; `flush` what it sent."""

    def __init__(
        self,
        consumer: ShareConsumer,
        name: str,
        call: Callable[[Job], None],
        flush: Callable[[], None],
        stopping: threading.Event,
        counts: dict[str, int],
    ) -> None:
        self._consumer = consumer
        self._name = name
        self._call = call
        self._flush = flush
        self._stopping = stopping
        self._counts = counts
        self._told = KnownErrors()

    def run(self) -> None:
        """Until a stop. Raises what is no failure of the handler: jobs without an answer go back
        when the consumer is closed."""
        pace, stopping = RunPace(), self._stopping
        while not stopping.is_set():
            batch = self._consumer.poll(pace.records, timeout=POLL_SECONDS)
            begun = time.monotonic()
            done = []
            for job in batch:
                if stopping.is_set():
                    job.release()
                elif self._handle(job):
                    done.append(job)
            if done:
                self._flush()
                self._consumer.ack_many(done)
            if batch:
                pace.note(len(batch), time.monotonic() - begun)

    def _handle(self, job: Job) -> bool:
        """Whether it is done; else it has its answer."""
        group = self._consumer.group
        try:
            self._call(job)
        except DecodeError as error:
            self._counts["dead_letters"] += 1
            logger.error("group %s: a dead letter: %s", group, error)
            job.reject(reason=told_of(error))
        except Exception as error:
            self._counts["retried"] += 1
            shows = self._told.is_new(error) or logger.isEnabledFor(logging.INFO)
            logger.warning(
                "group %s: %s failed at %s, delivery %d: %r",
                group, self._name, place_of(job), job.deliveries, error,
                exc_info=error if shows else None,
            )  # fmt: skip
            job.nack(reason=told_of(error))
        else:
            self._counts["handled"] += 1
            return True
        return False
