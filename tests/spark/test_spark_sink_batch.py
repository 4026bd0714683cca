"""`df.write`: what is published once, however often it is run; and which row goes where."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import numpy as np
import pyarrow as pa
from node_helpers import eventually
from sink_driver import VALUES, Job, rows

import penstock
from penstock.client.producer.partitioner import partition_of
from penstock.spark.sink import BATCH_ID


def records(client: penstock.Client, topic: str) -> list[penstock.Record]:
    with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
        return sorted(consumer, key=lambda record: (record.partition, record.offset))


def values(client: penstock.Client, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in records(client, topic))


def is_stable(client: penstock.Client, topic: str) -> bool:
    with (
        client.consumer(topic, isolation="read_committed") as reader,
        client.consumer(topic, isolation="read_uncommitted") as other,
    ):
        return reader.end_offsets() == other.end_offsets()


A, B = rows(b"a1", b"a2"), rows(b"b1", b"b2")
BOTH = [b"a1", b"a2", b"b1", b"b2"]


# --- once -----------------------------------------------------------------------------------------
def test_a_write_is_published_as_a_whole(client, topic, options):
    job = Job(options).run([A], [], [B])
    assert values(client, topic) == []
    job.commit()
    assert values(client, topic) == BOTH
    assert is_stable(client, topic)


def test_writes_without_a_txn_id_are_each_their_own(client, topic, options):
    for _ in range(2):
        Job(options).run([A]).commit()
    assert values(client, topic) == [b"a1", b"a1", b"a2", b"a2"]


def test_a_commit_that_is_done_again_changes_nothing(client, topic, options):
    job = Job(options).run([A], [B])
    job.commit()
    job.commit()
    job.abort()  # as after a commit without an answer
    assert values(client, topic) == BOTH


def test_an_abort_without_a_txn_id_ends_all_of_it(client, topic, options):
    job = Job(options).run([A])
    job.task([B])  # nobody heard of this one
    job.abort()
    eventually(lambda: is_stable(client, topic), "nobody is held back")
    with pytest.raises(penstock.TransactionError, match="as an abort"):
        job.commit()
    left_out = job.task([A])  # of a task that goes on
    assert left_out.staged.is_decided
    assert values(client, topic) == []


def test_a_write_with_a_txn_id_is_there_once_however_often_it_is_run(
    client, topic, options, caplog
):
    named = {**options, "txnId": topic}
    Job(named).run([A])  # its driver died
    Job(named).run([A], [B]).commit()
    for _ in range(2):
        Job(named).run([B], [A], [A]).commit()
    assert values(client, topic) == BOTH
    assert "epoch 0 of " in caplog.text
    assert "6 rows of this run are left out" in caplog.text
    Job({**named, "txnEpoch": "1"}).run([A]).commit()
    Job(named).run([A]).commit()
    assert values(client, topic) == sorted([*BOTH, b"a1", b"a2"])


def test_an_abort_with_a_txn_id_leaves_it_to_be_tried_again(client, topic, options):
    named = {**options, "txnId": topic}
    job = Job(named).run([A])
    job.abort()
    eventually(lambda: is_stable(client, topic), "nobody is held back")
    Job(named).run([A], [B]).commit()
    assert values(client, topic) == BOTH


def test_a_second_run_beside_the_first_takes_its_place(client, topic, options):
    """A scheduler that lost sight of the first one starts another: one of them is published."""
    named = {**options, "txnId": topic}
    first = Job(named).run([A])
    second = Job(named).run([A], [B])
    with pytest.raises(penstock.TransactionError, match="Nothing was decided"):
        first.run([B]).commit()
    first.abort()
    second.commit()
    assert values(client, topic) == BOTH


def test_a_txn_id_in_foreach_batch_needs_the_batch_as_its_epoch(client, topic, options):
    named = {**options, "txnId": topic}
    job = Job(named)
    job.properties = {BATCH_ID: "3"}
    with pytest.raises(penstock.ConfigError, match="without txnEpoch in a streaming query"):
        job.run([A])
    for batch in (3, 3, 4):
        job = Job({**named, "txnEpoch": str(batch)})
        job.properties = {BATCH_ID: str(batch)}
        job.run([A]).commit()
    assert values(client, topic) == [b"a1", b"a1", b"a2", b"a2"]


def test_ids_of_single_writes_do_not_pile_up_as_ready_for_ever(client, topic, options):
    """They are told to be the last of their id, which is forgotten after a while."""
    job = Job(options)
    name = job.task([A]).transaction.transactional_id
    job.run([B]).commit()
    assert name.startswith("spark-")
    assert client.commit_transaction(name, 0, []).committed


# --- which row goes where -------------------------------------------------------------------------
def test_keys_headers_and_tombstones_arrive(client, topic, options):
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("headers", pa.list_(pair))])
    batch = pa.record_batch(
        {
            "key": ["ann", "ben", None],
            "value": ["1", None, "3"],
            "headers": [[{"key": "h", "value": b"x"}], [], None],
        },
        schema=schema,
    )
    Job(options, schema).run([batch]).commit()
    found = {r.key: r for r in records(client, topic)}
    assert {key: r.value for key, r in found.items()} == {b"ann": b"1", b"ben": None, None: b"3"}
    assert found[b"ann"].partition == partition_of(b"ann", 3)
    assert dict(found[b"ann"].headers) == {"h": b"x"}
    assert not found[b"ben"].headers


def test_rows_go_to_the_topics_of_their_column_in_their_order(broker, client, topic, options):
    others = [f"{topic}-{n}" for n in range(3)]
    for name in others:
        broker.create_topic(name)
    schema = pa.schema([("topic", pa.string()), ("value", pa.binary())])
    rng = np.random.default_rng(7)
    batches = []
    wanted: dict[str, list[bytes]] = {name: [] for name in others}
    for start in range(0, 3000, 1000):
        names = [others[n] for n in rng.integers(0, 3, 1000)]
        numbers = [b"%d" % (start + n) for n in range(1000)]
        for name, number in zip(names, numbers, strict=True):
            wanted[name].append(number)
        batches.append(pa.record_batch({"topic": names, "value": numbers}, schema=schema))
    Job({"bootstrap": broker.url}, schema).run(batches).commit()
    assert {name: [r.value for r in records(client, name)] for name in others} == wanted
    Job(options, schema).run(batches[:1]).commit()  # the option overrides the column
    assert len(records(client, topic)) == 1000


def test_rows_go_to_the_partition_they_ask_for_and_else_by_their_key(client, topic, options):
    schema = pa.schema([("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
    batch = pa.record_batch(
        {
            "partition": pa.array([2, None, 0, 2, None, 1], pa.int32()),
            "key": [b"ann"] * 6,
            "value": [b"%d" % n for n in range(6)],
        },
        schema=schema,
    )
    Job(options, schema).run([batch]).commit()
    found = {(r.partition, r.value) for r in records(client, topic)}
    own = partition_of(b"ann", 3)
    assert found == {(2, b"0"), (own, b"1"), (0, b"2"), (2, b"3"), (own, b"4"), (1, b"5")}
    asked = [r.value for r in records(client, topic) if r.value in (b"0", b"3")]
    assert asked == [b"0", b"3"]


@pytest.mark.parametrize(
    ("column", "given", "message"),
    [
        ("partition", [0, 3], "has partitions 0 to 2, not 3"),
        ("partition", [-1, 0], "column 'partition' has -1: partitions are numbered from 0"),
        ("topic", ["nowhere", "nowhere"], "no topic 'nowhere' on this node: create it first"),
        ("topic", [None, "nowhere"], r"1 of 2 rows have no topic \(null\)"),
    ],
)
def test_rows_that_lead_nowhere_are_an_error_and_nothing_is_written(
    client, topic, options, column, given, message
):
    kind = pa.int32() if column == "partition" else pa.string()
    schema = pa.schema([(column, kind), ("value", pa.binary())])
    batch = pa.record_batch({column: pa.array(given, kind), "value": [b"1", b"2"]}, schema=schema)
    said = options if column == "partition" else {"bootstrap": options["bootstrap"]}
    job = Job(said, schema)
    with pytest.raises(penstock.PenstockError, match=message):
        job.run([batch])
    eventually(lambda: is_stable(client, topic), "what was staged is given up")
    assert records(client, topic) == []


def test_over_tcp_as_well(broker, client, topic, options):
    Job({**options, "bootstrap": broker.tcp_url, "transport": "tcp"}).run([A], [B]).commit()
    assert values(client, topic) == BOTH


def test_a_large_task_goes_through_a_small_buffer(client, topic, options):
    payload = b"x" * 1000
    big = pa.record_batch([pa.array([payload] * 10_000, pa.binary())], schema=VALUES)
    Job(options).run([big] * 5).commit()
    assert len(records(client, topic)) == 50_000
