"""Keys, access and limits of remote clients, by a real node, real keys and real connections."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from keyed_fixture import World, connects
from node_helpers import eventually
from wire import Dealer, batch_of

import penstock
from penstock.client.admin.access import AccessEntry, LimitSetting, QuotaSetting
from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core import header as hd
from penstock.core.errors import ErrorCode
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh
from penstock.security import keys
from penstock.testing import drain, produce


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("keys")) as world:
        yield world


@pytest.mark.setting("client.keys")
def test_an_authorized_key_comes_in_as_its_principal(world: World) -> None:
    file = world.key("ann", namespace="acme")
    with penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client:
        with client.admin() as admin:
            admin.create_topic("acme.orders")
            assert admin.list_topics() == ["acme.orders"]
        with client.producer() as producer:
            producer.send("acme.orders", b"1").result(45)
        with client.consumer("acme.orders", start="earliest") as consumer:
            assert [record.value for record in consumer.poll(timeout=45)] == [b"1"]


def test_no_key_a_wrong_key_and_a_wrong_server_do_not_come_in(world: World) -> None:
    key = keys.load_client_key(world.key("wrong"))
    stranger = zmq.curve_keypair()
    with Dealer(world.broker.tcp_url, hello=False) as dealer:
        assert not connects(dealer)
        eventually(lambda: "not let in: anonymous its handshake failed" in world.log)
    for public, secret, server in (
        (*stranger, key.server.encode()),
        (key.public.encode(), stranger[1], key.server.encode()),
        (key.public.encode(), key.secret.encode(), zmq.curve_keypair()[0]),
    ):
        options: dict[str, Any] = {
            "curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": server
        }  # fmt: skip
        with Dealer(world.broker.tcp_url, hello=False, **options) as dealer:
            assert not connects(dealer)
            if public == stranger[0]:
                eventually(lambda: stranger[0].decode() in world.log)
    line = next(one for one in world.log.splitlines() if "is not authorized" in one)
    assert "127.0.0.1" in line
    assert stranger[1].decode() not in world.log


def test_a_client_is_told_why_it_does_not_come_in(world: World, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    file = tmp_path / "x.key"
    keys.create_key(other, "x", file)

    def told(why: str, **options: Any) -> bool:
        """Once it is turned away within the time that it has."""
        with pytest.raises(penstock.NotConnectedError) as error:
            penstock.connect(world.broker.tcp_url, transport="tcp", timeout=1, **options)
        return why in str(error.value)

    eventually(lambda: told("key file", keys=file))
    eventually(lambda: told("wants a key"))
    unknown = world.key("unknown")
    keys.revoke_key(world.broker.data, "unknown")
    eventually(lambda: told("does not know this client's key", keys=unknown))


def test_a_revoked_key_ends_its_connections_and_opens_no_more(world: World) -> None:
    leaving, staying = world.key("leaver"), world.key("stayer")
    with world.dealer(leaving) as gone, world.dealer(staying) as stays:
        gone.attach(1, lo.KIND_ADMIN)
        stays.attach(1, lo.KIND_ADMIN)
        keys.revoke_key(world.broker.data, "leaver")
        ended = gone.hear(fr.Ended)
        assert ended.endpoint == -1
        assert "not authorized" in ended.reason
        assert isinstance(stays.ask(1, ms.ListTopics()), ms.Topics)
    with world.dealer(leaving, hello=False) as dealer:
        assert not connects(dealer)
    eventually(lambda: "sent away: leaver" in world.log)


def test_another_namespace_holds_for_connections_that_come_after(world: World) -> None:
    file = world.key("mover", namespace="here")
    with world.dealer(file) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        made = dealer.ask(1, ms.CreateTopic("here.a", ms.TopicSettings()))
        assert isinstance(made, ms.TopicFound)
        place = world.broker.data / "keys/authorized/mover.json"
        place.write_text(place.read_text().replace('"here"', '"there"'))
        dealer.hear(fr.Ended)
    with world.dealer(file) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        refused = dealer.ask(1, ms.FindTopic("here.a"))
        assert isinstance(refused, ms.Refused)
        assert refused.error == "AccessDeniedError"


TID = b"t" * 16
DENIED: list[ms.ClientMessage] = [
    ms.FindTopic("secret"),
    ms.CreateTopic("new", ms.TopicSettings()),
    ms.AlterTopic("secret", ms.TopicSettings()),
    ms.DeleteTopic("secret"),
    ms.TrimPartition("secret", 0, 0),
    ms.DescribeNode(),
    co.JoinGroup("g", "", ["secret"], None, "at-least-once"),
    co.JoinGroup("own.g", "", ["secret"], None, "at-least-once"),
    co.JoinGroup("own.g", "", [], ".*", "at-least-once"),
    co.SyncGroup("g", "m", []),
    co.LeaveGroup("g", "m"),
    co.CommitOffsets("g", "m", []),
    co.ClaimOffsets("g", "m", 1, []),
    co.DescribeGroup("g"),
    co.SeekGroup("g", []),
    co.SeekGroup("g", [], is_report=True),
    co.DeleteGroup("g"),
    sh.AcquireRecords("g", "m"),
    sh.BuryRecords("g", "m", TID, 0, []),
    sh.SeekShare("g", TID, 0, 0),
    sh.PauseShare("g"),
    sh.ResumeShare("g"),
    sh.DescribeShare("g"),
    sh.PeekShare("g", TID, 0),
    co.InitTransactions("t", 10.0),
    co.AddPartitions("t", 1, 1, []),
    co.EndTransaction("t", 1, 1, True),
    co.EndTransaction("own.t", 1, 1, True, [co.GroupOffsets("g", "m", [])]),
    co.EndTransaction("own.t", 1, 1, True, done=[sh.DoneJobs("g", "m", [])]),
    co.BeginStage("t", 1),
    co.EndStages("t", ["s"]),
    co.CommitTransaction("t", 1, []),
    ac.ListAccess("entries"),
    ac.AddAccess([ac.AccessEntry("outsider", "allow", "all", "topic", "*")]),
    ac.RemoveAccess([]),
    ac.SetQuota(ac.QuotaSetting("outsider")),
    ac.SetLimits(ac.LimitSetting("own")),
    cg.DescribeCluster(),
    cg.DescribePartitions("secret"),
    cg.ElectLeaders("secret"),
    cg.ReassignPartition("secret", 0, [1]),
    cg.RemoveBroker(1),
    cg.DrainBroker(1),
    cg.DescribeDrain(1),
    op.ListClients(),
    op.KickClient(1),
    op.DescribeSettings(),
    op.ChangeSettings({}),
]


@pytest.fixture(scope="module")
def outsider(world: World) -> Iterator[Dealer]:
    """Connected, with a namespace of its own, and nothing else."""
    with world.broker.connect() as client, client.admin() as admin:
        admin.create_topic("secret")
    with world.dealer(world.key("outsider", namespace="own")) as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        dealer.attach(2, lo.KIND_PRODUCER)
        dealer.attach(3, lo.KIND_CONSUMER)
        yield dealer


@pytest.mark.parametrize("request_", DENIED, ids=lambda one: type(one).__name__)
def test_each_request_is_denied_and_audited(
    world: World, outsider: Dealer, request_: ms.ClientMessage
) -> None:
    answer = outsider.ask(1, request_)
    assert isinstance(answer, ms.Refused), answer
    assert answer.error == "AccessDeniedError"
    assert "outsider" in answer.message
    eventually(lambda: "refused: outsider may not" in world.log)


def test_every_request_type_is_among_the_denied(world: World) -> None:
    import typing

    from penstock.server.security.authorizer import FREE, LOCAL_ONLY

    by_id = {lk.LookUpTime, lk.LookUpAppends, lk.LookUpSegments}  # below
    tried = {type(one) for one in DENIED} | by_id | set(FREE) | set(LOCAL_ONLY)
    assert tried == set(typing.get_args(ms.ClientMessage))


def test_nothing_tells_whether_a_topic_is_there(world: World, outsider: Dealer) -> None:
    def said(request: ms.ClientMessage, name: str) -> str:
        answer = outsider.ask(1, request)
        assert isinstance(answer, ms.Refused)
        return f"{answer.error} {answer.message}".replace(name, "?")

    assert said(ms.FindTopic("secret"), "secret") == said(ms.FindTopic("nosuch"), "nosuch")
    assert said(ms.DeleteTopic("secret"), "secret") == said(ms.DeleteTopic("nosuch"), "nosuch")
    assert outsider.ask(1, ms.ListTopics()).topics == []
    assert outsider.ask(1, ms.ListTopics(internal=True)).topics == []
    assert outsider.ask(1, co.ListTransactions()).transactions == []
    with world.broker.connect() as client, client.admin() as admin:
        node_side = admin._find("secret")
    page = node_side.pages[0]
    for there, gone in zip(looks(page, node_side.topic_id), looks(page, TID), strict=True):
        assert said(there, node_side.topic_id.hex()) == said(gone, TID.hex())


def test_pages_and_positions_of_others_are_not_shown(world: World, outsider: Dealer) -> None:
    with world.broker.connect() as client, client.admin() as admin:
        page = admin._find("secret").pages[0]
        with client.consumer("secret", group="watched", start="earliest") as member:
            with client.producer() as producer:
                producer.send("secret", b"x").result(45)
            assert member.poll(timeout=45)
            [one] = admin.describe_group("watched").members
            assert outsider_view(outsider, page, one.pid) == ([], [])
            world.allow("outsider allow describe topic secret")
            eventually(lambda: outsider_view(outsider, page, one.pid)[0] == [page])
            [place] = outsider_view(outsider, page, one.pid)[1]
            assert place[0] == page
            world.forbid("outsider allow describe topic secret")
            eventually(lambda: outsider_view(outsider, page, one.pid)[0] == [])


def outsider_view(outsider: Dealer, page: int, pid: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Which pages it is shown, and which positions of the clients of that process."""
    pages = outsider.ask(1, lk.LookUpPages([page]))
    assert [state.page for state in outsider.answer.pages] == pages.pages
    slots = [(slot, pid) for slot in range(lk.CLIENTS_AT_ONCE)]
    answer = outsider.ask(1, lk.LookUpPositions(slots))
    assert isinstance(answer, lk.PositionsLookedUp), answer
    found = answer.positions
    return pages.pages, [place for places in found for place in places]


