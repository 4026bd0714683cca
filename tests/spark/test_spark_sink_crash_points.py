"""Exactly once, whatever dies when: a streaming query's batches, driven as Spark drives them.

Each test is one crash point; what a reader of committed records has in the end is each row once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from node_helpers import eventually
from sink_driver import Job, Query, rows

import penstock
from penstock.spark import sink
from penstock.spark.staging import Staged
from penstock.testing import Broker


@pytest.fixture
def query(options):
    return Query(options)


def seen(client: penstock.Client, topic: str) -> list[bytes]:
    with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
        return sorted(record.value or b"" for record in consumer)


def is_stable(client: penstock.Client, topic: str) -> bool:
    """Nothing holds a reader of committed records back."""
    with (
        client.consumer(topic, isolation="read_committed") as reader,
        client.consumer(topic, isolation="read_uncommitted") as other,
    ):
        return reader.end_offsets() == other.end_offsets()


A, B, C, D = (rows(b"%c1" % letter, b"%c2" % letter) for letter in b"abcd")
ALL = [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2", b"d1", b"d2"]


# --- tasks ----------------------------------------------------------------------------------------
def test_nothing_is_seen_before_the_commit_and_all_of_it_after(client, topic, query):
    job = query.attempt(0).run([A, B], [C, D])
    assert seen(client, topic) == []
    job.commit()
    assert seen(client, topic) == ALL
    assert is_stable(client, topic)


def test_a_task_that_fails_is_retried(client, topic, query):
    def failing() -> Iterator[pa.RecordBatch]:
        yield A
        raise OSError("a disk is gone")

    job = query.attempt(0)
    with pytest.raises(OSError, match="a disk is gone"):
        job.task(failing())
    eventually(lambda: is_stable(client, topic), "what failed holds nobody back")
    job.run([A, B], [C, D]).commit()
    assert seen(client, topic) == ALL


def test_a_task_that_is_killed_is_retried(client, topic, query):
    job = query.attempt(0).run([C, D])
    job.killed([A])
    job.run([A, B]).commit()
    assert seen(client, topic) == ALL
    assert is_stable(client, topic)


def test_of_a_task_that_ran_twice_one_counts(client, topic, query):
    """Speculation, and retries of a stage of Spark's whose results were lost."""
    job = query.attempt(0)
    unheard = job.task([A, B])
    job.run([A, B], [C, D])
    late = job.task([C, D])
    job.commit()
    assert unheard != late
    assert seen(client, topic) == ALL
    assert is_stable(client, topic)


def test_a_task_that_goes_on_after_the_commit_writes_nothing(client, topic, query):
    job = query.attempt(0).run([A, B], [C, D])
    running = []

    def committed_meanwhile() -> Iterator[pa.RecordBatch]:
        yield A
        job.commit()
        running.append(1)
        yield B

    with pytest.raises(penstock.PenstockError, match=r"is not open: it was|is not known here"):
        job.task(committed_meanwhile())
    assert running
    assert job.task([A, B, C, D]).staged == Staged(None, 8, is_decided=True)  # tried again
    assert seen(client, topic) == ALL


def test_a_truncated_iterator_publishes_nothing(client, topic, query):
    """`write` ends normally where Spark's side of the task failed."""
    job = query.attempt(0)
    job.task([A])
    job.task([])
    assert seen(client, topic) == []
    job.run([A, B], [C, D]).commit()
    assert seen(client, topic) == ALL


# --- the driver -----------------------------------------------------------------------------------
def test_a_driver_that_dies_before_the_commit_begins_again(client, topic, query):
    query.attempt(0).run([A, B], [C, D])
    query.attempt(0).run([D, A], [], [C, B]).commit()  # partitioned in another way
    assert seen(client, topic) == ALL
    assert is_stable(client, topic)


