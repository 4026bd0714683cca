"""Hot keys of a real topic: found among a million distinct ones, told with advice, and spread."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from cli_runner import call_cli

from penstock import ConfigError
from penstock.client.admin.hot_keys import SAMPLE
from penstock.client.producer.partitioner import partition_of
from penstock.testing import drain

HOT = b"ann"


def test_a_hot_key_is_told_with_its_partition_and_advice(node):
    topic = node.create_topic(partitions=4)
    home = partition_of(HOT, 4)
    with node.connect() as client, client.producer() as producer, client.admin() as admin:
        keys = [HOT if n % 2 else b"%d" % n for n in range(20_000)]
        producer.send_batch(topic, [b"v"] * len(keys), keys=keys)
        producer.flush(20)
        found = admin.hot_keys(topic, keys=2, sample=20_000)
        [by_default] = admin.hot_keys(topic, keys=1, partitions=home)
    assert [one.partition for one in found] == [0, 1, 2, 3]
    assert sum(one.sampled for one in found) == 20_000
    [hottest, other] = found[home].keys
    assert (hottest.key, hottest.records, hottest.error) == (HOT, 10_000, 0)
    assert 0.7 < hottest.share < 0.9
    assert other.share < 0.01
    assert by_default.sampled == SAMPLE
    [key] = by_default.keys
    assert (key.key, key.error) == (HOT, 0)
    assert 0.5 < found[home].load < 0.75
    assert re.search(r"spread=\{'ann': [23]\}", found[home].advice)
    assert not any(one.advice for one in found if one.partition != home)

    text = call_cli("topic", "describe", topic, "--hot", url=node.url).lines
    assert text[0].split() == ["PARTITION", "SAMPLED", "RECORDS/S", "LOAD", "SHARE", "KEY"]
    assert text[-1].startswith(f"key 'ann' is {key.share:.0%} of {topic}-{home}")
    [told] = call_cli("topic", "describe", topic, "--hot", "--format", "json", url=node.url).objects
    assert told["partitions"][home]["keys"][0]["key"] == "ann"


def test_an_empty_topic_and_keys_that_are_no_text(node):
    topic = node.create_topic()
    with node.connect() as client, client.producer() as producer, client.admin() as admin:
        [one] = admin.hot_keys(topic)
        assert (one.sampled, one.rate, one.load, one.keys) == (0, 0.0, 0.0, [])
        producer.send(topic, b"1", key=b"\xff")
        producer.send_and_wait(topic, b"2")
        [one] = admin.hot_keys(topic, sample=1)
        assert [key.key for key in one.keys] == [None]
        for wrong in ({"sample": 0}, {"keys": 10**6}):
            with pytest.raises(ConfigError):
                admin.hot_keys(topic, **wrong)
    text = call_cli("topic", "describe", topic, "--hot", url=node.url).lines
    assert sorted(line.split()[-1] for line in text[1:]) == ["(none)", "\\xff"]


@pytest.mark.setting("producer.spread")
def test_a_key_that_is_spread_takes_its_partitions_by_turns(node):
    topic = node.create_topic(partitions=4)
    home = partition_of(HOT, 4)
    with node.connect() as client:
        with client.producer(spread={"ann": 3}) as producer:
            for _ in range(3):
                producer.send(topic, b"1", key=HOT)
            producer.send_batch(topic, [b"1"] * 6, keys=[HOT] * 6)
        with client.producer(spread={HOT: 3}, linger=0) as producer:
            for _ in range(3):
                producer.send_and_wait(topic, b"1", key=HOT)
        with client.producer(spread={"other": 3}) as producer:
            producer.send_and_wait(topic, b"1", key=HOT)
        found = Counter(record.partition for record in drain(node, topic))
        assert set(found) == {home, (home + 1) % 4, (home + 2) % 4}
        assert min(found.values()) >= 3  # a record that found no short way takes another turn
        for wrong in ({"ann": 1}, {"ann": 2000}):
            with pytest.raises(ConfigError, match="spread"):
                client.producer(spread=wrong)
        with pytest.raises(TypeError, match="spread"):
            client.producer(spread={1: 2})
