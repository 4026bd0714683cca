"""Streams as Spark drives them: offsets by trigger, restarts, losses, progress; without a JVM.

`Query` plays the part of Spark: a checkpoint that outlives the readers, which are asked in the
order in which Spark asks.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from power_cuts import cut_power
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from spark_queries import WAYS, fill, filled, given, read_all, schema_of

from penstock.core import errors as er
from penstock.spark.positions import DataLossError
from penstock.spark.streamreader import PenstockStreamReader
from penstock.testing import Broker


def reader_of(options: dict[str, str]) -> PenstockStreamReader:
    return PenstockStreamReader(schema_of("value offset partition"), options)


class Query:
    """One query over its restarts. `offsets` and `done` are its checkpoint."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.offsets: list[str] = []
        self.done = 0
        self.seen: list[int] = []
        self.start()

    def start(self, **more: object) -> None:
        """Again, with nothing but the checkpoint; `more` options."""
        told = {name.lower(): str(value) for name, value in more.items()}
        self.reader = reader_of({**self.options, **told})

    def plan(self) -> bool:
        """Write down the end of the next batch; whether there is one."""
        begun = self.offsets[-1] if self.offsets else json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(begun), limit))
        if self.offsets and end == begun:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> list[int]:
        """Read the batch that was planned last; its values."""
        number = len(self.offsets) - 1
        start = self.offsets[number - 1] if number else json.dumps(self.reader.initialOffset())
        tasks = self.reader.partitions(json.loads(start), json.loads(self.offsets[number]))
        batches = read_all(self.reader, tasks)
        found = [int(value) for batch in batches for value in batch.column("value").to_pylist()]
        self.done = number + 1
        self.seen += found
        return found

    def available_now(self) -> list[int]:
        """Trigger.AvailableNow; how many records each batch had."""
        self.reader.prepareForTriggerAvailableNow()
        sizes = []
        if self.done < len(self.offsets):
            sizes.append(len(self.run()))
        while self.plan():
            sizes.append(len(self.run()))
        return sizes


# --- triggers ---
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_available_now_with_15_records_and_a_limit_of_5_is_3_batches(broker, way, partitions):
    topic = filled(broker, 15, partitions)
    more: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    query = Query(given(broker, topic, way, **more))
    assert query.available_now() == [5, 5, 5]
    assert sorted(query.seen) == list(range(15))


def test_available_now_after_a_restart_and_with_new_partitions(broker):
    topic = filled(broker, 15, 1)
    more: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    query = Query(given(broker, topic, **more))
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    assert len(query.run()) == 5
    assert query.plan()  # and the driver dies: the batch is planned, and not run
    query.start()
    assert query.available_now() == [5, 5]
    with broker.connect() as client, client.admin() as admin:
        admin.add_partitions(topic, 3)
    fill(broker, topic, 15, 15, 3)
    query.start()
    assert query.available_now() == [5, 5, 5]
    assert query.available_now() == []
    assert sorted(query.seen) == list(range(30))


def test_available_now_leaves_what_came_after_it_began(broker):
    topic = filled(broker, 5, 1)
    query = Query(given(broker, topic, startingOffsets="earliest"))
    query.reader.prepareForTriggerAvailableNow()
    fill(broker, topic, 5, 5, 1)
    with broker.connect() as client, client.admin() as admin:
        admin.add_partitions(topic, 2)
    fill(broker, topic, 10, 2, 2)
    assert query.plan()
    assert query.run() == [0, 1, 2, 3, 4]
    assert not query.plan()


def test_a_limit_of_the_trigger_goes_before_the_one_of_the_options(broker):
    topic = filled(broker, 15, 1)
    more: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    reader = reader_of(given(broker, topic, **more))
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)

    def taken(limit: Any) -> int:
        end: int = reader.latestOffset(start, limit)["topics"][topic]["partitions"]["0"]["offset"]
        return end

    assert (taken(ReadMaxRows(5)), taken(ReadAllAvailable())) == (5, 15)


def test_too_few_records_wait_until_the_delay_is_over(broker):
    topic = filled(broker, 4, 2)
    more: dict[str, Any] = {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 10,
        "maxTriggerDelay": "1h",
    }
    query = Query(given(broker, topic, **more))
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert query.plan()
    assert len(query.run()) == 4  # the first trigger of a run takes what there is
    fill(broker, topic, 4, 9, 2)
    assert not query.plan()
    fill(broker, topic, 13, 1, 1)
    assert query.plan()
    assert len(query.run()) == 10
    fill(broker, topic, 14, 1, 1)
    assert not query.plan()
    query.options["maxtriggerdelay"] = "0s"
    query.start()
    assert query.plan()
    assert len(query.run()) == 1
    fill(broker, topic, 15, 1, 1)
    assert query.plan()
    query.options["maxtriggerdelay"] = "1h"
    query.start()
    assert query.available_now() == [1]  # does not wait for more