def looks(page: int, topic_id: bytes) -> list[lk.Request]:
    place = lk.LogPlace(page, topic_id, 0, 0)
    return [
        lk.LookUpTime(page, topic_id, 0, 0), lk.LookUpAppends([place]), lk.LookUpSegments(place)
    ]  # fmt: skip


def test_groups_and_transactions_of_others_are_not_listed(world: World, outsider: Dealer) -> None:
    with (
        world.broker.connect() as client,
        client.consumer("secret", group="theirs") as consumer,
        client.producer(transactional_id="theirs") as producer,
    ):
        with producer.transaction():
            producer.send("secret", b"x")
        with client.admin() as admin:

            def is_listed() -> bool:
                consumer.poll(timeout=0.1)
                return "theirs" in [one.group for one in admin.list_groups()]

            eventually(is_listed)
        assert outsider.ask(1, co.ListGroups()).groups == []
        assert outsider.ask(1, co.ListTransactions()).transactions == []
    world.allow("outsider allow describe group theirs")
    [group] = outsider.ask(1, co.ListGroups()).groups
    assert group.group == "theirs"
    described = outsider.ask(1, co.DescribeGroup("theirs"))
    assert described.partitions == []  # of a topic that it may not describe
    world.forbid("outsider allow describe group theirs")


