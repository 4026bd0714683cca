"""What a namespace may take beside names: bytes on the disk, shared memory, connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from keyed_fixture import World
from node_helpers import eventually

import penstock
from penstock.client.admin.access import LimitSetting
from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo

SIZE = 64 << 10
LIMIT = 20 * SIZE
BATCHES = 4000
"""More than a writer takes within any look at the bytes of a namespace on this machine."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("namespaces")) as world:
        yield world


def limit(world: World, setting: LimitSetting) -> None:
    with world.broker.connect() as client, client.admin() as admin:
        admin.set_limits(setting)


def uses(world: World, namespace: str) -> dict[str, tuple[int | None, int | None]]:
    with world.broker.connect() as client, client.admin() as admin:
        found = [one for one in admin.list_uses() if one.namespace == namespace]
    return {one.limit: (one.used, one.most) for one in found}


def fill(producer: penstock.Producer, topic: str) -> tuple[int, Exception]:
    """Bytes that were acknowledged before something was refused, and what said so."""
    for number in range(BATCHES):
        try:
            producer.send(topic, bytes(SIZE)).result(20)
        except penstock.PenstockError as error:
            return number * SIZE, error
    raise AssertionError("nothing was refused")


def takes(producer: penstock.Producer, topic: str) -> bool:
    try:
        producer.send(topic, b"x").result(20)
    except penstock.ResourceLimitError:
        return False
    return True


@pytest.mark.parametrize("way", ["tcp", "shm"])
def test_a_namespace_has_so_many_bytes_on_the_disk(world: World, way: str) -> None:
    name = f"full{way}"
    limit(world, LimitSetting(name, disk_bytes_max=LIMIT))
    for topic in (f"{name}.a", f"{name}.b", f"other{way}"):
        world.broker.create_topic(topic)
    world.allow(f"{name} allow write topic other{way}")
    key = world.key(name, namespace=name)
    if way == "tcp":
        connected = penstock.connect(world.broker.tcp_url, keys=key, transport="tcp", timeout=20)
    else:
        connected = world.broker.connect()
    with (
        connected as client,
        client.producer(linger=0.0) as producer,
        client.admin() as admin,
    ):
        filled, error = fill(producer, f"{name}.a")
        assert isinstance(error, penstock.ResourceLimitError)
        assert "disk_bytes_max" in str(error)
        assert "penstock quota limit" in str(error)
        assert filled >= LIMIT - SIZE
        assert not takes(producer, f"{name}.b"), "the limit is that of the namespace"
        assert takes(producer, f"other{way}")
        used, most = uses(world, name)["disk_bytes_max"]
        assert used is not None
        assert used >= LIMIT == most
        [log] = admin.describe_topic(f"{name}.a").partitions
        assert log.log_end * SIZE == filled, "what was acknowledged stays, and nothing else"
        admin.delete_topic(f"{name}.a")
        eventually(lambda: takes(producer, f"{name}.b"), "writing goes on")
    assert world.log.count(f"namespace {name} has") == 2, "told once each"


def test_a_transaction_ends_where_its_namespace_is_full(world: World) -> None:
    name = "tx"
    world.broker.create_topic("tx.a")
    key = world.key(name, namespace=name)
    with (
        penstock.connect(world.broker.tcp_url, keys=key, transport="tcp", timeout=20) as client,
        client.producer(transactional_id="tx.id") as producer,
        client.admin() as admin,
    ):
        with producer.transaction():
            producer.send("tx.a", b"before")
            producer.flush()
            limit(world, LimitSetting(name, disk_bytes_max=0))
            eventually(lambda: "namespace tx has" in world.log)
        eventually(lambda: admin.describe_topic("tx.a").partitions[0].last_stable == 3)
        with pytest.raises(penstock.PenstockError, match="disk_bytes_max"), producer.transaction():
            producer.send("tx.a", b"behind")


def test_a_namespace_has_a_share_of_connections(world: World) -> None:
    limit(world, LimitSetting("con", connections_max=2))
    first, second = world.key("con1", namespace="con"), world.key("con2", namespace="con")
    with world.dealer(first), world.dealer(second), world.dealer(second, hello=False) as third:

        def is_refused() -> bool:  # the gateway looks for limits twice a second
            third.say(fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "wire", third.incarnation))
            told = third.hear_either((fr.Refused, fr.Welcome))
            assert isinstance(told, fr.Refused)
            assert told.error == "ResourceLimitError"
            assert "'con'" in told.message
            return "connections_max=2" in told.message

        assert is_refused()
    with world.dealer(first):
        pass


def test_a_namespace_has_a_share_of_shared_memory(world: World) -> None:
    with world.dealer(world.key("mem", namespace="mem")) as dealer:
        one = dealer.attach(1, lo.KIND_PRODUCER)
        size, _ = eventually(lambda: uses(world, "mem"))["shm_bytes_max"]
        assert size == one.writers * lo.lane_bytes(one.lane_capacity)
        limit(world, LimitSetting("mem", shm_bytes_max=size * 2))
        dealer.attach(2, lo.KIND_PRODUCER)
        dealer.say(fr.Attach(3, lo.KIND_PRODUCER, ""))
        told = dealer.hear_either((fr.Refused, fr.Attached))
        assert isinstance(told, fr.Refused)
        assert told.error == "ResourceLimitError"
        assert f"shm_bytes_max={size * 2}" in told.message
        dealer.attach(4, lo.KIND_CONSUMER)
        dealer.say(fr.Detach(2))
        eventually(lambda: uses(world, "mem")["shm_bytes_max"][0] == size)
        dealer.attach(5, lo.KIND_PRODUCER)


def test_what_is_not_set_is_a_share(world: World) -> None:
    world.key("new", namespace="new")
    eventually(lambda: uses(world, "new"))
    found = uses(world, "new")
    assert {limit for limit, (_, most) in found.items() if most is None} == {"topics_max"}
    assert {used for used, _ in found.values()} == {0}
    limit(world, LimitSetting("new", topics_max=1))
    assert uses(world, "new") == {**found, "topics_max": (0, 1)}