def test_both_limits_hold_at_once(broker):
    topic = filled(broker, 20, 1)
    more: dict[str, Any] = {
        "minOffsetsPerTrigger": 3,
        "maxOffsetsPerTrigger": 5,
        "startingOffsets": "earliest",
    }
    query = Query(given(broker, topic, **more))
    sizes = []
    while query.plan():
        sizes.append(len(query.run()))
    assert sizes == [5, 5, 5, 5]
    fill(broker, topic, 20, 2, 1)
    assert not query.plan()


def test_more_tasks_than_partitions(broker):
    topic = filled(broker, 100, 2)
    query = Query(given(broker, topic, startingOffsets="earliest", minPartitions=5))
    assert query.plan()
    start, end = query.reader.initialOffset(), json.loads(query.offsets[0])
    assert len(query.reader.partitions(start, end)) == 5
    assert sorted(query.run()) == list(range(100))


def test_what_is_there_is_told_beside_what_was_taken(broker):
    topic = filled(broker, 15, 1)
    query = Query(given(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=5))
    assert query.plan()
    told = query.reader.reportLatestOffset()
    assert told is not None
    assert told["topics"][topic]["partitions"]["0"]["offset"] == 15
    assert told["lag"] == 10


# --- where it begins ---
def test_the_initial_offset_is_the_same_however_often_it_is_asked_for(broker):
    topic = filled(broker, 5, 1)
    reader = reader_of(given(broker, topic))
    first = json.dumps(reader.initialOffset())
    fill(broker, topic, 5, 5, 1)
    assert json.dumps(reader.initialOffset()) == first


def test_latest_stays_where_it_was_when_the_first_batch_is_run_again(broker):
    topic = filled(broker, 5, 1)
    query = Query(given(broker, topic))
    query.reader.initialOffset()
    fill(broker, topic, 5, 5, 1)
    assert query.plan()  # written down, and the driver dies before the batch is run
    fill(broker, topic, 10, 5, 1)
    query.start()
    assert query.run() == [5, 6, 7, 8, 9]
    assert query.plan()
    assert query.run() == [10, 11, 12, 13, 14]


def test_a_first_batch_without_records_remembers_where_latest_was(broker):
    topic = filled(broker, 5, 2)
    query = Query(given(broker, topic))
    assert query.plan()
    assert query.run() == []
    fill(broker, topic, 5, 5, 2)  # while the query is down
    query.start()
    assert query.plan()
    assert sorted(query.run()) == [5, 6, 7, 8, 9]


def test_a_batch_run_again_is_the_same(broker):
    topic = filled(broker, 10, 1)
    query = Query(given(broker, topic, startingOffsets="earliest"))
    assert query.plan()
    query.run()
    with broker.connect() as client, client.admin() as admin:
        admin.add_partitions(topic, 2)
    fill(broker, topic, 10, 10, 2)
    assert query.plan()
    first = query.run()
    fill(broker, topic, 20, 10, 2)
    query.start()
    assert query.run() == first


def test_a_stream_of_a_topic_that_is_not_there_says_so(broker):
    with pytest.raises(er.UnknownTopicError, match="'nope' is not on the node"):
        reader_of(given(broker, "nope")).initialOffset()


def test_topics_that_match_later_are_read_whole(broker):
    first = broker.create_topic("match-1", partitions=1)
    query = Query(given(broker, "", subscribePattern="match-.*"))
    assert query.plan()
    assert query.run() == []
    second = broker.create_topic("match-2", partitions=1)
    assert not query.plan()
    fill(broker, second, 0, 3, 1)
    fill(broker, first, 7, 1, 1)
    assert query.plan()
    assert query.run() == [7, 0, 1, 2]


# --- losses ---
@pytest.mark.parametrize("way", WAYS)
def test_retention_that_overtakes_a_query_is_an_error_unless_told_otherwise(broker, way, caplog):
    topic = filled(broker, 10, 1)
    query = Query(given(broker, topic, way, startingOffsets="earliest"))
    assert query.plan()
    query.run()
    fill(broker, topic, 10, 10, 1)
    with broker.connect() as client, client.admin() as admin:
        admin.trim(topic, before=15)
    with pytest.raises(DataLossError, match=f"{topic}-0: the query is to go on at offset 10, but"):
        query.plan()
    query.start(failOnDataLoss=False)
    assert query.plan()
    assert query.run() == [15, 16, 17, 18, 19]
    assert "data loss, going on with what is there" in caplog.text
    assert not query.plan()