def test_batches_and_fetches_for_what_one_may_not_are_refused(
    world: World, outsider: Dealer
) -> None:
    with world.broker.connect() as client, client.admin() as admin:
        info = admin._find("secret")
    attached = outsider.attach(12, lo.KIND_PRODUCER)
    batch = batch_of([b"x"], info, attached.producer_id, 0)
    writer = info.pages[0] % attached.writers
    outsider.say(fr.Produce(12, writer, 0, info.pages[0]), batch)
    [ack] = outsider.acks(1)
    assert ack.error in (ErrorCode.ACCESS_DENIED, ErrorCode.WRONG_TOPIC_ID)
    outsider.say(fr.Fetch(3, 7, info.pages[0], info.topic_id, 0, 0, -1, False, 1 << 20))
    failed = outsider.hear(fr.CursorFailed)
    assert failed.error in ("AccessDeniedError", "UnknownTopicError")
    world.allow("outsider allow read topic secret")

    with world.broker.connect() as client, client.producer() as producer:
        producer.send("secret", b"now").result(45)
    outsider.say(fr.Fetch(3, 7, info.pages[0], info.topic_id, 0, 0, -1, False, 1 << 20))
    assert outsider.hear(fr.Fetched).next_offset > 0
    outsider.say(fr.Produce(12, writer, 1, info.pages[0]), batch)
    [ack] = outsider.acks(1)
    assert ack.error == ErrorCode.ACCESS_DENIED  # which it may know of by now
    world.forbid("outsider allow read topic secret")


