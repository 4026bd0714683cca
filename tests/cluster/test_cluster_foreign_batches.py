"""Batches of a principal that says it is another one's producer, at three brokers with keys
(rule 27)."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from intruder import Intruder, committed
from keyed_fixture import KeyedCluster

import penstock
from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.security.keys import KEY_VARIABLE
from penstock.testing import wait_until

pytestmark = pytest.mark.timeout(180)

WITHIN = 60.0
FOREIGN = {ErrorCode.UNKNOWN_PRODUCER}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
    lines = [
        "teller allow all topic vault*", "teller allow all transactional_id till*",
        "robber allow all topic vault*", "robber allow all transactional_id loot*",
    ]  # fmt: skip
    world = KeyedCluster(tmp_path_factory.mktemp("keys"), ("teller", "robber"), lines)
    with world.cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv(KEY_VARIABLE, str(world.file("admin")))
        yield world


@pytest.fixture
def world(started: KeyedCluster) -> KeyedCluster:
    """All three brokers, up."""
    started.cluster.start()
    started.cluster.wait_ready()
    wait_until(lambda: not started.cluster.ailing(), WITHIN, started.cluster.log_tail)
    return started


@pytest.fixture
def topic(world: KeyedCluster) -> str:
    """One with a leader at each broker, in which no other test has left anything open."""
    name = f"vault-{next(_numbers)}"
    with world.connect("admin") as client, client.admin() as admin:
        admin.create_topic(name, penstock.TopicConfig(partitions=3, replication_factor=3))
    return name


@pytest.fixture
def teller(world: KeyedCluster) -> Iterator[penstock.Client]:
    with world.connect("teller") as client:
        yield client


@contextmanager
def intruders(
    world: KeyedCluster, topic: str, name: str = "robber"
) -> Iterator[dict[int, Intruder]]:
    """One at each broker that runs."""
    with ExitStack() as stack:
        yield {
            each.number: Intruder(stack.enter_context(world.dealer(name, each.number)), topic)
            for each in world.cluster.running
        }


def coordinator_of(world: KeyedCluster) -> int:
    """Once it is a broker that runs."""
    running = [each.number for each in world.cluster.running]

    def found() -> int | None:
        with world.dealer("admin", running[0]) as dealer:
            named = dealer.hear(fr.Leaders).coordinator
        return named if named in running else None

    return wait_until(found, WITHIN, "a coordinator") or 0


def led_elsewhere(client: penstock.Client, topic: str, besides: int) -> tuple[int, int]:
    """A partition and its leader, which is not that broker."""

    def found() -> list[tuple[int, int]]:
        places = admin.describe_partitions(topic)
        return [(one.partition, one.leader) for one in places if one.leader not in (-1, besides)]

    with client.admin() as admin:
        return wait_until(found, WITHIN, "a partition that the coordinator does not lead")[0]


def counted(client: penstock.Client, topic: str) -> Counter[bytes | None]:
    return Counter(committed(client, topic))


@pytest.mark.rule(27)
def test_nobody_writes_into_a_transaction_at_a_broker_that_is_not_the_coordinator(
    world: KeyedCluster, topic: str, teller: penstock.Client
) -> None:
    with teller.producer(transactional_id="till") as producer:
        partition, leader = led_elsewhere(teller, topic, coordinator_of(world))
        producer.begin_transaction()
        producer.send(topic, b"1", partition=partition)
        producer.flush(WITHIN)
        with world.dealer("robber", leader) as dealer:
            robber = Intruder(dealer, topic)
            answer = robber.writes(producer.producer_id, producer.epoch, 1, partition=partition)
        producer.send(topic, b"2", partition=partition)
        producer.commit_transaction()
    assert committed(teller, topic) == [b"1", b"2"]
    assert answer is ErrorCode.UNKNOWN_PRODUCER


@pytest.mark.rule(27)
def test_whose_a_producer_is_is_known_at_every_broker_and_told_by_none(
    world: KeyedCluster, topic: str, teller: penstock.Client
) -> None:
    with (
        teller.producer() as plain,
        teller.producer(transactional_id="till-1") as producer,
        intruders(world, topic) as robbers,
    ):
        plain.send_and_wait(topic, b"plain", partition=0)
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"1", partition=partition)
        producer.flush(WITHIN)
        known, epoch = producer.producer_id, producer.epoch
        unused = known + 1000
        for robber in robbers.values():
            answers = [
                *(robber.writes(known, epoch, 1, partition=each) for each in range(3)),
                robber.writes(known, epoch, 0),
                robber.writes(known, epoch + 1, 0),
                robber.writes(known, epoch, 1, attributes=0),
                robber.writes(unused, epoch, 0),
                robber.writes(plain.producer_id, 0, 1),
                robber.writes(plain.producer_id, 0, 1, attributes=0),
                robber.writes(known, epoch, 1, proof=robber.attached.token),
                robber.writes(known, epoch, 1, proof=os.urandom(32)),
            ]
            assert set(answers) == FOREIGN, answers
            for who in (known, plain.producer_id, unused):
                token = robber.attached.token
                robber.dealer.say(fr.Attach(2, lo.KIND_PRODUCER, "thief", who, token))
                assert robber.dealer.hear(fr.Refused).error == "AttachRefusedError"
        producer.commit_transaction()
    assert counted(teller, topic) == {b"plain": 1, b"1": 3}


@pytest.mark.rule(27)
def test_a_proof_of_one_broker_holds_at_the_others_for_its_principal_alone(
    world: KeyedCluster, topic: str, teller: penstock.Client
) -> None:
    coordinator = coordinator_of(world)
    partition, leader = led_elsewhere(teller, topic, coordinator)
    with intruders(world, topic, "teller") as tellers, intruders(world, topic) as robbers:
        ready = tellers[coordinator].dealer.ask(1, co.InitTransactions("till-2", 60.0), WITHIN)
        who = ready.producer_id, ready.producer_epoch
        assert not tellers[coordinator].registers("till-2", *who, partition)
        proof = tellers[coordinator].proof
        for robber in robbers.values():
            answer = robber.writes(*who, 0, partition=partition, proof=proof)
            assert answer is ErrorCode.UNKNOWN_PRODUCER
        answer = tellers[leader].writes(*who, 0, partition=partition, proof=proof)
        assert answer is ErrorCode.NONE
        ended = tellers[coordinator].dealer.ask(1, co.EndTransaction("till-2", *who, False, []))
        assert isinstance(ended, co.TransactionEnded)


@pytest.mark.rule(27)
@pytest.mark.parametrize("fault", ["gateways", "leader", "coordinator"])
def test_a_transaction_goes_on_after_a_failover_and_takes_nothing_of_others(
    world: KeyedCluster, topic: str, teller: penstock.Client, fault: str
) -> None:
    coordinator = coordinator_of(world)
    partition, leader = led_elsewhere(teller, topic, coordinator)
    with teller.producer(transactional_id=f"till-{fault}") as producer:
        who = producer.producer_id, producer.epoch
        producer.begin_transaction()
        producer.send(topic, b"1", partition=partition)
        producer.flush(WITHIN)
        if fault == "gateways":
            for broker in world.cluster.brokers:
                broker.kill("gateway")
        else:
            world.cluster.kill([leader if fault == "leader" else coordinator])
        with intruders(world, topic) as robbers:
            for robber in robbers.values():
                answer = robber.writes(*who, 1, partition=partition)
                assert answer is ErrorCode.UNKNOWN_PRODUCER
            at = coordinator_of(world)
            assert robbers[at].registers(f"till-{fault}", *who, partition) == "AccessDeniedError"
            assert robbers[at].registers("loot", *who, partition)
            producer.send(topic, b"2", partition=partition)
            producer.send(topic, b"3", partition=(partition + 1) % 3)
            producer.flush(WITHIN)
            for robber in robbers.values():
                answer = robber.writes(*who, 2, partition=partition)
                assert answer is ErrorCode.UNKNOWN_PRODUCER
        producer.commit_transaction()
    assert counted(teller, topic) == {b"1": 1, b"2": 1, b"3": 1}


@pytest.mark.rule(27)
def test_stages_of_several_processes_go_on_after_all_gateways_ended(
    world: KeyedCluster, topic: str, teller: penstock.Client
) -> None:
    with ExitStack() as stack:
        tasks = [stack.enter_context(world.connect("teller")) for _ in range(3)]
        stages = [task.stage("till-job", 1) for task in tasks]
        for number, stage in enumerate(stages):
            stage.send(topic, b"1", partition=number)
            stage.flush(WITHIN)
        for broker in world.cluster.brokers:
            broker.kill("gateway")
        with intruders(world, topic) as robbers:
            for robber in robbers.values():
                answers = [
                    robber.writes(stage.producer_id, 0, 1, partition=number)
                    for number, stage in enumerate(stages)
                ]
                assert set(answers) == FOREIGN, answers
        for number, stage in enumerate(stages):
            stage.send(topic, b"2", partition=number)
            stage.close(WITHIN)
        teller.commit_transaction("till-job", 1, [stage.name for stage in stages])
    assert counted(teller, topic) == {b"1": 3, b"2": 3}
