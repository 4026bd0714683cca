"""Options of the source as Spark hands them over: names in lower case, values as text."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.core.errors import ConfigError
from penstock.spark.readoptions import ReadOptions


def options(streaming: bool = False, **given: object) -> ReadOptions:
    found = {"bootstrap": "shm://", **{name: str(value) for name, value in given.items()}}
    if not any(name.lower() in ("subscribe", "subscribepattern", "assign") for name in found):
        found["subscribe"] = "t"
    return ReadOptions.of(found, streaming=streaming)


def refused(match: str, streaming: bool = False, **given: object) -> None:
    with pytest.raises(ConfigError, match=match):
        options(streaming, **given)


def test_names_are_taken_in_any_case():
    assert options(startingoffsets="earliest", MINPARTITIONS=3).partitions_min == 3


def test_an_option_that_is_none_is_refused_with_the_likely_one():
    refused("no option 'startingofsets'; did you mean startingOffsets", startingofsets="earliest")
    refused(
        "startingOffsets is 'beginning': it is 'earliest', 'latest', or an offset for each",
        startingOffsets="beginning",
    )
    refused(r"load\('orders'\): topics are named by option\('subscribe'", path="orders")


def test_brokers_of_kafka_are_not_passed_over_for_the_default_node():
    kafkas = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
    with pytest.raises(
        ConfigError, match="'h:9092': it names brokers of Kafka; set the option boo"
    ):
        ReadOptions.of(kafkas, streaming=False)
    both = ReadOptions.of({**kafkas, "bootstrap": "shm://"}, streaming=False)
    assert both.address.url == "shm://"


def test_those_of_the_sink_are_let_be():
    assert options(topic="x", txnId="y").group is None


def test_exactly_one_way_to_say_what_to_read():
    with pytest.raises(ConfigError, match="none of them given"):
        ReadOptions.of({}, streaming=False)
    refused("subscribe and assign given", subscribe="a", assign='{"a":[0]}')
    refused("subscribe names no topic", subscribe=" , ")
    refused("subscribePattern .* is no regular expression", subscribePattern="(")
    refused("assign is .* it is like", assign='{"a": 0}')
    refused("assign is .* it is like", assign="{}")
    refused("which is no JSON", assign="a")


def test_topics():
    assert options(subscribe="b, a,b").topics.chosen(list) == ["a", "b"]
    there = ["orders-1", "orders-2", "my-orders-1"]
    assert options(subscribePattern="orders-.").topics.chosen(lambda: there) == there[:2]
    assert options(assign='{"a": [1, 0, 1]}').topics.partitions == {"a": (1, 0)}


def test_where_batches_and_streams_begin_and_end():
    assert (options().starting.place, options().ending.place) == ("earliest", "latest")
    assert options(streaming=True).starting.place == "latest"
    given = options(startingOffsets='{"t": {"0": 23, "1": -2}}', endingOffsets='{"t": {"0": -1}}')
    assert given.starting.offsets == {("t", 0): 23, ("t", 1): -2}
    assert given.ending.offsets == {("t", 0): -1}
    assert options(streaming=True, startingOffsets='{"t":{"0":-1}}').starting.place == "offsets"


def test_one_time_wins_over_times_and_these_over_offsets():
    given: dict[str, Any] = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
    }
    assert options(**given).starting.times == {("t", 0): 5}
    assert options(**given, startingTimestamp=7).starting.time == 7
    assert options(endingTimestamp=9).ending.time == 9


def test_ends_that_would_read_nothing():
    refused(
        "startingOffsets is 'latest': a batch query would read nothing", startingOffsets="latest"
    )
    refused("endingOffsets is 'earliest'", endingOffsets="earliest")
    refused(r"startingOffsets has -1 \(latest\)", startingOffsets='{"t":{"0":-1}}')
    refused(r"endingOffsets has -2 \(earliest\)", endingOffsets='{"t":{"0":-2}}')


def test_a_stream_has_no_end():
    refused("endingOffsets is for batch queries", streaming=True, endingOffsets="latest")
    refused("endingTimestamp is for batch queries", streaming=True, endingTimestamp=1)


def test_what_is_for_streams_is_left_aside_by_batches(caplog):
    options(maxOffsetsPerTrigger=5)
    assert "left aside, being for streams: maxOffsetsPerTrigger" in caplog.text


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("startingOffsets", '{"t": {"0": -3}}', "with -2 for earliest and -1 for latest"),
        ("startingOffsets", '{"t": 5}', "it is like"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}', "it is like"),
        ("startingTimestamp", "2020-01-01", "milliseconds since 1970 are wanted"),
        ("minPartitions", "0", "a whole number from 1 on"),
        ("batchRows", "99999999", "at most"),
        ("failOnDataLoss", "no", "it is true or false"),
        ("isolation", "serializable", "read-committed, read-uncommitted"),
        ("transport", "udp", "'auto' or 'tcp'"),
        ("maxTriggerDelay", "soon", "it is like '500ms'"),
    ],
)
def test_values_that_cannot_be(option, value, match):
    refused(match, streaming=option == "maxTriggerDelay", **{option: value})


def test_limits_of_a_trigger():
    given = options(
        streaming=True, maxOffsetsPerTrigger=9, minOffsetsPerTrigger=3, maxTriggerDelay="2 min"
    )
    assert (given.offsets_max, given.offsets_min, given.trigger_delay) == (9, 3, 120.0)
    refused(
        "minOffsetsPerTrigger 10 is more than maxOffsetsPerTrigger 9",
        streaming=True, maxOffsetsPerTrigger=9, minOffsetsPerTrigger=10,
    )  # fmt: skip


def test_committed_records_and_errors_of_loss_are_what_nobody_has_to_ask_for():
    given = options()
    assert (given.isolation, given.fail_on_data_loss) == ("read-committed", True)