def test_the_real_clients_say_what_is_denied(world: World) -> None:
    file = world.key("reader")
    url = world.broker.tcp_url
    world.broker.create_topic("public.news")
    world.allow("reader allow describe topic public.*")
    with penstock.connect(url, keys=file, transport="tcp") as client:
        with client.producer() as producer:
            delivery = producer.send("public.news", b"x")
            with pytest.raises(penstock.AccessDeniedError, match="may not write"):
                delivery.result(45)
        with (
            client.consumer("public.news", start="earliest") as consumer,
            pytest.raises(penstock.AccessDeniedError),
        ):
            consumer.poll(timeout=45)
        with pytest.raises(penstock.AccessDeniedError, match="acl add reader read topic"):
            client.consumer("secret").poll(timeout=45)
        with (
            client.producer() as producer,
            pytest.raises(penstock.AccessDeniedError, match="acl add reader write topic"),
        ):
            producer.send("secret", b"x").result(45)
        with client.admin() as admin, pytest.raises(penstock.AccessDeniedError):
            admin.describe_node()
    world.allow("reader allow all topic public.*")
    with (
        penstock.connect(url, keys=file, transport="tcp") as client,
        client.producer() as producer,
    ):
        producer.send("public.news", b"now").result(45)


def test_a_run_with_retries_says_which_topic_it_may_not_make_and_what_it_needs(
    world: World,
) -> None:
    file, url = world.key("clerk"), world.broker.tcp_url
    world.broker.create_topic("bills")
    world.allow("clerk allow read topic bills", "clerk allow read group clerk")
    policy = penstock.Retry(max=1, backoff=(0.0,))
    tries: list[penstock.Record] = []

    def refuse(record: penstock.Record) -> None:
        tries.append(record)
        if len(tries) == 2:
            consumer.stop()
        raise ValueError

    with penstock.connect(url, keys=file, transport="tcp") as client:
        consumer = client.consumer("bills", group="clerk")
        with pytest.raises(penstock.GroupError, match=r"bills\.retry\.clerk\.1.*cannot be made"):
            consumer.run(refuse, retry=policy)
        world.broker.create_topic("bills.retry.clerk.1")
        world.allow("clerk allow read topic bills.retry.clerk.*")
        with pytest.raises(penstock.GroupError, match=r"'bills\.dlq' for dead letters"):
            consumer.run(refuse, retry=policy)
        world.broker.create_topic("bills.dlq")
        world.allow("clerk allow write topic bills.dlq")
        produce(world.broker, "bills", [b"1"])
        with pytest.raises(penstock.AccessDeniedError, match="may not write"):
            consumer.run(refuse, retry=policy)
        tries.clear()  # it comes again
        world.allow("clerk allow write topic bills.retry.clerk.*")
        consumer.run(refuse, retry=policy)
    assert [record.value for record in drain(world.broker, "bills.dlq")] == [b"1"]


def test_who_reads_says_how_far_he_is_and_moves_no_members(world: World) -> None:
    """As a stream of Spark does for its `groupId`, with what reading takes."""
    file = world.key("query")
    world.broker.create_topic("told.news")
    world.allow("query allow read topic told.*", "query allow read group told.*")
    with (
        penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client,
        client.admin() as admin,
    ):
        admin.report_offsets("told.query", "told.news", {0: (0, 0)})
        with pytest.raises(penstock.AccessDeniedError, match="may not alter group"):
            admin.reset_offsets("told.query", "told.news", to="earliest")
        with pytest.raises(penstock.AccessDeniedError, match="may not read group"):
            admin.report_offsets("another", "told.news", {0: (0, 0)})
        with client.consumer("told.news", group="told.members") as member:
            eventually(lambda: member.poll(timeout=0.05) or member.assignment())
            with pytest.raises(penstock.GroupError, match="has 1 members"):
                admin.report_offsets("told.members", "told.news", {0: (0, 0)})