def test_a_topic_made_anew_is_an_error_unless_told_otherwise(broker):
    topic = filled(broker, 10, 1)
    query = Query(given(broker, topic, startingOffsets="earliest"))
    assert query.plan()
    query.run()
    with broker.connect() as client, client.admin() as admin:
        admin.delete_topic(topic)
        with pytest.raises(DataLossError, match=f"topic '{topic}' is not there any more"):
            query.plan()
        broker.create_topic(topic, partitions=1)
    fill(broker, topic, 100, 20, 1)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and made again"):
        query.plan()
    query.start(failOnDataLoss=False)
    assert query.plan()
    assert query.run() == list(range(100, 120))


@pytest.mark.rule(15)
@pytest.mark.parametrize("way", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [1, 15], ids=["below its place", "past its place"])
def test_rule_15_a_query_behind_a_power_cut_is_told_where_the_logs_parted(way, count):
    with Broker(listen=True, transport="shm") as broker:
        topic = filled(broker, 10, 1)
        fill(broker, topic, 10, 10, 1)
        query = Query(given(broker, topic, way, startingOffsets="earliest"))
        assert query.plan()
        assert query.run() == list(range(20))
        cut_power(broker, keep=1)
        broker.start()
        query.start(bootstrap=broker.url if way == "shm" else broker.tcp_url)
        with broker.connect() as client, client.admin() as admin:
            kept = admin.describe_topic(topic).partitions[0].log_end
        fill(broker, topic, 100, count, 1)  # offsets are given a second time
        with pytest.raises(DataLossError, match=f"{topic}-0: .*epoch's log ends at {kept}"):
            query.plan()
        strict, tasks = query.reader, query.offsets
        planned = strict.partitions(strict.initialOffset(), json.loads(tasks[0]))
        with pytest.raises(DataLossError, match="the log was cut, the host lost unsynced records"):
            read_all(strict, planned)  # the same batch once more would be another one
        query.start(failOnDataLoss=False, bootstrap=broker.url if way == "shm" else broker.tcp_url)
        assert query.plan()
        assert query.run() == list(range(100, 100 + count))
        assert not query.plan()


def test_a_new_epoch_without_a_loss_makes_no_batch(broker):
    topic = filled(broker, 10, 1)
    query = Query(given(broker, topic, startingOffsets="earliest"))
    assert query.plan()
    query.run()
    broker.restart(kill=True)
    assert not query.plan()
    fill(broker, topic, 10, 1, 1)
    assert query.plan()
    assert query.run() == [10]


def test_an_open_transaction_holds_the_query_back(broker):
    topic = filled(broker, 3, 1)
    query = Query(given(broker, topic, startingOffsets="earliest"))
    with (
        broker.connect() as client,
        client.producer(transactional_id=f"open-{topic}") as producer,
        producer.transaction(),
    ):
        producer.send(topic, b"3")
        producer.flush(10)
        fill(broker, topic, 4, 2, 1)
        assert query.plan()
        assert query.run() == [0, 1, 2]
        assert not query.plan()
    assert query.plan()
    assert query.run() == [3, 4, 5]
    assert not query.plan()


@pytest.mark.parametrize("way", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_query_waits_for_a_node_that_restarts(way):
    with Broker(listen=True, transport="shm") as broker:
        topic = filled(broker, 10, 1)
        query = Query(given(broker, topic, way, startingOffsets="earliest", maxOffsetsPerTrigger=5))
        assert query.plan()
        for step in (query.run, query.plan):
            broker.kill()
            back = threading.Timer(0.1, broker.start)
            back.start()
            assert step()
            back.join()
        assert query.seen == [0, 1, 2, 3, 4]


# --- progress ---
def test_a_group_is_told_how_far_the_query_is(broker):
    topic = filled(broker, 10, 2)
    more: dict[str, Any] = {
        "startingOffsets": "earliest",
        "groupId": f"g-{topic}",
        "maxOffsetsPerTrigger": 6,
    }
    query = Query(given(broker, topic, **more))
    with broker.connect() as client, client.admin() as admin:

        def lag() -> int:
            found: int = admin.describe_group(f"g-{topic}").lag
            return found

        assert query.plan()
        query.run()
        assert query.plan()
        assert lag() == 4  # the first batch is done
        query.run()
        query.reader.commit(json.loads(query.offsets[-1]))
        assert lag() == 0
        fill(broker, topic, 10, 3, 1)
        assert lag() == 3
        admin.reset_offsets(f"g-{topic}", topic, to="latest")
    query.start()
    assert query.plan()
    assert sorted(query.run()) == [10, 11, 12]  # the checkpoint tells where it goes on, no group


def test_a_group_that_cannot_be_told_stops_no_query(broker, caplog):
    topic = filled(broker, 10, 1)
    query = Query(given(broker, topic, startingOffsets="earliest", groupId="x" * 500))
    assert query.plan()
    query.run()
    assert not query.plan()
    assert "was not told how far the query is" in caplog.text
