"""The gateway, spoken to by its wire protocol: what remote clients get, and what they may not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from batch_bytes import put, reseal
from wire import Dealer, batch_of

from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_CONTROL
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=True) as broker:
        yield broker


@pytest.fixture
def dealer(broker: Broker) -> Iterator[Dealer]:
    with Dealer(broker.tcp_url) as dealer:
        yield dealer


def records(broker: Broker, topic: str) -> list[bytes]:
    with broker.connect() as client, client.consumer(topic, follow=False) as consumer:
        return [record.value or b"" for record in consumer]


def test_a_connection_is_told_of_node_and_bounds(broker: Broker, dealer: Dealer) -> None:
    welcome = dealer.welcome
    with broker.connect() as client, client.admin() as admin:
        node = admin.describe_node()
    assert welcome.node_uuid == node.node_uuid
    assert welcome.local == f"{broker.data}/attach.sock"
    assert welcome.apis == fr.APIS
    assert welcome.heartbeat < welcome.silence_max


def test_records_go_through_lanes_and_are_answered_with_offsets(
    broker: Broker, dealer: Dealer
) -> None:
    topic = broker.create_topic()
    attached = dealer.producer()
    info = dealer.find(1, topic)
    for number in range(3):
        batch = batch_of([b"%d" % number] * 10, info, attached.producer_id, number * 10)
        dealer.say(fr.Produce(1, info.pages[0] % attached.writers, number, info.pages[0]), batch)
    acks = dealer.acks(3)
    assert [(ack.sequence, ack.base_offset, ack.error) for ack in acks] == [
        (0, 0, 0), (1, 10, 0), (2, 20, 0),
    ]  # fmt: skip
    assert records(broker, topic) == [b"0"] * 10 + [b"1"] * 10 + [b"2"] * 10


def test_where_a_node_stands_alone_what_is_appended_is_committed(
    broker: Broker, dealer: Dealer
) -> None:
    topic = broker.create_topic()
    attached = dealer.producer()
    info = dealer.find(1, topic)
    page = info.pages[0]
    for number in range(3):
        batch = batch_of([b"x"], info, attached.producer_id, number)
        dealer.say(fr.Produce(1, page % attached.writers, number, page, lo.FRAME_COMMITTED), batch)
    assert [(ack.base_offset, ack.error) for ack in dealer.acks(3)] == [(0, 0), (1, 0), (2, 0)]
    assert (dealer.welcome.cluster, dealer.welcome.broker) == (b"", fr.NOBODY)


def test_an_answer_tells_how_the_partitions_stand_that_it_names(
    broker: Broker, dealer: Dealer
) -> None:
    topic = broker.create_topic(partitions=3)
    dealer.attach(1, lo.KIND_ADMIN)
    info = dealer.find(1, topic)
    assert [page.page for page in dealer.answer.pages] == info.pages
    assert {page.topic_id for page in dealer.answer.pages} == {info.topic_id}


def test_what_the_node_refuses_is_answered(dealer: Dealer) -> None:
    dealer.attach(1, lo.KIND_ADMIN)
    refused = dealer.ask(1, ms.FindTopic("no-such-topic"))
    assert isinstance(refused, ms.Refused)
    assert refused.error == "UnknownTopicError"


@pytest.mark.parametrize("body", [ms.OpenLane(0), ms.Bye(), ms.Hello(1, 1, 0, "x")])
def test_a_remote_client_cannot_say_what_only_the_gateway_says(dealer: Dealer, body) -> None:
    dealer.attach(1, lo.KIND_PRODUCER)
    refused = dealer.ask(1, body)
    assert isinstance(refused, ms.Refused)
    assert refused.error == "UnsupportedVersionError"


def bad_batches(good: bytes) -> dict[str, tuple[bytes, ErrorCode]]:
    def changed(**fields: int | bytes) -> bytes:
        image = bytearray(good)
        put(image, **fields)
        return bytes(reseal(image))

    flipped = bytearray(good)
    flipped[-1] ^= 1
    return {
        "empty": (b"", ErrorCode.CORRUPT_BATCH),
        "random": (b"\x5a" * 500, ErrorCode.CORRUPT_BATCH),
        "cut": (good[:-64], ErrorCode.CORRUPT_BATCH),
        "longer": (good + bytes(64), ErrorCode.CORRUPT_BATCH),
        "header": (bytes([*good[:20], good[20] ^ 1, *good[21:]]), ErrorCode.CORRUPT_BATCH),
        "body": (bytes(flipped), ErrorCode.CORRUPT_BATCH),
        "version": (changed(version=2), ErrorCode.UNSUPPORTED_VERSION),
        "topic": (changed(topic_id=b"x" * 16), ErrorCode.WRONG_TOPIC_ID),
        "partition": (changed(partition=1), ErrorCode.WRONG_TOPIC_ID),
        "producer": (changed(producer_id=4711), ErrorCode.UNKNOWN_PRODUCER),
        "control": (changed(attributes=ATTR_CONTROL), ErrorCode.CORRUPT_BATCH),
    }


@pytest.mark.rule(27)
def test_rule_27_a_bad_batch_is_refused_in_its_turn_and_never_gets_into_a_lane(
    broker: Broker, dealer: Dealer
) -> None:
    topic = broker.create_topic()
    attached = dealer.producer()
    info = dealer.find(1, topic)
    page = info.pages[0]
    writer = page % attached.writers
    good = batch_of([b"good"], info, attached.producer_id, 0)
    cases = bad_batches(good)
    for number, (batch, _) in enumerate(cases.values()):
        dealer.say(fr.Produce(1, writer, number, page), batch)
    last = len(cases)
    dealer.say(fr.Produce(1, writer, last, page), good)
    dealer.say(fr.Produce(1, writer, last + 1, lo.PAGES_MAX + writer), good)
    acks = dealer.acks(last + 2)
    assert [ack.sequence for ack in acks] == list(range(last + 2))
    assert {name: ErrorCode(ack.error) for name, ack in zip(cases, acks, strict=False)} == {
        name: code for name, (_, code) in cases.items()
    }
    assert acks[last].error == 0
    assert acks[last + 1].error == ErrorCode.UNKNOWN_PARTITION
    assert records(broker, topic) == [b"good"]


def test_the_nodes_own_topics_take_no_batch_of_a_remote_client(
    broker: Broker, dealer: Dealer
) -> None:
    with (
        broker.connect() as client,
        client.producer(transactional_id="makes-the-coordinator") as producer,
    ):
        producer.begin_transaction()
        producer.abort_transaction()
    attached = dealer.producer()
    catalog = (broker.data / "topics.json").read_text()
    from penstock.server.node.data_folder import decode_document
    from penstock.server.node.topic_catalog import CatalogDocument

    document = decode_document(catalog.encode(), CatalogDocument, "topics.json", 1)
    (own,) = [topic for topic in document.topics if topic.name.startswith("__")]
    info = ms.TopicInfo(own.name, bytes.fromhex(own.topic_id), list(own.pages), ms.TopicSettings())
    page = info.pages[0]
    batch = batch_of([b"forged"], info, attached.producer_id, 0)
    dealer.say(fr.Produce(1, page % attached.writers, 0, page), batch)
    (ack,) = dealer.acks(1)
    assert ack.error in (ErrorCode.WRONG_TOPIC_ID, ErrorCode.ACCESS_DENIED)


def test_an_endpoint_that_detaches_is_gone_from_the_node(broker: Broker, dealer: Dealer) -> None:
    from penstock.testing import wait_until

    with broker.connect() as client, client.admin() as admin:
        before = admin.describe_node().clients
        dealer.producer(1)
        assert admin.describe_node().clients == before + 1
        dealer.say(fr.Detach(1))
        wait_until(lambda: admin.describe_node().clients == before, timeout=25.0)


@pytest.mark.parametrize("returns", [False, True])
def test_a_member_that_detaches_has_left_unless_it_returns(
    broker: Broker, dealer: Dealer, returns: bool
) -> None:
    from penstock.ipc import coordination as co

    topic = broker.create_topic()
    group = f"left-{returns}"
    dealer.attach(1, lo.KIND_CONSUMER)
    joined = dealer.ask(1, co.JoinGroup(group, "", [topic], None, "manual"))
    dealer.say(fr.Detach(1, returns))
    dealer.attach(2, lo.KIND_CONSUMER)
    answer = dealer.ask(2, co.SyncGroup(group, joined.member_id, []))
    if returns:
        assert [(one.topic, one.partition) for one in answer.partitions] == [(topic, 0)]
    else:
        assert answer.error == "UnknownMemberError"


def test_a_producer_resumes_its_id_with_the_token_only(broker: Broker, dealer: Dealer) -> None:
    topic = broker.create_topic()
    attached = dealer.producer()
    info = dealer.find(1, topic)
    page = info.pages[0]
    writer = page % attached.writers
    first = batch_of([b"one"], info, attached.producer_id, 0)
    dealer.say(fr.Produce(1, writer, 0, page), first)
    assert dealer.acks(1)[0].base_offset == 0
    with Dealer(broker.tcp_url) as other:
        other.say(fr.Attach(1, lo.KIND_PRODUCER, "thief", attached.producer_id, b"x" * 32))
        assert other.hear(fr.Refused).error == "AttachRefusedError"
        back = other.attach(2, lo.KIND_PRODUCER, resume=attached.producer_id, token=attached.token)
        assert back.producer_id == attached.producer_id
        assert dealer.hear(fr.Ended).endpoint == 1
        # What may or may not have been answered goes again: it is in the log once.
        other.say(fr.Produce(2, writer, 7, page), first)
        second = batch_of([b"two"], info, attached.producer_id, 1)
        other.say(fr.Produce(2, writer, 8, page), second)
        assert [(ack.sequence, ack.base_offset) for ack in other.acks(2)] == [(7, 0), (8, 1)]
    assert records(broker, topic) == [b"one", b"two"]


def test_a_notice_tells_a_member_of_its_new_assignment(broker: Broker, dealer: Dealer) -> None:
    from penstock.ipc import coordination as co

    topic = broker.create_topic(partitions=2)
    dealer.attach(1, lo.KIND_CONSUMER)
    join = co.JoinGroup("g", "", [topic], None, "at-least-once")
    assignment = dealer.ask(1, join)
    assert isinstance(assignment, co.GroupAssignment)
    assert len(assignment.partitions) == 2
    with Dealer(broker.tcp_url) as other:
        other.attach(1, lo.KIND_CONSUMER)
        other.ask(1, join)
        notice = dealer.hear(fr.Notice)
    assert notice.notice > assignment.notice
    synced = dealer.ask(1, co.SyncGroup("g", assignment.member_id, []))
    assert [each.revoked for each in synced.partitions].count(True) == 1


def test_a_remote_member_that_is_cut_off_keeps_its_partitions_for_its_session_timeout(
    broker: Broker,
) -> None:
    from penstock.ipc import coordination as co
    from penstock.testing import wait_until

    topic = broker.create_topic(partitions=2)
    with Dealer(broker.tcp_url) as watching:
        watching.attach(1, lo.KIND_ADMIN)

        def members() -> list[int]:
            described = watching.ask(1, co.DescribeGroup("kept"))
            return [each.slot for each in described.members]

        with Dealer(broker.tcp_url) as dealer:
            dealer.attach(1, lo.KIND_CONSUMER)
            joined = dealer.ask(
                1, co.JoinGroup("kept", "", [topic], None, "at-least-once", session_timeout=60.0)
            )
            assert members()[0] >= 0
        wait_until(lambda: members() == [-1], timeout=25.0)  # known, without a connection
        with Dealer(broker.tcp_url) as dealer:
            dealer.attach(1, lo.KIND_CONSUMER)
            again = dealer.ask(
                1,
                co.JoinGroup("kept", joined.member_id, [topic], None, "at-least-once"),
            )
            assert again.member_id == joined.member_id
            assert [each.grant for each in again.partitions] == [
                each.grant for each in joined.partitions
            ]


# --- connections that break the rules ---------------------------------------------------------
def test_who_does_not_say_hello_is_told_to(broker: Broker) -> None:
    with Dealer(broker.tcp_url, hello=False) as dealer:
        dealer.say(fr.Ping(1))
        assert dealer.hear(fr.Ended).endpoint == -1
        assert dealer.greet().protocol == fr.PROTOCOL_VERSION


def test_an_unknown_version_is_refused_with_both_named(broker: Broker) -> None:
    with Dealer(broker.tcp_url, hello=False) as dealer:
        dealer.say(fr.Hello(99, fr.APIS, "future", bytes(16)))
        refused = dealer.hear(fr.Refused)
        assert (refused.endpoint, refused.error) == (-1, "UnsupportedVersionError")
        assert "99" in refused.message
        dealer.say(fr.Hello(1, {**fr.APIS, "produce": (3, 4)}, "future", bytes(16)))
        assert "'produce' in versions 3 to 4" in dealer.hear(fr.Refused).message


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"garbage"],
        [b"\x81\xa4type\xa5hello" * 20],
        [b"x" * (fr.CLIENT_HEADER_MAX + 1)],
        [b"a", b"b", b"c"],
        [b"\x93" * 100_000],
    ],
    ids=["empty", "garbage", "repeated", "oversized", "parts", "nested"],
)
def test_a_bad_frame_ends_its_connection_and_no_other(
    broker: Broker, dealer: Dealer, frames: list[bytes]
) -> None:
    with Dealer(broker.tcp_url) as other:
        other.socket.send_multipart(frames)
        assert other.hear(fr.Ended).endpoint == -1
    dealer.say(fr.Ping(5))
    assert dealer.hear(fr.Pong).stamp == 5


def test_batches_out_of_sequence_end_the_connection(broker: Broker) -> None:
    topic = broker.create_topic()
    with Dealer(broker.tcp_url) as dealer:
        attached = dealer.producer()
        info = dealer.find(1, topic)
        page = info.pages[0]
        batch = batch_of([b"x"], info, attached.producer_id, 0)
        dealer.say(fr.Produce(1, page % attached.writers, 5, page), batch)
        assert dealer.acks(1)[0].sequence == 5
        dealer.say(fr.Produce(1, page % attached.writers, 7, page), batch)
        assert "where 6 was due" in dealer.hear(fr.Ended).reason


def test_a_chosen_identity_is_not_served(broker: Broker) -> None:
    with Dealer(broker.tcp_url, hello=False, routing_id=b"me") as dealer:
        dealer.say(fr.Hello(1, fr.APIS, "chosen", bytes(16)))
        assert not dealer.socket.poll(300)


def test_only_the_gateway_attaches_for_others(broker: Broker) -> None:
    from penstock.client.session import Session, place_of
    from penstock.core.errors import AttachRefusedError

    with pytest.raises(AttachRefusedError, match="not this node's gateway"):
        Session.attach(
            place_of(broker.url),
            lo.KIND_PRODUCER,
            client_id="forger",
            timeout=5,
            remote=ms.RemotePeer("admin", "10.0.0.1", bytes(16)),
        )