def test_entries_hold_for_connections_that_are_there(world: World) -> None:
    file = world.key("tenant")
    world.broker.create_topic("feed")
    world.allow("tenant allow all topic feed")
    with (
        penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client,
        client.producer() as producer,
    ):
        producer.send("feed", b"1").result(45)
        world.allow("* deny write topic feed")

        def denied() -> bool:
            try:
                producer.send("feed", b"2").result(45)
            except penstock.AccessDeniedError:
                return True
            return False

        eventually(denied)
        with world.broker.connect() as local, local.producer() as own:
            own.send("feed", b"local").result(45)  # rule 28
        world.forbid("* deny write topic feed")
        eventually(lambda: not denied())


def test_limits_of_a_namespace_hold_for_all_who_make_topics_there(world: World) -> None:
    file = world.key("small", namespace="small")
    with world.broker.connect() as local, local.admin() as admin:
        admin.set_limits(LimitSetting("small", topics_max=2, partitions_max=4))
        with (
            penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client,
            client.admin() as tenant,
        ):
            tenant.create_topic("small.a", penstock.TopicConfig(partitions=3))
            with pytest.raises(penstock.ResourceLimitError, match="partitions_max=4"):
                tenant.create_topic("small.b", penstock.TopicConfig(partitions=2))
            with pytest.raises(penstock.ResourceLimitError, match="partitions_max=4"):
                tenant.add_partitions("small.a", 5)
            tenant.create_topic("small.b")
            with pytest.raises(penstock.ResourceLimitError, match="topics_max=2"):
                admin.create_topic("small.c")
        assert admin.list_limits() == [LimitSetting("small", 2, 4)]
        admin.set_limits(LimitSetting("small"))
        assert admin.list_limits() == []


def test_a_principal_has_as_many_connections_as_its_limit(world: World) -> None:
    file, other = world.key("busy"), world.key("other")
    with world.broker.connect() as local, local.admin() as admin:
        admin.set_quota(QuotaSetting("busy", connections_max=2))
        with world.dealer(file), world.dealer(file), world.dealer(other):
            third = world.dealer(file, hello=False)
            third.say(fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "wire", third.incarnation))
            refused = third.hear(fr.Refused)
            assert refused.error == "ResourceLimitError"
            assert "connections_max" in refused.message
            third.close()
        admin.set_quota(QuotaSetting("busy", clients_max=2))

        def bound_is_seen() -> bool:
            with world.dealer(file) as dealer:
                for number in range(3):
                    dealer.say(fr.Attach(number, lo.KIND_ADMIN, "wire"))
                dealer.hear(fr.Attached)
                dealer.hear(fr.Attached)
                while not dealer.heard and dealer.socket.poll(2000):
                    message, _ = codec.from_gateway(dealer.socket.recv_multipart())
                    dealer.heard.append((message, None))
                return any(
                    isinstance(one, fr.Refused) and "clients_max" in one.message
                    for one, _ in dealer.heard
                )

        eventually(bound_is_seen)
        admin.set_quota(QuotaSetting("busy"))


def test_bytes_under_way_are_bounded_by_principal(world: World) -> None:
    file = world.key("heavy")
    with world.broker.connect() as local, local.admin() as admin:
        admin.set_quota(QuotaSetting("heavy", inflight_bytes_max=1))

        def is_refused() -> bool:
            with world.dealer(file) as dealer:
                dealer.say(fr.Attach(1, lo.KIND_PRODUCER, "wire"))
                assert dealer.socket.poll(10_000)
                message, _ = codec.from_gateway(dealer.socket.recv_multipart())
                return isinstance(message, fr.Refused) and message.error == "ResourceLimitError"

        eventually(is_refused)
        admin.set_quota(QuotaSetting("heavy"))
        eventually(lambda: not is_refused())