def test_a_driver_that_dies_after_the_commit_finds_its_batch_done(client, topic, query):
    """Before Spark's own commit log has it: Spark runs the batch again."""
    query.attempt(0).run([A, B], [C, D]).commit()
    taken = []

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in (A, B, C, D):
            taken.append(batch)
            yield batch

    again = query.attempt(0).run(counted())
    assert [each.staged for each in again.messages] == [Staged(None, 8, is_decided=True)]
    assert len(taken) == 4, "what was not read to its end is not in Spark's state stores"
    again.commit()
    assert seen(client, topic) == ALL
    query.attempt(1).run([A]).commit()
    assert len(seen(client, topic)) == len(ALL) + 2


def test_a_driver_that_dies_again_and_again(client, topic, query):
    for number in range(5):
        query.attempt(0).run(*[[A, B]] * number, [C])
    query.attempt(0).run([A, B], [C, D]).commit()
    query.attempt(0).run([A, B, C, D]).commit()
    assert seen(client, topic) == ALL
    assert is_stable(client, topic)


def test_a_commit_without_an_answer_is_asked_again(broker, client, topic, query):
    """The answer is lost with the node; Spark aborts what it takes for failed and runs it again."""
    job = query.attempt(0).run([A, B], [C, D])
    job.commit()
    broker.restart(kill=True)
    job.commit()
    job.abort()
    query.attempt(0).run([A, B], [C, D]).commit()
    eventually(lambda: seen(client, topic) == ALL, "each row once")


def test_what_was_staged_outlives_the_node(broker, client, topic, query):
    job = query.attempt(0).run([A, B])
    broker.restart(kill=True)
    job.run([C, D])
    broker.restart(kill=True)
    job.commit()
    eventually(lambda: seen(client, topic) == ALL, "each row once")


def test_an_old_driver_that_commits_meanwhile_has_done_it(client, topic, query):
    """It was cut off, another one was started, and both are there for a while."""
    old = query.attempt(0).run([A, B], [C, D])
    new = query.attempt(0)
    old.commit()  # before the new one has staged anything
    new.run([A, B, C], [D])
    new.commit()
    assert seen(client, topic) == ALL


def test_an_old_driver_is_refused_once_another_one_has_begun(client, topic, query):
    old = query.attempt(0).run([A, B], [C, D])
    new = query.attempt(0).run([A, B])
    with pytest.raises(penstock.TransactionError, match="Nothing was decided"):
        old.commit()
    old.abort()
    new.run([C, D]).commit()
    assert seen(client, topic) == ALL
    old.commit()  # by now it was done by another
    assert seen(client, topic) == ALL


def test_a_new_attempt_ends_what_a_dead_one_left(client, topic, query):
    """Its first stage does, long before the batch is committed."""
    query.attempt(0).run([A], [B])
    with client.producer() as producer:
        for partition in range(3):
            producer.send(topic, b"plain", partition=partition)
    assert len(seen(client, topic)) < 3
    query.attempt(0).run([A])

    def ended() -> bool:
        of_query = f"spark-{query.id}"
        listed = client.admin().list_transactions()
        return [t.partitions for t in listed if t.transactional_id == of_query] == [1]

    eventually(ended, "one stage is left")


# --- abort ----------------------------------------------------------------------------------------
def test_an_abort_ends_stages_and_decides_nothing(client, topic, query):
    job = query.attempt(0).run([A, B], [C, D])
    job.messages.append(None)  # of a task that failed
    job.abort()
    eventually(lambda: is_stable(client, topic), "nobody is held back")
    assert seen(client, topic) == []
    query.attempt(0).run([A, B], [C, D]).commit()
    assert seen(client, topic) == ALL


def test_an_abort_after_the_commit_undoes_nothing(client, topic, query):
    job = query.attempt(0).run([A, B], [C, D])
    job.commit()
    job.abort()
    assert seen(client, topic) == ALL
    query.attempt(0).run([A]).commit()
    query.attempt(1).run([]).commit()
    assert seen(client, topic) == ALL


def test_a_commit_that_comes_after_an_abort_is_refused_and_tried_again(client, topic, query):
    job = query.attempt(0).run([A, B], [C, D])
    job.abort()
    with pytest.raises(penstock.TransactionError, match="Nothing was decided"):
        job.commit()
    query.attempt(0).run([A, B], [C, D]).commit()
    assert seen(client, topic) == ALL


