"""Writers and consumers that look for records before they sleep."""

from __future__ import annotations

import pytest

from penstock.core.errors import ConfigError
from penstock.ipc.doorbell import spin
from penstock.testing import Broker

pytestmark = pytest.mark.over_tcp


def test_what_comes_while_writer_and_consumer_spin_arrives():
    with Broker(options={"writer_spin": 0.1}) as node, node.connect() as client:
        client.admin().create_topic("t")
        with client.producer(linger=0) as producer, client.consumer("t", spin=0.1) as consumer:
            for number in range(50):
                producer.send("t", b"%d" % number)
                (record,) = consumer.poll(timeout=45)
                assert (record.offset, record.value) == (number, b"%d" % number)


def test_a_consumer_that_spun_in_vain_sleeps_and_is_woken():
    with Broker() as node, node.connect() as client:
        client.admin().create_topic("t")
        with client.producer(linger=0) as producer, client.consumer("t", spin=0.001) as consumer:
            assert not consumer.poll(timeout=0.1)
            producer.send("t", b"late")
            assert [record.value for record in consumer.poll(timeout=45)] == [b"late"]


def test_a_spin_beyond_its_bound_is_refused():
    with Broker() as node, node.connect() as client:
        for seconds in (-1.0, 0.2, float("nan")):
            with pytest.raises(ConfigError, match="spin"):
                client.consumer(spin=seconds)


def test_spinning_ends_when_it_is_found_or_when_time_is_up():
    looks = iter([False, False, True])
    assert spin(60.0, lambda: next(looks))
    assert not spin(0.001, lambda: False)
