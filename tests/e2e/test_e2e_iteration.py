"""Asking and moving a consumer from within the loop that walks through its records."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.over_tcp


def fill(node, count=300, **settings):
    topic = node.create_topic(**settings)
    with node.connect() as client, client.producer() as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(count)])
    return topic


def test_position_and_lag_in_a_loop_follow_each_record_and_bring_nothing_twice(node):
    topic = fill(node)
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            assert consumer.position(topic, 0) == record.offset + 1
            assert consumer.lag() == {(topic, 0): 299 - record.offset}
    assert seen == list(range(300))


def test_seek_in_a_loop_goes_there_with_the_next_record(node):
    topic = fill(node)
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 10:
                consumer.seek(topic, 0, 290)
    assert seen == [*range(11), *range(290, 300)]


def test_a_poll_in_a_loop_brings_what_the_loop_would_have(node):
    topic = fill(node)
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 5:
                seen += consumer.poll(4).offsets.tolist()
    assert seen == list(range(300))
