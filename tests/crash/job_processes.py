"""A worker that makes an output of each job in transactions, until it is killed or asked to end.

It tells what came of each transaction. A job whose transaction was aborted it tries again, fails or
gives back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from crash.history_processes import WAIT_MAX, Stage

from penstock.core import errors as er

POLL_SECONDS = 0.1


class HalfWayError(Exception):
    """Raised within a transaction."""


def make(stage: Stage) -> None:
    """Jobs of the plan's `group`, as `maker`, its transactional id."""
    plan = stage.plan
    with stage.connect() as client:
        jobs = stage.insist(
            lambda: client.share_consumer(
                plan["jobs"], group=plan["group"], max_deliveries=None, backoff=(0.0, 0.0),
                node_timeout=WAIT_MAX, session_timeout=plan["session_timeout"],
            )
        )  # fmt: skip
        try:
            producer = stage.insist(
                lambda: client.producer(
                    transactional_id=plan["maker"], timeout=WAIT_MAX, delivery_timeout=WAIT_MAX
                )
            )
        except er.ProducerFencedError:
            return  # its successor is there already
        stage.tell("hello", maker=plan["maker"])
        while not stage.ending:
            held = jobs.poll(stage.rng.choice([1, 2, 5, 20]), timeout=POLL_SECONDS)
            while held and not stage.ending:
                how = _transact(stage, producer, held)
                stage.tell(how, jobs=len(held))
                if how == "fenced":
                    return
                if how == "committed" or stage.rng.random() < 0.5:
                    break
            for job in held:
                if stage.rng.random() < 0.5:
                    job.release()
                else:
                    job.nack(0.0)
        jobs.close()
        producer.close()


def _transact(stage: Stage, producer: Any, held: list[Any]) -> str:
    """What came of a transaction that has done these jobs."""
    try:
        with producer.transaction(done=held):
            for job in held:
                producer.send(stage.plan["outputs"], job.value, key=job.value)
                stage.perhaps_die(0.002)
            if stage.rng.random() < 0.1:
                raise HalfWayError
        stage.perhaps_die(0.01)
    except HalfWayError:
        return "gave up"
    except er.StaleGenerationError:
        return "stale"
    except er.ProducerFencedError:
        return "fenced"
    except er.TransactionError:
        return "aborted"
    return "committed"


def outcomes(lines: list[bytes]) -> Counter[str]:
    """What a worker told, by kind."""
    return Counter(line.split(b'"')[3].decode() for line in lines)