def test_access_survives_the_node_and_a_damaged_file_keeps_it_out(tmp_path: Path) -> None:
    from penstock.testing.embedded import EmbeddedNode

    with EmbeddedNode(tmp_path / "d") as node:
        with penstock.connect(node.url) as client, client.admin() as admin:
            entry = AccessEntry("ann", "allow", "read", "topic", "x.*")
            assert admin.add_access(entry, entry) == 1
            assert admin.add_access(entry) == 0
            with pytest.raises(penstock.ConfigError, match="host"):
                admin.add_access(AccessEntry("user:1", "allow", "read", "topic", "x"))
            many = [AccessEntry(f"p{n}", "deny", "all", "group", f"g{n}*") for n in range(200)]
            assert admin.add_access(*many) == 200
        node.stop()
        node.start()
        with penstock.connect(node.url) as client, client.admin() as admin:
            assert admin.list_access() == [entry, *many]
            assert admin.remove_access(*many) == 200
            file = tmp_path / "d" / "access.json"
            good = file.read_text()
            file.write_text(good[:-10])
            with pytest.raises(penstock.ConfigError, match="cannot be changed"):
                admin.add_access(*many)
            assert admin.list_access() == [entry]
        node.stop()
        with pytest.raises(penstock.PenstockError, match=r"access\.json"):
            node.start()
        file.write_text(good)
        node.start()


def test_a_damaged_file_changes_nothing_in_the_gateway_and_is_told(world: World) -> None:
    file = world.key("steady")
    world.broker.create_topic("calm")
    world.broker.create_topic("storm")
    world.allow("steady allow all topic calm")
    place = world.broker.data / "access.json"
    good = place.read_text()
    with (
        penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client,
        client.producer() as producer,
    ):
        producer.send("calm", b"1").result(45)
        place.write_text(good[:50])
        eventually(lambda: "access stays that of version" in world.log)
        producer.send("calm", b"2").result(45)
        with pytest.raises(penstock.AccessDeniedError):
            producer.send("storm", b"3")
        place.unlink()
        eventually(lambda: "is gone" in world.log)
        with pytest.raises(penstock.AccessDeniedError):
            producer.send("storm", b"3")
        place.write_text(good)
        producer.send("calm", b"4").result(45)
    world.allow("steady allow all topic storm")


@pytest.mark.parametrize("place", ["tcp://0.0.0.0:0", "tcp://[::]:0"])
def test_listening_beyond_this_host_needs_keys_or_a_word(tmp_path: Path, place: str) -> None:
    from penstock.testing.embedded import EmbeddedNode

    with pytest.raises(penstock.PenstockError, match="insecure"):
        EmbeddedNode(tmp_path / "d", listen=place)
    keys.create_key(tmp_path / "d", "ann", tmp_path / "ann.key")
    with EmbeddedNode(tmp_path / "d", listen=place) as node:
        port = node.tcp_url.rpartition(":")[2]
        with penstock.connect(
            f"tcp://127.0.0.1:{port}", keys=tmp_path / "ann.key", transport="tcp"
        ) as client:
            assert client is not None


def test_an_audit_line_in_json_has_its_fields(tmp_path: Path) -> None:
    from penstock.testing.embedded import EmbeddedNode

    keys.create_key(tmp_path / "d", "ann", tmp_path / "ann.key")
    log = tmp_path / "log"
    with (
        EmbeddedNode(
            tmp_path / "d", listen=True, log=log, arguments=("--log-format", "json")
        ) as node,
        penstock.connect(node.tcp_url, keys=tmp_path / "ann.key", transport="tcp") as client,
        client.admin() as admin,
    ):
        with pytest.raises(penstock.AccessDeniedError):
            admin.create_topic("x")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    [told] = [line for line in lines if line["logger"] == "penstock.audit"]
    fields = ("level", "event", "principal", "operation", "kind", "resource")
    assert [told[field] for field in fields] == [
        "WARNING", "refused", "ann", "create", "topic", "x",
    ]  # fmt: skip