def test_an_abort_without_a_node_gives_way(broker, topic, query, caplog, monkeypatch):
    monkeypatch.setattr(sink, "ABORT_WITHIN", 0.3)
    job = query.attempt(0).run([A])
    broker.stop()
    try:
        job.abort()
    finally:
        broker.start()
    assert "end with the next attempt" in caplog.text


def test_a_batch_that_somebody_decided_against_is_an_error(client, topic, query):
    client.commit_transaction(f"spark-{query.id}", 0, [], commit=False)
    job = query.attempt(0).run([A])
    with pytest.raises(penstock.TransactionError, match="as an abort: none of its rows is there"):
        job.commit()


# --- nothing to write -----------------------------------------------------------------------------
def test_batches_without_rows_or_without_tasks(client, topic, query):
    query.attempt(0).run().commit()
    query.attempt(1).run([], [A.slice(0, 0)]).commit()
    query.attempt(2).run([A, B], []).commit()
    query.attempt(3).run().abort()
    query.attempt(3).run([C, D]).commit()
    assert seen(client, topic) == ALL


def test_a_batch_that_had_no_rows_before_the_crash_and_has_some_after(client, topic, query):
    query.attempt(0).run().commit()
    query.attempt(0).run([A, B], [C, D]).commit()
    assert seen(client, topic) == ALL


# --- whose batch it is ----------------------------------------------------------------------------
def test_a_new_checkpoint_with_the_same_txn_id_writes_anew(client, topic, options):
    named = {**options, "txnId": "job"}
    Query(named).attempt(0).run([A, B]).commit()
    Query(named).attempt(0).run([C, D]).commit()
    assert seen(client, topic) == ALL


def test_two_queries_with_one_txn_id_do_not_meet(client, topic, options):
    one, two = (Query({**options, "txnId": "both"}) for _ in range(2))
    jobs = one.attempt(0).run([A, B]), two.attempt(0).run([C, D])
    one.attempt(0).run([A])  # ends what the first attempt of `one` left, and nothing of `two`
    one.attempt(0).run([A, B]).commit()
    jobs[1].commit()
    assert seen(client, topic) == ALL


def test_the_query_and_the_batch_name_the_transaction(client, query, options):
    query.attempt(7).run([A]).commit()
    Query({**options, "txnId": "mine"}).attempt(0).run([A]).commit()
    names = {each.transactional_id for each in client.admin().list_transactions()}
    assert f"spark-{query.id}" in names
    assert any(name.startswith("mine-") for name in names)


def test_a_commit_of_rows_of_another_batch_is_refused(client, topic, query):
    job = query.attempt(0).run([A])
    job.batch = 1
    with pytest.raises(penstock.PenstockError, match="batch 1 is to be committed with rows of epo"):
        job.commit()
    assert seen(client, topic) == []


def test_a_commit_without_the_word_of_a_task_is_refused(client, topic, query):
    job = query.attempt(0).run([A])
    job.messages.append(None)
    with pytest.raises(penstock.PenstockError, match="1 of 2 tasks did not say what they staged"):
        job.commit()
    assert seen(client, topic) == []


def test_a_task_that_knows_no_query_stages_nothing(options):
    job = Job(options, streaming=True)
    with pytest.raises(penstock.PenstockError, match=r"sql\.streaming\.queryId"):
        job.run([A])


# --- time -----------------------------------------------------------------------------------------
def test_what_nobody_commits_in_time_is_swept_and_can_be_written_again():
    with Broker(options={"stage_timeout": 0.5}) as broker, broker.connect() as client:
        broker.create_topic("slow")
        query = Query({"bootstrap": broker.url, "topic": "slow"})
        late = query.attempt(0).run([A, B])
        eventually(lambda: is_stable(client, "slow"), "swept")
        with pytest.raises(penstock.TransactionError, match=r"swept after stage_timeout=0\.5 s"):
            late.commit()
        query.attempt(0).run([A, B], [C, D]).commit()
        assert seen(client, "slow") == ALL
