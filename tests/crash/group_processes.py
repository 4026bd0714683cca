"""Members of groups, and the job that reads, transforms and writes, as processes of a history.

When is a record delivered? For a guarantee that may lose, once its handler could have had it: the
line is written before anything else is done. For one that may repeat, once its handler is through:
the line is written last, so a record whose handler died half-way must come again.
"""

from __future__ import annotations

import time
from typing import Any

from crash.history_processes import (
    WAIT_MAX,
    Stage,
    Transactor,
    isolated,
    poll_rows,
)

from penstock.core import errors as er

POLL_SECONDS = 0.1


class Membership:
    """A member's consumer and the events of its assignment."""

    def __init__(self, stage: Stage, client: Any) -> None:
        plan = stage.plan
        self.stage = stage
        self._begun = time.monotonic_ns()
        """When it last asked for records, and for what is its own."""
        stage.tell(
            "hello", role=plan["role"], group=plan["group"], guarantee=plan["guarantee"],
            isolation=plan["isolation"], topics=plan["topics"], outputs=plan.get("outputs", []),
        )  # fmt: skip
        self.consumer = stage.insist(
            lambda: client.consumer(
                *plan["topics"],
                group=plan["group"],
                guarantee=plan["guarantee"],
                **isolated(plan["isolation"]),
                node_timeout=WAIT_MAX,
                on_assigned=lambda names: self._tell("assigned", names),
                on_revoked=lambda names: self._tell("revoked", names),
                on_lost=lambda names: self._tell("revoked", names),
                **plan["options"],
            )
        )
        self._known: dict[Any, int] = {}
        self._looked = time.monotonic_ns()

    def poll(self) -> Any:
        """What came, if anything did. Partitions that come with it were given to it after this."""
        self.begin()
        return self.consumer.poll(self.stage.rng.choice([None, 1, 5, 50]), timeout=POLL_SECONDS)

    def begin(self) -> None:
        """Partitions that come from now on were given to it after this."""
        self._begun = time.monotonic_ns()

    def _tell(self, event: str, names: list[Any]) -> None:
        self.stage.tell(event, asked=self._begun, r=[list(name) for name in names])
        for name in names:
            self._known.pop(name, None)

    def tell_committed(self, event: str) -> None:
        """What is committed by now of the partitions that are its own, where that is news. It was
        asked for since the last look."""
        asked, self._looked = self._looked, time.monotonic_ns()
        committed = self.consumer.committed()
        news = {
            name: at
            for name, at in committed.items()
            if at is not None and at != self._known.get(name)
        }
        if news:
            self.stage.tell(event, asked=asked, r=[[*name, at] for name, at in news.items()])
            self._known.update(news)


def member(stage: Stage) -> None:
    work = {"at-most-once": _at_most_once, "manual": _manual}
    with stage.connect() as client:
        mine = Membership(stage, client)
        work.get(stage.plan["guarantee"], _at_least_once)(stage, mine)
        mine.consumer.close()


def _at_most_once(stage: Stage, mine: Membership) -> None:
    """By `poll`, or by the loop over records, which asks ahead and is left now and then."""
    plan = stage.plan
    while not stage.ending:
        if stage.rng.random() < 0.2:
            _claims_ahead(stage, mine)
        batch = mine.poll()
        if batch:
            stage.perhaps_die(plan["suicide"] / 2)
            mine.tell_committed("claimed")
            stage.tell("polls", r=poll_rows(batch))
            stage.perhaps_die(plan["suicide"])
            stage.pause()


def _claims_ahead(stage: Stage, mine: Membership) -> None:
    """What iterating over the consumer does, until nothing comes for a while: that has no bound."""
    plan, consumer = stage.plan, mine.consumer
    mine.begin()
    for batch in consumer._batches(lambda: consumer.loop_size, POLL_SECONDS, in_loop=True):
        for rows in consumer._runs(batch):
            mine.tell_committed("claimed")
            for record in rows:
                stage.perhaps_die(plan["suicide"] / 50)
                value = int(record.value.split(b",")[0])
                stage.tell(
                    "polls", r=[[record.topic, record.partition, [record.offset], [value], None]]
                )
                if stage.rng.random() < 0.002:
                    stage.pause()
                if stage.ending or stage.rng.random() < 0.002:
                    return
        mine.begin()


def _at_least_once(stage: Stage, mine: Membership) -> None:
    """By `poll`, or by the loop over records, which is left now and then."""
    plan, rng = stage.plan, stage.rng
    while not stage.ending:
        batch = mine.poll()
        mine.tell_committed("committed")
        if not batch:
            continue
        if rng.random() < 0.5:
            stage.pause()
            stage.perhaps_die(plan["suicide"])
            stage.tell("polls", r=poll_rows(batch))
            continue
        for record in mine.consumer.unpack(batch):
            if rng.random() < 0.02:
                stage.pause()
            stage.perhaps_die(plan["suicide"] / 10)
            value = int(record.value.split(b",")[0])
            stage.tell(
                "polls", r=[[record.topic, record.partition, [record.offset], [value], None]]
            )
            if stage.ending or rng.random() < 0.01:
                break


def _manual(stage: Stage, mine: Membership) -> None:
    plan = stage.plan
    while not stage.ending:
        batch = mine.poll()
        if not batch:
            continue
        stage.pause()
        stage.perhaps_die(plan["suicide"])
        stage.tell("polls", r=poll_rows(batch))
        asked = time.monotonic_ns()
        try:
            mine.consumer.commit(batch)
        except er.StaleGenerationError:
            continue
        ends = {(chunk.topic, chunk.partition): chunk.next_offset for chunk in batch.chunks}
        stage.tell("committed", asked=asked, r=[[*name, at] for name, at in ends.items()])


def job(stage: Stage) -> None:
    """Each input once: what it makes of a batch, and that it was consumed, in one transaction."""
    plan = stage.plan
    with stage.connect() as client:
        mine = Membership(stage, client)
        transactor = Transactor(stage, client)
        while not stage.ending:
            batch = mine.poll()
            if batch:
                _transform(stage, mine, transactor, batch)
                stage.perhaps_die(plan["suicide"])
        mine.consumer.close()


def _transform(stage: Stage, mine: Membership, transactor: Transactor, batch: Any) -> None:
    plan, rng = stage.plan, stage.rng
    rows = poll_rows(batch)
    stage.tell("polls", r=rows)
    ends = {(chunk.topic, chunk.partition): chunk.next_offset for chunk in batch.chunks}
    asked = time.monotonic_ns()
    try:
        n = transactor.begin()
        stage.tell("inputs", n=n, r=[[*row[:2], row[2][0], ends[row[0], row[1]]] for row in rows])
        sources = [value for row in rows for value in row[3]]
        sends = [[stage.value(), rng.choice(plan["outputs"])] for _ in sources]
        data = [b"%d,%d" % (send[0], source) for send, source in zip(sends, sources, strict=True)]
        transactor.send(sends, data)
        stage.perhaps_die(plan["suicide"])
        stage.pause()
    except er.PenstockError as error:
        transactor.failed(error, batch)
        committed = False
    else:
        committed = transactor.end(rng.random() < 0.9, batch)
    if committed:
        stage.tell("committed", asked=asked, r=[[*name, at] for name, at in ends.items()])
        return
    if transactor.producer is None:  # fenced, and so nobody rewound it
        mine.consumer.rewind(batch)
    stage.tell("sought", r=[list(name) for name in ends if name in mine.consumer.committed()])
