"""The plan against hot keys: what is split, where it goes, and what stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from penstock.client.producer.partitioner import murmur2, partition_of
from penstock.spark.jobs import hot_keys
from penstock.spark.jobs.hotkeys import KeyLoad, report


def home(key: str, partitions: int) -> int:
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def test_even_partitions_need_no_plan():
    found = report("t", {0: 100, 1: 104, 2: 98, 3: 100}, [KeyLoad(b"a", 1, 50, 1)], 9, 4)
    assert (found.plan, found.planned, found.skew) == ([], found.partitions, 1.035)
    assert report("t", {}, [], 0, 4).skew == 1.0


def test_a_hot_key_is_split_over_partitions_that_its_suffixes_lead_to():
    at = home("hot", 4)
    loads = {number: 1000 if number == at else 100 for number in range(4)}
    found = report("t", loads, [KeyLoad(b"hot", at, 950, 1), KeyLoad(b"x", at, 3, 1)], 9, 4)
    [plan] = found.plan
    assert (plan.key, plan.share, len(plan.suffixes)) == ("hot", round(950 / 1300, 4), 4)
    assert plan.partitions == [home("hot" + suffix, 4) for suffix in plan.suffixes]
    assert sorted(plan.partitions) == [0, 1, 2, 3]
    assert found.skew > 3
    assert found.planned_skew <= 1.2
    assert sum(found.planned.values()) == pytest.approx(1300, abs=4)


def test_records_without_a_key_are_left_where_they_are():
    found = report("t", {0: 900, 1: 10}, [KeyLoad(None, 0, 900, 1)], 1, 2)
    assert (found.plan, found.planned_skew) == ([], found.skew)


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.text(min_size=1, max_size=4), st.integers(1, 10_000)), max_size=12),
)
def test_a_plan_makes_no_partition_fuller_than_the_fullest(partitions, keys):
    heavy = [
        KeyLoad(key.encode(), partition_of(key.encode(), partitions), records, records)
        for key, records in dict(keys).items()
    ]
    loads: dict[int, int] = {}
    for load in heavy:
        loads[load.partition] = loads.get(load.partition, 0) + load.records
    found = report("t", loads, heavy, len(heavy), partitions)
    assert max(found.planned.values()) <= max(found.partitions.values(), default=0)
    assert len(found.partitions) == partitions
    for plan in found.plan:
        assert len(plan.suffixes) == len(set(plan.partitions)) > 1


def test_the_keys_of_a_topic_are_counted(spark, broker):
    broker.create_topic("keyed", partitions=4)
    with broker.connect() as client, client.producer() as producer:
        for number in range(400):
            producer.send("keyed", b"v", key=b"hot" if number % 4 else b"%d" % number)
        producer.send("keyed", b"v", partition=1)
    found = hot_keys(spark, broker.url, "keyed", top=3)
    assert (found.records, found.keys) == (401, 101)
    assert (found.top[0].key, found.top[0].records, found.top[0].bytes) == (b"hot", 300, 1200)
    assert found.top[0].partition == home("hot", 4)
    assert [plan.key for plan in found.plan] == ["hot"]
    assert found.planned_skew < found.skew
    assert found.as_json()["top"][0]["key"] == "hot"