def test_readers_end_when_their_right_does(world: World) -> None:
    file = world.key("subscriber")
    world.broker.create_topic("paper", partitions=2)
    world.allow("subscriber allow read topic paper", "subscriber allow read group subs")
    with (
        world.broker.connect() as local,
        local.producer() as producer,
        penstock.connect(world.broker.tcp_url, keys=file, transport="tcp") as client,
        client.consumer("paper", start="earliest") as consumer,
        client.consumer("paper", group="subs", start="earliest") as member,
    ):
        readers: tuple[Any, ...] = (consumer, member)
        for reader in readers:
            producer.send("paper", b"1").result(45)
            assert reader.poll(timeout=45)
        world.forbid("subscriber allow read topic paper")
        for reader in readers:

            def is_told(reader: Any = reader) -> bool:
                producer.send("paper", b"2").result(45)
                try:
                    reader.poll(timeout=0.2)
                except penstock.AccessDeniedError:
                    return True
                return False

            eventually(is_told, what=f"{reader} is told")


def test_a_producer_of_another_principal_is_not_taken_over(world: World) -> None:
    world.broker.create_topic("shared")
    world.allow("* allow all topic shared")
    mine, theirs = world.key("mine"), world.key("theirs")
    with world.dealer(mine) as owner, world.dealer(theirs) as thief:
        attached = owner.attach(1, lo.KIND_PRODUCER)
        info = owner.find(1, "shared")
        for token in (b"", attached.token, os.urandom(32)):
            thief.say(fr.Attach(1, lo.KIND_PRODUCER, "thief", attached.producer_id, token))
            refused = thief.hear(fr.Refused)
            assert refused.error == "AttachRefusedError"
        own = thief.attach(2, lo.KIND_PRODUCER)
        assert own.producer_id != attached.producer_id
        batch = batch_of([b"x"], info, attached.producer_id, 0)
        page = info.pages[0]
        thief.say(fr.Produce(2, page % own.writers, 0, page), batch)
        [ack] = thief.acks(1)
        assert ack.error == ErrorCode.UNKNOWN_PRODUCER


def test_a_flood_of_wrong_keys_is_bounded_in_the_log_and_holds_nobody_up(world: World) -> None:
    before = world.log.count("not let in")
    key = keys.load_client_key(world.key("patient"))
    public, secret = zmq.curve_keypair()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    for _ in range(150):
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
        sock.setsockopt(zmq.CURVE_PUBLICKEY, public)
        sock.setsockopt(zmq.CURVE_SECRETKEY, secret)
        sock.connect(world.broker.tcp_url)
        sockets.append(sock)
    with world.dealer(world.folder / "patient.key") as dealer:
        dealer.attach(1, lo.KIND_ADMIN)
        assert isinstance(dealer.ask(1, ms.ListTopics()), ms.Topics)
    for sock in sockets:
        sock.close()
    context.term()
    assert world.log.count("not let in") - before < 75


@pytest.mark.rule(27)
def test_rule_27_the_producer_id_of_anothers_transaction_is_refused(world: World) -> None:
    """Both may write to the topic; one of them knows the other's open transaction."""
    world.allow("teller allow all topic tills", "teller allow all transactional_id till")
    world.allow("robber allow all topic tills")
    with world.broker.connect() as client, client.admin() as admin:
        admin.create_topic("tills")
    with world.dealer(world.key("teller")) as teller, world.dealer(world.key("robber")) as robber:
        writers = teller.producer().writers
        info = teller.find(1, "tills")
        ready = teller.ask(1, co.InitTransactions("till", 60.0))
        assert isinstance(ready, co.TransactionReady), ready
        place = [(info.topic_id, 0)]
        teller.ask(1, co.AddPartitions("till", ready.producer_id, ready.producer_epoch, place))
        robber.producer()
        page = info.pages[0]
        forged, honest = (
            batch_of(
                [value], info, ready.producer_id, 0, producer_epoch=ready.producer_epoch,
                attributes=hd.ATTR_TRANSACTIONAL,
            )
            for value in (b"forged", b"honest")
        )  # fmt: skip
        robber.say(fr.Produce(1, page % writers, 0, page), forged)
        assert robber.acks(1)[0].error == ErrorCode.UNKNOWN_PRODUCER
        teller.say(fr.Produce(1, page % writers, 0, page, 0, teller.answer.proof), honest)
        assert teller.acks(1)[0].error == 0


