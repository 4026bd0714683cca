"""Batches of a principal that says it is another one's producer, at a real node (rule 27)."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from intruder import Intruder, committed
from keyed_fixture import World, gateways
from node_helpers import eventually
from wire import batch_of

import penstock
from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.ipc import coordination as co

_numbers = itertools.count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("keys")) as world:
        world.allow(
            "teller allow all topic vault*", "teller allow all transactional_id till*",
            "robber allow all topic vault*", "robber allow all transactional_id loot*",
            "clerk allow all topic vault*", "clerk allow all transactional_id till*",
        )  # fmt: skip
        for name in ("teller", "robber", "clerk"):
            world.key(name)
        yield world


@pytest.fixture
def topic(world: World) -> str:
    """One that no other test has left anything open in."""
    return world.broker.create_topic(f"vault-{next(_numbers)}")


@pytest.fixture
def teller(world: World) -> Iterator[penstock.Client]:
    file = world.folder / "teller.key"
    with penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client:
        yield client


@contextmanager
def intruder(world: World, name: str, topic: str) -> Iterator[Intruder]:
    with world.dealer(world.folder / f"{name}.key") as dealer:
        yield Intruder(dealer, topic)


@pytest.fixture
def robber(world: World, topic: str) -> Iterator[Intruder]:
    with intruder(world, "robber", topic) as found:
        yield found


def begun(who: Intruder, name: str) -> tuple[int, int, fr.Proof]:
    """A transaction of that id, open on partition 0: producer id, epoch and proof."""
    ready = who.dealer.ask(1, co.InitTransactions(name, 60.0), 45.0)
    assert isinstance(ready, co.TransactionReady), ready
    assert not who.registers(name, ready.producer_id, ready.producer_epoch, 0)
    assert isinstance(who.proof, bytes)
    return ready.producer_id, ready.producer_epoch, who.proof


def ended(who: Intruder, name: str, producer_id: int, epoch: int) -> int:
    """Commit it; the epoch of the next one."""
    request = co.EndTransaction(name, producer_id, epoch, True, [], 1)
    answer = who.dealer.ask(1, request, 45.0)
    assert isinstance(answer, co.TransactionEnded), answer
    return answer.next_epoch


def restart_gateway(world: World) -> None:
    [gateway] = gateways(world)
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: gateways(world) not in ([], [gateway]))


def opened(client: penstock.Client, name: str, topic: str) -> penstock.TransactionalProducer:
    """A producer with one record in an open transaction."""
    producer = client.producer(transactional_id=name)
    producer.begin_transaction()
    producer.send(topic, b"1")
    producer.flush(45)
    return producer


def lanes_of(world: World) -> int:
    with world.broker.connect() as client, client.admin() as admin:
        return admin.describe_node().lanes


@pytest.mark.rule(27)
def test_nobody_writes_into_a_transaction_after_the_gateway_restarted(
    world: World, topic: str, teller: penstock.Client
) -> None:
    producer = opened(teller, "till", topic)
    restart_gateway(world)
    with intruder(world, "robber", topic) as robber:
        answer = robber.writes(producer.producer_id, producer.epoch, 1)
    producer.send(topic, b"2")
    producer.commit_transaction()
    producer.close()
    assert committed(teller, topic) == [b"1", b"2"]
    assert answer is ErrorCode.UNKNOWN_PRODUCER


@pytest.mark.rule(27)
def test_a_refusal_does_not_tell_whether_a_producer_id_is_in_use(
    world: World, topic: str, teller: penstock.Client, robber: Intruder
) -> None:
    """Nor does the time that it takes: no such batch gets into a lane, or makes one."""
    producer = opened(teller, "till-1", topic)
    known, epoch = producer.producer_id, producer.epoch
    with teller.producer() as plain:
        plain.send_and_wait(topic, b"plain")
        lanes = lanes_of(world)
        answers = {
            "next batch": robber.writes(known, epoch, 1),
            "repeated batch": robber.writes(known, epoch, 0),
            "gap": robber.writes(known, epoch, 7),
            "epoch before": robber.writes(known, max(epoch - 1, 0), 0),
            "epoch after": robber.writes(known, epoch + 1, 0),
            "outside of the transaction": robber.writes(known, epoch, 1, attributes=0),
            "plain": robber.writes(plain.producer_id, 0, 1, attributes=0),
            "plain in a transaction": robber.writes(plain.producer_id, 0, 1),
            "not given out yet": robber.writes(known + 1000, 0, 0),
            "of another node": robber.writes(4711, 0, 0),
            "its own in a transaction": robber.writes(robber.attached.producer_id, 0, 0),
            "of the coordinator": robber.writes(known >> 40 << 40, 0, 0),
            "of the coordinator, plain": robber.writes(known >> 40 << 40, 0, 0, attributes=0),
        }
        assert lanes_of(world) == lanes
    producer.abort_transaction()
    producer.close()
    assert set(answers.values()) == {ErrorCode.UNKNOWN_PRODUCER}, answers


@pytest.mark.rule(27)
def test_a_proof_is_of_one_principal_one_producer_and_one_epoch(
    world: World, topic: str, robber: Intruder
) -> None:
    with intruder(world, "teller", topic) as teller:
        producer_id, epoch, proof = begun(teller, "till-2")
        other_id, _, other = begun(teller, "till-3")
        own_id, own_epoch, own = begun(robber, "loot")
        assert isinstance(proof, bytes)
        refused = {
            "copied": robber.writes(producer_id, epoch, 0, proof=proof),
            "its own": robber.writes(producer_id, epoch, 0, proof=own),
            "its token": robber.writes(producer_id, epoch, 0, proof=robber.attached.token),
            "the owner's token": robber.writes(producer_id, epoch, 0, proof=teller.attached.token),
            "guessed": robber.writes(producer_id, epoch, 0, proof=os.urandom(32)),
            "cut": robber.writes(producer_id, epoch, 0, proof=proof[:31]),
            "longer": robber.writes(producer_id, epoch, 0, proof=proof + bytes(32)),
            "empty": robber.writes(producer_id, epoch, 0, proof=b""),
            "of another transaction": teller.writes(producer_id, epoch, 0, proof=other),
            "for another transaction": teller.writes(other_id, epoch, 0, proof=proof),
            "for the next epoch": teller.writes(producer_id, epoch + 1, 0, proof=proof),
        }
        assert set(refused.values()) == {ErrorCode.UNKNOWN_PRODUCER}, refused
        assert robber.writes(own_id, own_epoch, 0, proof=own) is ErrorCode.NONE
        assert teller.writes(producer_id, epoch, 0, proof=proof) is ErrorCode.NONE
        later = ended(teller, "till-2", producer_id, epoch)
        assert teller.writes(producer_id, later, 0, proof=proof) is ErrorCode.UNKNOWN_PRODUCER
        assert not teller.registers("till-2", producer_id, later, 0)
        assert teller.writes(producer_id, later, 0, proof=teller.proof) is ErrorCode.NONE
        ended(teller, "till-2", producer_id, later)


@pytest.mark.rule(27)
def test_frames_of_the_owner_that_come_by_another_connection_are_refused(
    world: World, topic: str, robber: Intruder
) -> None:
    """The robber has seen all that the owner said, and says it first."""
    with intruder(world, "teller", topic) as teller:
        producer_id, epoch, proof = begun(teller, "till-4")
        batch = batch_of(
            [b"mine"], teller.topic, producer_id, 0,
            producer_epoch=epoch, attributes=ATTR_TRANSACTIONAL,
        )  # fmt: skip
        assert robber.sends(batch, proof=proof) is ErrorCode.UNKNOWN_PRODUCER
        assert teller.sends(batch, proof=proof) is ErrorCode.NONE
        assert robber.sends(batch, proof=proof) is ErrorCode.UNKNOWN_PRODUCER
        ended(teller, "till-4", producer_id, epoch)


@pytest.mark.rule(27)
def test_nobody_gets_a_proof_of_a_transaction_that_is_not_its_own(
    world: World, topic: str, robber: Intruder
) -> None:
    with intruder(world, "teller", topic) as teller:
        producer_id, epoch, proof = begun(teller, "till-5")
        own_id, own_epoch, _ = begun(robber, "loot-2")
        for name, who, at, partitions in (
            ("till-5", producer_id, epoch, (0,)),
            ("till-5", producer_id, epoch, ()),
            ("loot-2", producer_id, epoch, (0,)),
            ("loot-2", producer_id, epoch, ()),
            ("loot-2", producer_id, own_epoch, (0,)),
            ("loot-2", own_id, own_epoch + 1, (0,)),
            ("loot-2", own_id, own_epoch + 1, ()),
            ("loot-3", producer_id, epoch, (0,)),
        ):
            assert robber.registers(name, who, at, *partitions), (name, who, at)
            assert robber.proof is msgspec.UNSET
        assert teller.writes(producer_id, epoch, 0, proof=proof) is ErrorCode.NONE
        ended(teller, "till-5", producer_id, epoch)


@pytest.mark.rule(27)
def test_who_had_a_transactional_id_before_writes_into_no_transaction_of_the_next_owner(
    world: World, topic: str
) -> None:
    """The producer id goes over with it, and both may write to both."""
    with intruder(world, "clerk", topic) as clerk, intruder(world, "teller", topic) as teller:
        producer_id, epoch, old = begun(clerk, "till-6")
        world.forbid("clerk allow all transactional_id till*")
        same_id, later, proof = begun(teller, "till-6")
        assert same_id == producer_id
        assert later > epoch
        assert clerk.writes(producer_id, later, 0, proof=old) is ErrorCode.UNKNOWN_PRODUCER
        assert clerk.writes(producer_id, epoch, 0, proof=old) is ErrorCode.STALE_PRODUCER_EPOCH
        assert clerk.registers("till-6", producer_id, later, 0) == "AccessDeniedError"
        assert teller.writes(producer_id, later, 0, proof=proof) is ErrorCode.NONE
        ended(teller, "till-6", producer_id, later)


@pytest.mark.rule(27)
def test_stages_of_others_are_closed_and_their_own_go_on_by_a_new_gateway(
    world: World, topic: str, teller: penstock.Client
) -> None:
    stages = [teller.stage("till-job", 1) for _ in range(3)]
    for stage in stages:
        stage.send(topic, b"1")
        stage.flush(45)
    restart_gateway(world)
    with intruder(world, "robber", topic) as robber:
        for stage in stages:
            assert robber.writes(stage.producer_id, 0, 1) is ErrorCode.UNKNOWN_PRODUCER
    for stage in stages:
        stage.send(topic, b"2")
        stage.close(45)
    teller.commit_transaction("till-job", 1, [stage.name for stage in stages])
    assert Counter(committed(teller, topic)) == {b"1": 3, b"2": 3}


@pytest.mark.rule(27)
def test_proofs_hold_over_a_restart_of_the_node(
    world: World, topic: str, teller: penstock.Client
) -> None:
    producer = opened(teller, "till-7", topic)
    assert world.broker.stop() == 0
    world.broker.start()
    with intruder(world, "robber", topic) as robber:
        answer = robber.writes(producer.producer_id, producer.epoch, 1)
    producer.send(topic, b"2")
    producer.commit_transaction()
    producer.close()
    assert answer is ErrorCode.UNKNOWN_PRODUCER
    assert committed(teller, topic) == [b"1", b"2"]
