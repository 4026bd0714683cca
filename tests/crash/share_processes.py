"""Workers of a share group, as processes of a history.

A record is handed out once its line is written, which is done before anything else; an answer is
announced before it is given. What the coordinator has of them a worker learns from `flush`, and
from its counter of answers that came too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from crash.history_processes import WAIT_MAX, Stage

from penstock.ipc.waits import run

POLL_SECONDS: Final = 0.1
FATES: Final = {"ack": 80, "nack": 6, "release": 5, "reject": 1, "later": 8}
"""What becomes of jobs that are taken together, in percent."""


class Workplace:
    """A worker's consumer, what it has in its hands, and the events of both."""

    def __init__(self, stage: Stage, client: Any) -> None:
        plan = stage.plan
        self.stage = stage
        options = plan["options"]
        stage.tell(
            "hello", role="worker", group=plan["group"], guarantee=plan["guarantee"],
            isolation=plan["isolation"], topics=plan["topics"],
            max_deliveries=options["max_deliveries"] or 0, order=options["order"] or "",
        )  # fmt: skip
        self.consumer = stage.insist(
            lambda: client.share_consumer(
                *plan["topics"], group=plan["group"], node_timeout=WAIT_MAX, **options
            )
        )
        self.held: list[Any] = []
        self._late = 0

    def take(self, jobs: Sequence[Any]) -> None:
        """They were handed out."""
        if jobs:
            rows = [[*_name(job)[:3], int(job.value), job._held.number, job.deliveries,
                     job.key and job.key.decode()] for job in jobs]  # fmt: skip
            self.stage.tell("taken", r=rows)

    def poll(self) -> None:
        """Some jobs, which mostly have one answer."""
        stage, rng = self.stage, self.stage.rng
        jobs = self.consumer.poll(rng.choice([None, 1, 5, 20]), timeout=POLL_SECONDS)
        self.take(jobs)
        self.held += jobs
        stage.perhaps_die(stage.plan["suicide"])
        stage.pause()
        parts = [self.held] if rng.random() < 0.5 else [[job] for job in self.held]
        for part in parts:
            by = rng.choices([*FATES], [*FATES.values()])[0]
            if by != "later":
                self.answer([*part], by)
        self.held = [job for job in self.held if not job.is_answered]
        stage.perhaps_die(stage.plan["suicide"])

    def answer(self, jobs: Sequence[Any], by: str) -> None:
        """All of them in the same way."""
        if not jobs:
            return
        self.stage.tell("answers", by=by, r=[_name(job) for job in jobs])
        delay = self.stage.rng.choice([None, 0.0, 0.05])
        for job in jobs:
            if by == "nack":
                job.nack(delay=delay, reason="it failed")
            else:
                getattr(job, by)()

    def loop(self) -> None:
        """What iterating over the consumer does, until nothing comes for a while: that has no
        bound. It is left now and then, with jobs at hand."""
        stage, rng, consumer = self.stage, self.stage.rng, self.consumer
        run(consumer._filling(consumer._loop_size, POLL_SECONDS))
        for job in consumer.handing_out():
            if job is None:
                run(consumer.attending())
                continue
            self.take([job])
            stage.perhaps_die(stage.plan["suicide"] / 10)
            fails = rng.random() < 0.05
            stage.tell("answers", by="nack" if fails else "ack", r=[_name(job)])
            try:
                with job:
                    if fails:
                        raise ValueError("it failed")
            except ValueError:
                pass
            if stage.ending or rng.random() < 0.01:
                return

    def finish(self) -> None:
        """As much as there is, and all of it is done."""
        jobs = self.consumer.poll(timeout=POLL_SECONDS)
        self.take(jobs)
        self.answer(jobs, "ack")
        self.flush()

    def flush(self) -> None:
        """All answers are kept, but those that are counted as late."""
        self.consumer.flush(WAIT_MAX)
        late = self.consumer.metrics()["stale"]
        self.stage.tell("kept", late=late - self._late)
        self._late = late


def work(stage: Stage) -> None:
    """Jobs by polls and by loops, whose answers are waited for now and then."""
    rng = stage.rng
    with stage.connect() as client:
        mine = Workplace(stage, client)
        while not stage.ending:
            if stage.plan.get("finishes"):
                mine.finish()
                continue
            mine.loop() if rng.random() < 0.3 else mine.poll()
            if rng.random() < 0.4:
                mine.flush()
                stage.perhaps_die(stage.plan["suicide"])
        mine.answer(mine.held, rng.choice(["ack", "release"]))
        mine.flush()
        mine.consumer.close()


def _name(job: Any) -> list[Any]:
    """By which an answer names what it is for."""
    return [job.topic, job.partition, job.offset, job._held.number]
