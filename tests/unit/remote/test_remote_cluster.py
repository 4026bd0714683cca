"""A client of a cluster: what goes to whom, and what it makes of brokers that are late, wrong, of
another mind, or gone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FIRST_PAGE, TOPIC, TOPIC_ID, ClusterDouble
from fake_gateway import PRODUCER_ID, WITHIN, GatewayDouble

import penstock
from penstock.client.client import Client
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.testing.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[ClusterDouble]:
    with ClusterDouble() as made:
        yield made


@pytest.fixture
def client(cluster: ClusterDouble) -> Iterator[Client]:
    with penstock.connect(cluster.url, timeout=WITHIN) as made:
        yield made
        for broker in cluster.brokers.values():
            broker.holds_back = False
            broker.let_go()


@pytest.fixture
def producer(client: Client) -> Iterator[Any]:
    made = client.producer(linger=0, delivery_timeout=WITHIN)
    yield made
    with contextlib.suppress(er.PenstockError):
        made.close(timeout=0.1)


def values(consumer: Any, count: int) -> list[bytes]:
    """What it brings, until it is so much."""
    found: list[bytes] = []
    deadline = time.monotonic() + WITHIN
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [record.value for record in consumer.unpack(consumer.poll(timeout=0.2))]
    return found


def ends(cluster: ClusterDouble) -> list[int]:
    return [cluster.values(page) for page in cluster.pages]


# --- who is asked for what ---
def test_batches_go_to_the_leaders_of_their_partitions(
    cluster: ClusterDouble, producer: Any
) -> None:
    sent = [producer.send(TOPIC, b"%d" % at, partition=at % 3) for at in range(30)]
    assert [one.result(WITHIN).offset for one in sent] == [at // 3 for at in range(30)]
    assert all(broker.flags for broker in cluster.brokers.values())
    assert ends(cluster) == [10, 10, 10]
    for number in (2, 3):  # by one producer id everywhere
        assert cluster.brokers[number].attached_kinds == [(lo.KIND_PRODUCER, PRODUCER_ID)]
    assert producer.metrics()["reconnects"] == 0


def test_a_consumer_reads_each_partition_at_its_leader(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    for at in range(9):
        producer.send_and_wait(TOPIC, b"%d" % at, partition=at % 3)
    with client.consumer(TOPIC) as consumer:
        assert sorted(values(consumer, 9)) == [b"%d" % at for at in range(9)]
        assert consumer.metrics()["reconnects"] == 0
    assert client.metrics()["connects"] == 3
    assert client.metrics()["bytes_received"] > 0


def test_latest_is_where_the_leader_is_and_not_a_follower(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    """The home broker has told of the partitions that it follows, too, and is behind with them."""
    producer.send_and_wait(TOPIC, b"before", partition=1)
    with client.consumer(TOPIC, start="latest") as consumer:
        producer.send_and_wait(TOPIC, b"behind", partition=1)
        assert values(consumer, 1) == [b"behind"]


def test_the_coordinator_is_asked_about_groups(cluster: ClusterDouble, client: Client) -> None:
    with client.admin() as admin:
        assert admin.list_groups() == []
    assert [broker.asked for broker in cluster.brokers.values()] == [[], ["ListGroups"], []]


def test_while_there_is_no_coordinator_the_home_broker_is_asked_until_there_is(
    cluster: ClusterDouble, client: Client
) -> None:
    cluster.coordinator = -1
    cluster.tell()
    home = cluster.brokers[1]

    def come_to_be(asked: int = 2) -> None:
        wait_until(lambda: len(home.asked) >= asked, timeout=WITHIN)
        cluster.coordinator = 3
        cluster.tell()

    with client.admin() as admin, _beside(come_to_be):
        assert admin.list_groups() == []
    assert cluster.brokers[3].asked == ["ListGroups"]


def test_a_request_about_several_partitions_is_divided_and_its_answers_joined(
    cluster: ClusterDouble, client: Client
) -> None:
    with client.admin() as admin:
        session = admin._session
        places = [lk.LogPlace(FIRST_PAGE + at % 3, TOPIC_ID, at % 3, at) for at in range(7)]
        found = session.request(lk.LookUpAppends(places), lk.AppendsLookedUp, WITHIN)
        assert found.times == [float(FIRST_PAGE + at % 3) for at in range(7)]
        looked = session.request(lk.LookUpPages(cluster.pages), lk.PagesLookedUp, WITHIN)
        assert looked.pages == cluster.pages
        with pytest.raises(er.NotConnectedError, match="page 77"):
            session.request(lk.LookUpTime(77, TOPIC_ID, 0, 0), lk.TimeLookedUp, WITHIN)


def test_a_partition_is_trimmed_by_its_leader(cluster: ClusterDouble, client: Client) -> None:
    with client.admin() as admin:
        assert [each.partition for each in admin.trim(TOPIC, before=0)] == [0, 1, 2]
    for broker in cluster.brokers.values():
        assert broker.asked.count("TrimPartition") == 1


# --- acks ---
@pytest.mark.parametrize(
    ("acks", "durability", "flags", "said"),
    [
        (1, None, 0, "appended"),
        ("all", None, lo.FRAME_COMMITTED, "committed"),
        ("all", "fsynced", lo.FRAME_COMMITTED | lo.FRAME_SYNC, "fsynced"),
    ],
)
def test_acks_all_is_asked_for_and_told(
    cluster: ClusterDouble, client: Client, acks: Any, durability: Any, flags: int, said: str
) -> None:
    with client.producer(acks=acks, durability=durability, linger=0) as producer:
        assert producer.send_and_wait(TOPIC, b"1", partition=0).durability == said
    assert cluster.brokers[1].flags == [flags]


# --- order ---
def test_answers_reach_the_producer_in_the_order_of_its_lane(
    cluster: ClusterDouble, producer: Any
) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=0)
    cluster.brokers[1].holds_back = True
    first = producer.send(TOPIC, b"first", partition=0)
    second = producer.send(TOPIC, b"second", partition=1)
    wait_until(lambda: cluster.values(FIRST_PAGE + 1) == 1, timeout=WITHIN)
    assert not first.done()
    assert not second.done()
    cluster.brokers[1].let_go()
    assert (first.result(WITHIN).offset, second.result(WITHIN).offset) == (1, 0)


# --- leaders that move ---
@pytest.mark.rule(24)
def test_what_a_leader_had_without_an_answer_goes_to_the_next_one_once(
    cluster: ClusterDouble, producer: Any
) -> None:
    sent = [producer.send(TOPIC, b"0", partition=at) for at in range(3)]
    assert all(one.result(WITHIN) for one in sent)
    cluster.brokers[2].holds_back = True
    sent = [producer.send(TOPIC, b"%d" % at, partition=at % 3) for at in range(30)]
    wait_until(lambda: cluster.values(FIRST_PAGE + 1) == 11, timeout=WITHIN)
    cluster.move(FIRST_PAGE + 1, 3)
    assert [one.result(WITHIN).offset for one in sent] == [1 + at // 3 for at in range(30)]
    assert ends(cluster) == [11, 11, 11]
    assert producer.metrics()["reconnects"] == 1


def test_a_consumer_goes_on_at_the_next_leader_from_where_it_was(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    with client.consumer(TOPIC) as consumer:
        for at in range(30):
            producer.send_and_wait(TOPIC, b"%d" % at, partition=1)
            if at % 5 == 4:
                cluster.move(FIRST_PAGE + 1, 1 + at % 3)
        assert values(consumer, 30) == [b"%d" % at for at in range(30)]
        assert consumer.metrics()["reconnects"] == 0


def test_who_does_not_know_yet_that_it_leads_is_asked_again_and_not_all_the_time(
    cluster: ClusterDouble, producer: Any
) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=0)
    home = cluster.brokers[1]
    home.refuses.add(FIRST_PAGE)
    delivery = producer.send(TOPIC, b"1", partition=0)
    time.sleep(1.0)
    assert not delivery.done()
    home.refuses.clear()
    assert delivery.result(WITHIN).offset == 1
    assert 2 <= len(home.flags) <= 20  # at 50 a second and more it would spin
    assert ends(cluster) == [2, 0, 0]


def test_a_record_waits_while_nobody_leads_its_partition(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=1)
    with client.consumer(TOPIC) as consumer:
        assert values(consumer, 1) == [b"0"]
        cluster.move(FIRST_PAGE + 1, -1)
        delivery = producer.send(TOPIC, b"1", partition=1)
        time.sleep(0.3)
        assert not delivery.done()
        cluster.move(FIRST_PAGE + 1, 3)
        assert delivery.result(WITHIN).offset == 1
        assert values(consumer, 1) == [b"1"]


def test_nobody_leads_for_longer_than_a_delivery_may_take(
    cluster: ClusterDouble, client: Client
) -> None:
    producer = client.producer(linger=0, delivery_timeout=2.0)
    producer.send_and_wait(TOPIC, b"0", partition=1)
    cluster.move(FIRST_PAGE + 1, -1)
    with pytest.raises(er.DeliveryTimeout, match="orders-1"):
        producer.send(TOPIC, b"1", partition=1).result(WITHIN)
    with contextlib.suppress(er.PenstockError):
        producer.close(timeout=0.1)


def test_a_topic_that_is_deleted_is_told_by_who_led_it_last(
    cluster: ClusterDouble, producer: Any
) -> None:
    """Nobody leads its partitions any more, as where a leader is wanting."""
    producer.send_and_wait(TOPIC, b"0", partition=1)
    cluster.is_deleted = True
    for page in cluster.pages:
        cluster.leaders.pop(page)
    cluster.tell()
    time.sleep(0.3)  # nothing comes any more that would have anybody look
    delivery = producer.send(TOPIC, b"1", partition=1)
    with pytest.raises(er.ProduceError, match="deleted"):
        delivery.result(WITHIN)
    with pytest.raises(er.UnknownTopicError):
        producer.send(TOPIC, b"2", partition=1)


def test_what_is_older_than_what_is_known_counts_for_nothing(
    cluster: ClusterDouble, producer: Any
) -> None:
    cluster.move(FIRST_PAGE + 1, 3)
    producer.send_and_wait(TOPIC, b"0", partition=1)
    stale = cluster.said(version=3, leaders=[(page, 2) for page in cluster.pages])
    cluster.brokers[1].announce(stale)
    cluster.brokers[3].announce(stale)
    assert producer.send_and_wait(TOPIC, b"1", partition=1).offset == 1
    assert producer.metrics()["reconnects"] == 0
    assert cluster.brokers[2].flags == []


# --- brokers that go ---
def test_a_broker_that_dies_loses_nothing(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    with client.consumer(TOPIC) as consumer:
        sent = [producer.send(TOPIC, b"%d" % at, partition=at % 3) for at in range(30)]
        assert all(one.result(WITHIN) for one in sent)
        assert len(values(consumer, 30)) == 30
        cluster.kill(2)
        sent = [producer.send(TOPIC, b"%d" % at, partition=at % 3) for at in range(30, 60)]
        time.sleep(0.3)
        cluster.bury(2, heir=3)
        assert all(one.result(WITHIN) for one in sent)
        assert sorted(values(consumer, 30)) == [b"%d" % at for at in range(30, 60)]
    assert ends(cluster) == [20, 20, 20]


def test_home_is_moved_where_it_dies(cluster: ClusterDouble, client: Client, producer: Any) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=0)
    producer.send_and_wait(TOPIC, b"0", partition=1)
    cluster.kill(1)
    cluster.bury(1, heir=2)
    sent = [producer.send(TOPIC, b"%d" % at, partition=at % 3) for at in range(9)]
    assert all(one.result(WITHIN) for one in sent)
    assert ends(cluster) == [4, 4, 3]
    assert producer.producer_id == PRODUCER_ID
    with client.admin() as admin:
        assert [each.partition for each in admin.trim(TOPIC, before=0)] == [0, 1, 2]


def test_a_silent_broker_that_the_others_count_as_gone_is_left(
    cluster: ClusterDouble, producer: Any
) -> None:
    """Long before its silence would be noticed."""
    for number in (2, 3):
        producer.send_and_wait(TOPIC, b"0", partition=number - 1)
    silent = cluster.brokers[2]
    silent.holds_back, silent.answers_pings = True, False
    delivery = producer.send(TOPIC, b"1", partition=1)
    wait_until(lambda: len(silent.flags) == 2, timeout=WITHIN)
    started = time.monotonic()
    cluster.bury(2, heir=3)
    assert delivery.result(WITHIN).offset == 1
    assert time.monotonic() - started < silent.welcome.silence_max


def test_a_silent_broker_is_left_also_by_who_needs_no_other() -> None:
    with (
        ClusterDouble(silence_max=60.0) as cluster,
        penstock.connect(cluster.url, timeout=WITHIN) as client,
    ):
        producer = client.producer(linger=0, delivery_timeout=WITHIN)
        producer.send_and_wait(TOPIC, b"0", partition=0)
        silent = cluster.brokers[1]
        wait_until(lambda: client.metrics()["connects"] >= 2, timeout=WITHIN)
        silent.holds_back, silent.answers_pings = True, False
        delivery = producer.send(TOPIC, b"1", partition=0)
        wait_until(lambda: len(silent.flags) == 2, timeout=WITHIN)
        cluster.bury(1, heir=3)
        assert delivery.result(WITHIN).offset == 1
        producer.close()


def test_a_coordinator_that_moves_is_found_and_told_who_lives(
    cluster: ClusterDouble, client: Client
) -> None:
    with client.admin() as admin:
        assert admin.list_groups() == []
        cluster.coordinator = 3
        cluster.tell()
        heir = cluster.brokers[3]
        wait_until(lambda: len(heir.attached_kinds) == 1, timeout=WITHIN)
        assert admin.list_groups() == []
        assert heir.asked == ["ListGroups"]
    assert client.metrics()["attachments_lost"] == 0


def test_more_brokers_than_the_url_names_are_found_when_all_of_those_are_gone(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=0)
    cluster.kill(1)
    wait_until(lambda: client.metrics()["attachments_lost"] > 0, timeout=WITHIN)
    cluster.bury(1, heir=2)
    assert producer.send_and_wait(TOPIC, b"1", partition=0).offset == 1
    assert any(kind == lo.KIND_PRODUCER for kind, _ in cluster.brokers[2].attached_kinds)


def test_a_branch_that_its_broker_ends_is_attached_anew(
    cluster: ClusterDouble, client: Client, producer: Any
) -> None:
    producer.send_and_wait(TOPIC, b"0", partition=1)
    with client.consumer(TOPIC) as consumer:
        assert values(consumer, 1) == [b"0"]
        broker = cluster.brokers[2]
        broker.end_all("its node restarts")
        sent = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(1, 4)]
        assert [one.result(WITHIN).offset for one in sent] == [1, 2, 3]
        assert values(consumer, 3) == [b"1", b"2", b"3"]
        assert consumer.metrics()["reconnects"] == 0


def test_a_broker_that_takes_nobody_in_says_why_to_who_reads_there(
    cluster: ClusterDouble, client: Client
) -> None:
    broker = cluster.brokers[2]
    broker.lets_in, broker.sends_away = False, "it has as many clients as it may"
    with pytest.raises(er.ResourceLimitError, match="as many clients"), client.admin() as admin:
        admin.list_groups()
    broker.sends_away = ""
    broker.lets_in = True
    with client.admin() as admin:
        assert admin.list_groups() == []


# --- others ---
def test_a_broker_of_another_cluster_is_not_taken_for_one(cluster: ClusterDouble) -> None:
    with GatewayDouble(cluster=b"o" * 16, broker=2) as other:
        cluster.urls[2] = other.url
        cluster.tell()
        with penstock.connect(cluster.url, timeout=WITHIN) as client:
            producer = client.producer(linger=0, delivery_timeout=2.0)
            producer.send_and_wait(TOPIC, b"0", partition=0)
            with pytest.raises(er.DeliveryTimeout):
                producer.send(TOPIC, b"1", partition=1).result(WITHIN)
            with contextlib.suppress(er.PenstockError):
                producer.close(timeout=0.1)
        assert ends(cluster) == [1, 0, 0]


@pytest.mark.rule(25)
def test_a_cluster_is_reached_by_tcp_on_its_brokers_host(cluster: ClusterDouble) -> None:
    broker = cluster.brokers[1]
    broker.welcome = type(broker.welcome)(
        **{name: getattr(broker.welcome, name) for name in broker.welcome.__struct_fields__}
        | {"local": __file__}
    )
    with penstock.connect(cluster.url, timeout=WITHIN) as client:
        assert client.transport == "tcp"


def test_brokers_with_other_numbers_of_writers_serve_one_producer() -> None:
    with ClusterDouble(brokers=2, partitions=6, writers=2) as cluster:
        cluster.brokers[2].writers = 3
        with penstock.connect(cluster.url, timeout=WITHIN) as client:
            producer = client.producer(linger=0)
            sent = [producer.send(TOPIC, b"%d" % at, partition=at % 6) for at in range(60)]
            assert [one.result(WITHIN).offset for one in sent] == [at // 6 for at in range(60)]
            cluster.kill(1)
            cluster.bury(1, heir=2)  # of whose writers there are more than the producer has lanes
            sent = [producer.send(TOPIC, b"%d" % at, partition=at % 6) for at in range(60)]
            assert [one.result(WITHIN).offset for one in sent] == [10 + at // 6 for at in range(60)]
            producer.close()


def _beside(work: Any) -> Any:
    """Has that done by another thread meanwhile."""

    @contextlib.contextmanager
    def doing() -> Iterator[None]:
        thread = threading.Thread(target=work)
        thread.start()
        yield
        thread.join(WITHIN)

    return doing()
