"""The sink under a real Spark: what travels from driver to tasks to commits is as the other tests
of the sink take it to be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from node_helpers import eventually


def values(client, topic):
    with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
        return Counter(record.value for record in consumer)


def once(*numbers):
    return Counter(b"%d" % number for number in numbers)


def numbers(spark, *bounds):
    return spark.range(*bounds).selectExpr("cast(id as string) as value")


def write(frame, options, mode="append"):
    frame.write.format("penstock").options(**options).mode(mode).save()


def test_a_batch_is_written_whole_and_once_under_its_txn_id(spark, client, topic, options):
    write(numbers(spark, 1000), options)
    assert values(client, topic) == once(*range(1000))
    for _ in range(2):
        write(numbers(spark, 1000, 1010), {**options, "txnId": topic})
    assert values(client, topic) == once(*range(1010))


def test_rows_that_are_left_out_are_read_to_their_end(spark, client, topic, options):
    """More of them than fit any pipe."""
    wide = spark.range(200_000).selectExpr("repeat(cast(id as string), 20) as value")
    write(wide.limit(1), {**options, "txnId": topic})
    write(wide, {**options, "txnId": topic})
    assert values(client, topic).total() == 1


def test_a_task_that_fails_publishes_nothing_and_says_why(spark, client, topic, options):
    broken = spark.range(1000).selectExpr(
        "if(id = 999, raise_error('row 999 is bad'), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="row 999 is bad"):
        write(broken, options)
    with pytest.raises(Exception, match="no topic 'nowhere' on this node: create it first"):
        write(numbers(spark, 10), {**options, "topic": "nowhere"})
    with pytest.raises(Exception, match=r"a topic is a log, which cannot be overwritten"):
        write(numbers(spark, 10), options, "overwrite")

    def is_stable():
        with (
            client.consumer(topic, isolation="read_committed") as reader,
            client.consumer(topic, isolation="read_uncommitted") as other,
        ):
            return reader.end_offsets() == other.end_offsets()

    eventually(is_stable, "what was staged is given up")
    assert not values(client, topic)


class Stream:
    """A query over files, each trigger of which takes all that are new."""

    def __init__(self, spark, folder: Path, options) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        (folder / "in").mkdir()

    def feed(self, *given: int) -> None:
        name = f"{len(list((self.folder / 'in').iterdir()))}.txt"
        made = self.folder / name
        made.write_text("".join(f"{number}\n" for number in given))
        made.rename(self.folder / "in" / name)

    def run(self, shape=lambda frame: frame, mode="append"):
        """Until everything there is done."""
        query = (
            shape(self.spark.readStream.format("text").load(str(self.folder / "in")))
            .writeStream.format("penstock")
            .options(**self.options)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return query

    def forget_commit(self) -> None:
        """As if the driver had died after the sink's commit, before Spark's own."""
        commits = self.folder / "checkpoint" / "commits"
        last = max(int(log.name) for log in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark, tmp_path, options):
    return Stream(spark, tmp_path, options)


def test_a_stream_names_its_transactions_by_query_and_batch(stream, client, topic):
    stream.feed(1, 2)
    query = stream.run()
    stream.feed(3)
    again = stream.run()
    assert again.id == query.id
    assert values(client, topic) == once(1, 2, 3)
    [found] = [
        each
        for each in client.admin().list_transactions()
        if each.transactional_id == f"spark-{query.id}"
    ]
    assert found.producer_epoch == 1, "the last batch that is decided"


def test_a_batch_that_was_committed_and_not_logged_is_not_written_again(stream, client, topic):
    stream.feed(1, 2)
    stream.run()
    stream.forget_commit()
    stream.feed(3)
    stream.run()
    assert values(client, topic) == once(1, 2, 3)


def test_a_stream_with_state_goes_on_after_a_batch_that_was_left_out(stream, client, topic):
    """Spark keeps a batch's state only if its rows were read to their end, and there are more of
    them here than fit any pipe."""

    def distinct(frame):
        return frame.dropDuplicates(["value"])

    stream.feed(*range(50_000))
    stream.run(distinct)
    stream.forget_commit()
    stream.run(distinct)
    stream.feed(*range(49_000, 51_000))
    stream.run(distinct)
    assert values(client, topic) == once(*range(51_000))


def test_foreach_batch_with_a_txn_id_for_each_output(stream, broker, client, topic):
    other = f"{topic}-2"
    broker.create_topic(other)

    def both(frame, batch):
        for name in (topic, other):
            given = {**stream.options, "topic": name, "txnId": name, "txnEpoch": str(batch)}
            write(frame, given)

    def run():
        frame = stream.spark.readStream.format("text").load(str(stream.folder / "in"))
        (
            frame.writeStream.foreachBatch(both)
            .option("checkpointLocation", str(stream.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(60)
        )

    stream.feed(1, 2)
    run()
    stream.forget_commit()
    stream.feed(3)
    run()
    assert values(client, topic) == values(client, other) == once(1, 2, 3)
