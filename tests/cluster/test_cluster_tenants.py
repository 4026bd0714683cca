"""What one tenant may do to another at three brokers with keys, by messages of its own over real
connections, and what a namespace may take of each broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest
from keyed_fixture import KeyedCluster
from wire import Dealer

import penstock
from penstock.client.admin.access import LimitSetting
from penstock.cluster.frames import messages as fr
from penstock.ipc import accessing as ac
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.security.keys import KEY_VARIABLE
from penstock.testing import wait_until

pytestmark = pytest.mark.timeout(180)

WITHIN = 60.0
SIZE = 64 << 10
LIMIT = 20 * SIZE
BATCHES = 4000
"""More than a writer takes within any look at the bytes of a namespace."""
FAR = 1_000_000_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
    """`ann` and `bob` have a namespace each, and share the groups "ours*"."""
    lines = ["ann allow read group ours*", "bob allow read group ours*"]
    spaces = {"ann": "ann", "bob": "bob"}
    made = KeyedCluster(tmp_path_factory.mktemp("tenants"), ("ann", "bob"), lines, spaces)
    with made.cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv(KEY_VARIABLE, str(made.file("admin")))
        wait_until(lambda: not made.cluster.ailing(), WITHIN, made.cluster.log_tail)
        with made.connect("admin") as client, client.admin() as admin:
            for name in ("ann.orders", "bob.orders"):
                config = penstock.TopicConfig(partitions=3, replication_factor=3)
                admin.create_topic(name, config)
        yield made


@pytest.fixture
def admin(world: KeyedCluster) -> Iterator[penstock.Admin]:
    with world.connect("admin") as client, client.admin() as admin:
        yield admin


def coordinator_of(world: KeyedCluster) -> int:
    """The broker that answers for groups."""

    def found() -> int:
        with world.dealer("admin", 1) as dealer:
            return dealer.hear(fr.Leaders).coordinator

    return wait_until(lambda: max(found(), 0), WITHIN, "a coordinator")


@pytest.fixture(scope="module")
def coordinator(world: KeyedCluster) -> int:
    with world.connect("ann") as client:
        client.consumer("ann.orders", group="ann.first").close()  # the first one makes its log
    return coordinator_of(world)


@pytest.fixture
def ann(world: KeyedCluster, coordinator: int) -> Iterator[Dealer]:
    with world.dealer("ann", coordinator) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        yield dealer


@pytest.fixture
def bob(world: KeyedCluster, coordinator: int) -> Iterator[Dealer]:
    with world.dealer("bob", coordinator) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        yield dealer


def refused(told: msgspec.Struct) -> str:
    assert isinstance(told, ms.Refused), told
    return told.error


def leaders(admin: penstock.Admin, topic: str) -> dict[int, int]:
    """By partition, once each has one."""

    def found() -> dict[int, int]:
        places = admin.describe_partitions(topic)
        led = {each.partition: each.leader for each in places if each.leader > 0}
        return led if len(led) == len(places) else {}

    return wait_until(found, WITHIN, f"leaders of {topic}")


def is_taken(producer: penstock.Producer, topic: str, partition: int, nbytes: int = 1) -> bool:
    try:
        producer.send(topic, bytes(nbytes), partition=partition).result(WITHIN)
    except penstock.ResourceLimitError:
        return False
    return True


def used(world: KeyedCluster, broker: int, limit: str) -> int:
    """By the namespace of `ann`, at that broker."""
    with world.dealer("admin", broker) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        told = dealer.ask(1, ac.ListAccess("uses"))
    found = [each for each in told.uses if (each.namespace, each.limit) == ("ann", limit)]
    return found[0].used or 0


def join(dealer: Dealer, group: str, topic: str) -> co.GroupAssignment:
    told = dealer.ask(1, co.JoinGroup(group, "", [topic], None, "at-least-once"), WITHIN)
    assert isinstance(told, co.GroupAssignment), told
    return told


def commit(owned: co.Owned, offset: int) -> list[co.OffsetCommit]:
    return [co.OffsetCommit(owned.topic_id, owned.partition, owned.grant, offset)]


# --- groups --------------------------------------------------------------------------------------
def test_costly_patterns_are_refused_by_their_form_and_move_no_leader(
    world: KeyedCluster, admin: penstock.Admin, bob: Dealer, coordinator: int
) -> None:
    before = admin.describe_cluster()
    told = set()
    for first in range(64):
        classes = "".join(f"[{chr(200 + first + each)}-\U0010ffff]" for each in range(30))
        ask = co.JoinGroup("ours-slow", "", [], f"bob\\.(?i:{classes})", "at-least-once")
        told.add(refused(bob.ask(1, ask, WITHIN)))
    assert told == {"ConfigError"}
    after = admin.describe_cluster()
    assert (after.controller, after.term) == (before.controller, before.term)
    assert coordinator_of(world) == coordinator


def test_nobody_commits_for_the_members_of_others_or_beyond_a_log(
    admin: penstock.Admin, ann: Dealer, bob: Dealer, coordinator: int
) -> None:
    """A broker judges offsets of logs that it leads: it does not know where others end."""
    hers = join(ann, "ours-1", "ann.orders")
    for group, member in (("ours-1", hers.member_id), ("ours-1", "nobody")):
        for owned in hers.partitions:
            ask = co.CommitOffsets(group, member, commit(owned, 0))
            assert refused(bob.ask(1, ask, WITHIN)) == "UnknownMemberError"
    his = join(bob, "ours-2", "bob.orders")
    led = leaders(admin, "bob.orders")
    for owned in his.partitions:
        told = bob.ask(1, co.CommitOffsets("ours-2", his.member_id, commit(owned, FAR)), WITHIN)
        if led[owned.partition] == coordinator:
            assert refused(told) == "OffsetOutOfRangeError"
    foreign = msgspec.structs.replace(his.partitions[0], topic_id=hers.partitions[0].topic_id)
    told = bob.ask(1, co.CommitOffsets("ours-2", his.member_id, commit(foreign, 0)), WITHIN)
    assert told == co.Committed([foreign.partition])


# --- what is told --------------------------------------------------------------------------------
def test_no_broker_tells_of_the_topics_of_others_or_of_the_room_on_its_disk(
    world: KeyedCluster,
) -> None:
    with world.dealer("admin", 1) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        info = dealer.find(1, "ann.orders")
    nobodys, errors = b"?" * 16, set()
    for number in (1, 2, 3):
        with world.dealer("bob", number) as bob:
            bob.attach(1, lo.KIND_CONSUMER)
            assert not any(bob.ask(1, lk.LookUpPages([])).disk[1:])
            said = set()
            for cursor, topic_id in enumerate((info.topic_id, nobodys)):
                page = info.pages[0]
                bob.say(fr.Fetch(1, cursor, page, topic_id, 0, 0, -1, False, 1 << 20))
                failed = bob.hear(fr.CursorFailed)
                said.add((failed.error, failed.message.replace(topic_id.hex(), "")))
            assert len(said) == 1, "the same of what is there and of what is not"
            errors |= {error for error, _ in said}
    assert errors == {"UnknownTopicError", "NotLeaderError"}, "who leads it, and the others"


# --- what a namespace may take -------------------------------------------------------------------
def test_a_broker_counts_what_it_has_and_a_full_follower_goes_on_copying(
    world: KeyedCluster, admin: penstock.Admin
) -> None:
    """A leader refuses by its own bytes. All three are in sync, or nothing would be committed."""
    admin.create_topic("ann.filler", penstock.TopicConfig(replication_factor=1))
    safe = penstock.TopicConfig(partitions=3, replication_factor=3, min_insync_replicas=3)
    admin.create_topic("ann.spread", safe)
    admin.set_limits(LimitSetting("ann", disk_bytes_max=LIMIT))
    [full] = leaders(admin, "ann.filler").values()
    led = {leader: partition for partition, leader in leaders(admin, "ann.spread").items()}
    other = next(leader for leader in led if leader != full)
    with world.connect("ann") as client, client.producer(linger=0.0, acks="all") as producer:
        assert not all(is_taken(producer, "ann.filler", 0, SIZE) for _ in range(BATCHES))
        assert not is_taken(producer, "ann.spread", led[full]), "the limit is that of the broker"
        for _ in range(10):
            assert is_taken(producer, "ann.spread", led[other], SIZE)
        assert used(world, full, "disk_bytes_max") >= LIMIT > used(world, other, "disk_bytes_max")
        copied = {each.partition: each for each in admin.describe_partitions("ann.spread")}
        assert sorted(copied[led[other]].isr) == [1, 2, 3]
        admin.delete_topic("ann.filler")
        wait_until(lambda: is_taken(producer, "ann.spread", led[full]), WITHIN, "room")
    admin.set_limits(LimitSetting("ann"))


def test_each_broker_has_a_share_of_shared_memory_for_a_namespace(
    world: KeyedCluster, admin: penstock.Admin
) -> None:
    with world.dealer("ann", 1) as first, world.dealer("ann", 2) as second:
        one = first.producer(1)
        size = one.writers * lo.lane_bytes(one.lane_capacity)
        admin.set_limits(LimitSetting("ann", shm_bytes_max=size))

        def is_refused() -> bool:  # brokers hear of limits one after the other
            first.say(fr.Attach(2, lo.KIND_PRODUCER, ""))
            told = first.hear_either((fr.Refused, fr.Attached))
            if not isinstance(told, fr.Refused):
                first.say(fr.Detach(2))
                return False
            return f"shm_bytes_max={size}" in told.message

        wait_until(is_refused, WITHIN, "the limit")
        second.producer(1)
    admin.set_limits(LimitSetting("ann"))


def test_a_namespace_has_a_limit_of_groups_and_transactional_ids(
    admin: penstock.Admin, ann: Dealer
) -> None:
    admin.set_limits(LimitSetting("ann", groups_max=0, transactional_ids_max=0))
    names = (f"ann.new-{number}" for number in itertools.count())
    for limit, ask in (
        ("groups_max=0", lambda: co.SeekGroup(next(names), [])),
        ("transactional_ids_max=0", lambda: co.InitTransactions(next(names), 60.0)),
    ):

        def is_refused(limit: str = limit, ask: Callable[[], msgspec.Struct] = ask) -> bool:
            told = ann.ask(1, ask(), WITHIN)  # brokers hear of limits one after the other
            return isinstance(told, ms.Refused) and limit in told.message

        wait_until(is_refused, WITHIN, limit)
    admin.set_limits(LimitSetting("ann"))
