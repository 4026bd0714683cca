"""A share group that keeps its promises, as a model: workers that die, stop, answer late or not.

`ShareWorld(seed).run(steps)` gives the lines of a made-up run, like `ideal.World`. A worker that
was stopped is taken for gone: what it had goes to others, it hands out what it has at hand all the
same, and what it answers is late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from histories.events import SHARED
from histories.ideal import Lines, Place, World
from histories.share_checks import STORY_MAX

KEYS = 3
ANSWERS = ("ack", "ack", "ack", "ack", "nack", "release", "reject")


class Taken(NamedTuple):
    """A record in the hands of a worker."""

    place: Place
    offset: int
    value: int
    lease: int
    deliveries: int

    @property
    def name(self) -> list[Any]:
        return [*self.place, self.offset, self.lease]

    @property
    def row(self) -> list[Any]:
        return [
            *self.place, self.offset, self.value, self.lease, self.deliveries, key_of(self.value),
        ]  # fmt: skip


def key_of(value: int) -> str:
    return f"key-{value % KEYS}"


@dataclass(slots=True, eq=False)
class Worker:
    """`queue`: what it has leased and not handed out; `held`: handed out and not answered for;
    `said`: its answers that are not sent."""

    who: str
    queue: list[Taken] = field(default_factory=list)
    held: list[Taken] = field(default_factory=list)
    said: list[tuple[Taken, str]] = field(default_factory=list)
    late: int = 0


@dataclass(slots=True)
class Job:
    """What the coordinator knows of a record. `lease`: of whom has it; None: it waits for one."""

    deliveries: int = 0
    lease: int | None = None
    worker: Worker | None = None
    is_over: bool = False
    is_dead: bool = False


class ShareWorld(World):
    """See the module."""

    def __init__(self, seed: int, *, batch_max: int = 6) -> None:
        super().__init__(seed, batch_max=batch_max)
        self.groups = []
        self.topics = ("in", "also")
        self.max_deliveries = self.rng.choice([0, 2, 3, 5])
        self.order = self.rng.choice(["", "key"])
        self.workers: list[Worker] = []
        self.jobs: dict[tuple[Place, int], Job] = {}
        self.leases = dict.fromkeys(self._places(self.topics), 0)
        self.hired = 0

    # --- the coordinator ---
    def _lease(self, worker: Worker, most: int) -> None:
        """What may be had, up to so many records, goes into the worker's queue."""
        for place in self._places(self.topics):
            lease = self.leases[place] = self.leases[place] + 1
            busy = set[str]()
            for offset, entry in enumerate(self.logs[place][: self.stable(place)]):
                if entry.value is None or (entry.txn is not None and not entry.txn.committed):
                    continue
                job = self.jobs.setdefault((place, offset), Job())
                if self.order and not job.is_over:
                    if (key := key_of(entry.value)) in busy:
                        continue
                    busy.add(key)
                if most and job.lease is None and not job.is_over:
                    most -= 1
                    job.lease, job.worker = lease, worker
                    job.deliveries += 1
                    worker.queue.append(Taken(place, offset, entry.value, lease, job.deliveries))

    def _settle(self, taken: Taken, by: str) -> bool:
        """Whether the answer counts."""
        job = self.jobs[taken.place, taken.offset]
        if job.lease != taken.lease:
            return False
        if by == "ack":
            job.is_over = True
        elif by == "release":
            job.deliveries -= 1
        else:
            job.is_dead = by == "reject" or 0 < self.max_deliveries <= job.deliveries
            job.is_over = job.is_dead
        job.lease = job.worker = None
        return True

    def _forget(self, worker: Worker) -> None:
        """It counts as gone."""
        for job in self.jobs.values():
            if job.worker is worker:
                job.is_dead = job.is_over = 0 < self.max_deliveries <= job.deliveries
                job.lease = job.worker = None

    # --- workers ---
    def hire(self) -> Worker:
        self.hired += 1
        worker = Worker(f"worker-{self.hired}")
        self.say(
            worker.who, "hello", role="worker", group="s", guarantee=SHARED,
            isolation="read_committed", topics=list(self.topics),
            max_deliveries=self.max_deliveries, order=self.order,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def work(self, worker: Worker) -> None:
        rng = self.rng
        self._lease(worker, rng.randint(0, 4))
        if rng.random() < 0.8:
            self._hand_out(worker)
        self._answer(worker, [each for each in worker.held if rng.random() < 0.7])
        if rng.random() < 0.7:
            self._send(worker)
        if rng.random() < 0.5:
            self._flush(worker)

    def _hand_out(self, worker: Worker) -> None:
        if worker.queue:
            self.say(worker.who, "taken", r=[taken.row for taken in worker.queue])
        worker.held += worker.queue
        worker.queue = []

    def _answer(self, worker: Worker, answered: list[Taken], by: str | None = None) -> None:
        for taken in answered:
            what = by or self.rng.choice(ANSWERS)
            self.say(worker.who, "answers", by=what, r=[taken.name])
            worker.said.append((taken, what))
            worker.held.remove(taken)

    def _send(self, worker: Worker) -> None:
        for taken, by in worker.said:
            worker.late += not self._settle(taken, by)
        worker.said = []

    def _flush(self, worker: Worker) -> None:
        self._send(worker)
        self.say(worker.who, "kept", late=worker.late)
        worker.late = 0

    def kill(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._forget(worker)

    def close(self, worker: Worker) -> None:
        self._hand_out(worker)
        self._answer(worker, [*worker.held], "release")
        self._flush(worker)
        self.workers.remove(worker)

    # --- the run ---
    def step(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.15:
            self.write()
        elif draw < 0.25:
            self.transact()
        elif draw < 0.3:
            self.read()
        elif draw < 0.4 or not self.workers:
            self.hire()
        else:
            worker = rng.choice(self.workers)
            rest = {0.46: self.kill, 0.5: self.close, 0.57: self._forget}
            next((it for upto, it in rest.items() if draw < upto), self.work)(worker)

    def run(self, steps: int) -> Lines:
        super().run(steps)
        return dict(self.lines)

    def finish(self) -> None:
        """Everybody that is there goes, and another worker does what is left."""
        for worker in [*self.workers]:
            self.close(worker)
        worker = self.hire()
        everything = 1 << 30
        self._lease(worker, everything)
        while worker.queue:
            self._hand_out(worker)
            self._answer(worker, [*worker.held], "ack")
            self._flush(worker)
            self._lease(worker, everything)
        places = self._places(self.topics)
        letters = [
            [*place, offset, self.logs[place][offset].value, job.deliveries,
             min(job.deliveries, STORY_MAX)]
            for (place, offset), job in self.jobs.items() if job.is_dead
            for _ in range(1 + (self.rng.random() < 0.1))
        ]  # fmt: skip
        self.say("harness", "dead", group="s", r=letters)
        self.say("harness", "drained", group="s", r=[[*p, len(self.logs[p])] for p in places])
        super().finish()