def test_a_cursor_tells_of_no_page_but_of_its_own_topic(world: World) -> None:
    """Whatever page it names, and whatever stands there later."""
    with world.broker.connect() as client, client.admin() as admin:
        admin.create_topic("hidden")
        info = admin._find("hidden")
        with client.producer() as producer:
            producer.send("hidden", b"x").result(45)
    with world.dealer(world.key("guesser", namespace="guess")) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        own = dealer.ask(1, ms.CreateTopic("guess.t", ms.TopicSettings())).topic
        for credit in (0, 1 << 20):
            dealer.say(fr.Fetch(1, credit, info.pages[0], own.topic_id, 0, 0, -1, False, credit))
            assert dealer.hear(fr.CursorFailed).error == "UnknownTopicError"
        dealer.ask(1, ms.ListTopics())
        told = [page for one, _ in dealer.heard for page in getattr(one, "pages", [])]
        assert [page for page in told if page.topic_id == info.topic_id] == []


def test_who_may_read_no_more_hears_no_more_of_how_a_topic_moves(world: World) -> None:
    world.broker.create_topic("moving")
    world.allow("onlooker allow read topic moving")
    with (
        world.dealer(world.key("onlooker")) as dealer,
        world.broker.connect() as local,
        local.producer() as producer,
    ):
        dealer.attach(1, lo.KIND_CONSUMER)
        info = dealer.find(1, "moving")
        dealer.say(fr.Fetch(1, 1, info.pages[0], info.topic_id, 0, 0, -1, False, 0))
        producer.send("moving", b"1").result(45)

        def heard(end: int) -> bool:
            pages = dealer.hear_either((fr.Pages,), 2.0)
            assert isinstance(pages, fr.Pages)
            return any(page.log_end == end for page in pages.pages)

        eventually(lambda: heard(1))
        world.forbid("onlooker allow read topic moving")
        look = lk.LookUpTime(info.pages[0], info.topic_id, 0, 0)
        eventually(lambda: isinstance(dealer.ask(1, look), ms.Refused))  # by the gateway
        producer.send("moving", b"2").result(45)

        def goes_on() -> None:
            while not heard(2):
                pass

        with pytest.raises(AssertionError, match="no Pages"):
            goes_on()


def test_nobody_takes_the_members_of_another_group_away(world: World) -> None:
    """By the name of a group of one's own, and the id of a member that is shown elsewhere."""
    world.broker.create_topic("teamwork", partitions=2)
    world.allow("member allow read topic teamwork", "member allow read group theirs2")
    world.allow("taker allow describe group theirs2")
    join = co.JoinGroup("theirs2", "", ["teamwork"], None, "at-least-once")
    with (
        world.dealer(world.key("member")) as first,
        world.dealer(world.key("member2", principal="member")) as second,
        world.dealer(world.key("taker", namespace="taker")) as taker,
    ):
        first.attach(1, lo.KIND_CONSUMER)
        taker.attach(1, lo.KIND_ADMIN)
        joined = first.ask(1, join)
        [shown] = taker.ask(1, co.DescribeGroup("theirs2")).members
        assert shown.member_id == joined.member_id
        taker.ask(1, co.LeaveGroup("taker.own", shown.member_id))
        second.attach(1, lo.KIND_CONSUMER)
        second.ask(1, join)
        assert first.hear(fr.Notice).notice > joined.notice


def test_who_looks_up_and_goes_fills_no_log(world: World) -> None:
    world.broker.create_topic("looked")
    world.allow("browser allow read topic looked")
    with (
        world.dealer(world.key("browser")) as dealer,
        world.broker.connect() as client,
        client.producer() as producer,
    ):
        producer.send("looked", b"x").result(45)
        dealer.attach(1, lo.KIND_ADMIN)
        info = dealer.find(1, "looked")
        [page] = info.pages
        many = lk.LookUpAppends([lk.LogPlace(page, info.topic_id, 0, 0)] * lk.PLACES_AT_ONCE)
        raw = msgspec.Raw(msgspec.msgpack.encode(many))
        for number in range(2, 12):
            dealer.attach(number, lo.KIND_ADMIN)
            for request in range(5):
                dealer.say(fr.Ask(number, request, 5.0, raw))
            dealer.say(fr.Detach(number))
        dealer.say(fr.Ask(1, 99, 5.0, raw))
        while dealer.hear(fr.Answer).endpoint != 1:  # each connection's are done in order
            pass
    assert "LookUpAppends of endpoint" not in world.log
