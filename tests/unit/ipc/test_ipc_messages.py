"""Messages: their names on the wire, the largest of each kind over a real channel, and misfits."""

from __future__ import annotations

import socket
import typing

import msgspec
import pytest

from penstock.cluster.controller import ControllerConfig
from penstock.core.swapping import SOURCES_MAX
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh
from penstock.ipc.channel import FDS_MAX, MESSAGE_BYTES_MAX, Channel, ChannelError

U64 = (1 << 64) - 1
U32 = (1 << 32) - 1
ID = b"\xff" * 16
NAME = "n" * 200
GROUP = co.GroupInfo(NAME, "at-least-once", "stable", U64, 256, 4095)
REASON = "\N{SNOWMAN}" * 1000
SETTINGS = ms.TopicSettings(
    *(
        4096,
        U64,
        1.5,
        "interval",
        0.1,
        "append",
        U64,
        2.5,
        U64,
        "compact,delete",
        1.5,
        2.5,
        0.1,
        16,
        16,
    )
)
SEGMENT = ms.CleanedSegment(U64, U64, U64, [(U64, U64, 0xFFFFFFFF)] * SOURCES_MAX)

NUMBER = (1 << 63) - 2
HASHES = [b"h" * (sh.HASHES_BYTES_MAX // 2 // 250)] * 2
ENTRY = ac.AccessEntry(NAME, "allow", "describe", "transactional_id", NAME)
QUOTA = ac.QuotaSetting(NAME, NAME, *[1 << 50] * 4)
LIMITS = ac.LimitSetting(NAME, 1 << 50, 1 << 50)
BROKER = cg.BrokerInfo(65_535, U64, "u" * 100, "r" * 100, "leaving", 4095, 4095, 4095)
MEMBER = cg.QuorumMember(65_535, "follower", U64, "\N{SNOWMAN}" * cg.TROUBLE_MAX)
PLACE = cg.PartitionPlace(
    NAME, 4095, 65_535, U32, [65_535] * 2 * cg.REPLICAS_MAX, [65_535] * 2 * cg.REPLICAS_MAX,
    [65_535] * cg.REPLICAS_MAX, [65_535] * 2 * cg.REPLICAS_MAX,
    cg.UncleanRecovery(65_535, U32, U64, U64, 1.5),
)  # fmt: skip

CLIENT_INFO = op.ClientInfo(
    "65535-" + "9" * 20, "producer", "\N{SNOWMAN}" * 100, NAME, "tcp", "a" * 100, U32, 1.5
)


def topic(pages):
    return ms.TopicInfo(NAME, b"\xff" * 16, pages, SETTINGS)


RUN = (NUMBER - 1, NUMBER)
# Every message at its largest.
CLIENT = [
    ms.Hello(1, lo.KIND_PRODUCER, U64, NAME, U64),
    ms.OpenLane(63, lo.LANE_CAPACITY_MAX),
    ms.FindTopic(NAME, "write"),
    ms.ListTopics(NAME, True),
    ms.CreateTopic(NAME, SETTINGS),
    ms.AlterTopic(NAME, SETTINGS),
    ms.DeleteTopic(NAME),
    ms.TrimPartition(NAME, 4095, U64, b"\xff" * 16),
    ms.SwapSegments(NAME, 4095, b"\xff" * 16, SEGMENT, U64),
    ms.FindFloor(b"\xff" * 16, 4095),
    ms.DescribeNode(),
    ms.Bye(),
    co.JoinGroup(
        NAME, NAME, [NAME] * co.NAMES_MAX, NAME, "at-least-once", NAME, 1.5, 1.5, True, NAME
    ),
    co.SyncGroup(NAME, NAME, [co.Release(ID, 4095, U64)] * co.PARTITIONS_MAX, 4095),
    co.LeaveGroup(NAME, NAME),
    co.CommitOffsets(
        NAME, NAME, [co.OffsetCommit(ID, 4095, U64, U64, U32)] * co.PARTITIONS_MAX
    ),
    co.ClaimOffsets(
        NAME, NAME, U64, [co.Claim(ID, 4095, U64, U64, U64, U32)] * co.PARTITIONS_MAX, U64
    ),
    co.ListGroups(NAME),
    co.DescribeGroup(NAME, 4095),
    co.SeekGroup(NAME, [co.OffsetSeek(ID, 4095, U64, U32)] * co.PARTITIONS_MAX, True, True, True),
    co.DeleteGroup(NAME, [(ID, 4095)] * co.PARTITIONS_MAX),
    co.InitTransactions(NAME, 1.5),
    co.AddPartitions(NAME, U64, U32, [(ID, 4095)] * co.PARTITIONS_MAX),
    co.EndTransaction(
        NAME, U64, U32, True,
        [co.GroupOffsets(NAME, NAME, [co.OffsetCommit(ID, 4095, U64, U64, U32)] * 250)] * 2,
        co.PARTITIONS_MAX,
        [sh.DoneJobs(NAME, NAME, [sh.DoneLease(ID, 4095, NUMBER, [RUN] * 4)] * 250)],
    ),
    co.BeginStage(NAME, U64, NAME),
    co.EndStages(NAME, ["0" * 16] * co.STAGES_MAX),
    co.CommitTransaction(NAME, U64, ["0" * 16] * co.STAGES_MAX, False, True),
    co.ListTransactions(NAME),
    lk.LookUpTime(4095, ID, 4095, NUMBER, True),
    lk.LookUpAppends([lk.LogPlace(4095, ID, 4095, NUMBER)] * lk.PLACES_AT_ONCE),
    lk.LookUpSegments(lk.LogPlace(4095, ID, 4095, NUMBER)),
    lk.LookUpPages(list(range(lk.PAGES_AT_ONCE))),
    lk.LookUpPositions([(1023, 4095)] * lk.CLIENTS_AT_ONCE),
    ac.ListAccess("entries", 4095),
    ac.AddAccess([ENTRY] * ac.ENTRIES_PER_PAGE),
    ac.RemoveAccess([ENTRY] * ac.ENTRIES_PER_PAGE),
    ac.SetQuota(QUOTA),
    ac.SetLimits(LIMITS),
    cg.DescribeCluster(4095),
    cg.DescribePartitions(NAME, 4095),
    cg.ElectLeaders(NAME, 4095, True),
    cg.ReassignPartition(NAME, 4095, [65_535] * cg.REPLICAS_MAX, cg.REPLICAS_MAX),
    cg.RemoveBroker(65_535),
    cg.DrainBroker(65_535, True),
    cg.DescribeDrain(65_535),
    op.ListClients(NUMBER, 65_535),
    op.KickClient(NUMBER, 65_535),
    op.DescribeSettings(65_535),
    op.ChangeSettings({f"{NAME}{at}": NUMBER for at in range(op.CHANGES_MAX)}, 65_535),
    sh.AcquireRecords(
        NAME, NAME, 10_000, [sh.PartitionEnds(ID, 4095, NUMBER, NUMBER, NUMBER, *HASHES)] * 250,
        [sh.LeaseAnswer(ID, 4095, NUMBER, accepted=[RUN] * (sh.RUNS_MAX // 2),
                        failed=[sh.FailedRuns([RUN] * (sh.RUNS_MAX // 2), "r" * 1000, 1.5)])],
        sh.ShareSettings(max_lease=60.0, fair="header:" + NAME),
        [sh.HeldLease(ID, 4095, NUMBER)] * 250,
    ),
    sh.BuryRecords(NAME, NAME, ID, 4095, [RUN] * sh.RUNS_MAX),
    sh.SeekShare(NAME, ID, 4095, NUMBER),
    sh.PauseShare(NAME, "r" * sh.REASON_MAX),
    sh.ResumeShare(NAME),
    sh.DescribeShare(NAME, 4095),
    sh.PeekShare(NAME, ID, 4095, "waiting", NUMBER, sh.PEEKED_MAX),
]  # fmt: skip
NODE = [
    ms.Welcome(1, b"\xff" * 16, "b" * 36, "/" + "d" * 4095, 1023, lo.WRITERS_MAX, U64, U64,
               [ms.LaneInfo(NAME, number) for number in range(lo.WRITERS_MAX)]),
    ms.LaneOpened(NAME, 63),
    ms.TopicFound(topic(list(range(lo.PAGES_MAX)))),
    # All pages of a node are shared out among all its topics.
    ms.Topics([topic(list(range(4017))), *(topic([4017 + n]) for n in range(79))], True),
    ms.NodeDescription(U64, b"\xff" * 16, "/" + "d" * 4095, 1e9,
                       [ms.WriterInfo(*[U64] * 6)] * lo.WRITERS_MAX, U64, U64, U64),
    ms.Cleaned(U64, U64, U64),
    ms.FloorFound(U64),
    ms.Done(),
    co.GroupAssignment(
        NAME, U64, [co.Owned(NAME, ID, 4095, 4095, U64, True, U64, U32)] * 180, U64, True
    ),
    co.Committed(list(range(co.PARTITIONS_MAX))),
    co.Claimed([True] * co.PARTITIONS_MAX, [U64] * co.PARTITIONS_MAX),
    co.Groups([GROUP] * 180, True),
    co.GroupDescription(
        GROUP,
        [co.MemberInfo(NAME, NAME, NAME, U32, 1023, 4095)] * 36,
        [co.GroupPartition(NAME, ID, 4095, 4095, NAME, U64, U64, U32, U64, [U64] * 20)] * 35,
        *(True, U64, {NAME: U64}),
    ),
    co.TransactionReady(U64, U32, NAME),
    co.TransactionEnded(True, U32, U64),
    co.Transactions([co.TransactionInfo(NAME, "committing", U64, U32, 4095, 1.5, [])] * 170, True),
    lk.TimeLookedUp(NUMBER),
    lk.AppendsLookedUp([1.5] * lk.PLACES_AT_ONCE),
    lk.SegmentsLookedUp(U64, U64),
    lk.PagesLookedUp(list(range(lk.PAGES_AT_ONCE)), [U64] * 5),
    lk.PositionsLookedUp([[(4095, NUMBER)] * lo.POSITIONS_MAX] * lk.CLIENTS_AT_ONCE),
    ac.AccessList(U64, True, [ENTRY] * ac.ENTRIES_PER_PAGE),
    ac.AccessChanged(U64, ac.ENTRIES_PER_PAGE),
    cg.ClusterDescription(
        ID, 65_535, 65_535, U64, [BROKER] * cg.BROKERS_PER_PAGE, [MEMBER] * cg.BROKERS_PER_PAGE,
        4095, 4095, 4095, 4095, 4095, [PLACE] * cg.ILL_MAX, True,
        4095, [PLACE] * cg.ILL_MAX, [65_535] * cg.BROKERS_PER_PAGE,
    ),
    cg.PartitionPlaces([PLACE] * cg.PARTITIONS_PER_PAGE, True),
    cg.LeadersElected(4095),
    cg.DrainStatus(65_535, True, 4095, 4095, [PLACE] * cg.ILL_MAX),
    op.Clients([CLIENT_INFO] * op.CLIENTS_PER_PAGE, U64, True),
    op.Settings([op.SettingInfo(NAME, NAME, NAME, "live", True, NAME)] * 50),
    sh.RecordsAcquired(
        [sh.LeasedRecords(ID, 4095, NUMBER, [RUN] * 500, [(255, *RUN)] * 500)],
        [[RUN] * sh.RUNS_MAX], [NUMBER] * 250,
        [sh.CondemnedRecord(ID, 4095, NUMBER, 255, [sh.FailureInfo(NAME, NUMBER, "r" * 1000)])] * 9,
        U64, True, withheld=[[RUN]] * sh.CLAIMS_MAX,
    ),
    sh.ShareDescription(
        sh.ShareSettings(),
        [sh.SharePartitionInfo(NAME, ID, 4095, 4095, *[NUMBER] * 9)] * 100,
        {f"{at}{NAME}": NUMBER for at in range(64)}, {NAME: NUMBER}, True,
        sh.PauseInfo(NUMBER, NAME, "r" * sh.REASON_MAX),
    ),
    sh.SharePeeked(
        [sh.PeekedInfo(NUMBER, "condemned", 255, NUMBER, NAME, NUMBER, "r" * sh.REASON_SHOWN)]
        * sh.PEEKED_MAX, NUMBER, True,
    ),
    ms.Refused("RecordTooLargeError", "\N{SNOWMAN}" * 4000),
]  # fmt: skip
ORDERS = [
    ms.OpenPartition(
        4095, NAME, b"\xff" * 16, 4095, "/" + "d" * 4095, SETTINGS, True, "b" * 36, True
    ),
    ms.ClosePartition(4095, True),
    ms.AddLane(NAME, True, True),
    ms.RetireLane(NAME),
    ms.AddClient(1023),
    ms.RemoveClient(1023),
    ms.TrimLog(4095, U64, U64),
    ms.SwapLog(4095, U64, SEGMENT, U64),
    ms.StopWriter(),
]
REPORTS = [
    ms.PartitionOpened(4095, U64, REASON, REASON),
    ms.PartitionFailed(4095, REASON),
    ms.PartitionOffline(4095, REASON),
    ms.PartitionClosed(4095),
    ms.LogCleaned(4095, U64, U64, U64, U64, False, "RecordTooLargeError", REASON),
    ms.LaneDrained(NAME),
    ms.LaneDropped(NAME, REASON),
    ms.Stopped(),
]
CLUSTER = ms.GatewayCluster(
    ID, ID * 2, U64, 65_535, [(65_535, "u" * 100)] * 250,
    [(page, 65_535) for page in range(lo.PAGES_MAX)], 65_535,
)  # fmt: skip
DIRECTIONS: dict[str, tuple[typing.Any, list[msgspec.Struct]]] = {
    "client to node": (ms.ClientMessage, list(CLIENT)),
    "node to client": (ms.NodeMessage, list(NODE)),
    "node to writer": (ms.WriterOrder, list(ORDERS)),
    "writer to node": (ms.WriterReport, list(REPORTS)),
}
TAGS = {
    "client to node": ["hello", "open_lane", "find_topic", "list_topics", "create_topic",
                       "alter_topic", "delete_topic", "trim_partition", "swap_segments",
                       "find_floor", "describe_node", "bye", "join_group", "sync_group",
                       "leave_group",
                       "commit_offsets", "claim_offsets", "list_groups", "describe_group",
                       "seek_group", "delete_group", "init_transactions", "add_partitions",
                       "end_transaction", "begin_stage", "end_stages", "commit_transaction",
                       "list_transactions", "look_up_time", "look_up_appends",
                       "look_up_segments", "look_up_pages", "look_up_positions", "list_access",
                       "add_access", "remove_access", "set_quota", "set_limits",
                       "describe_cluster", "describe_partitions", "elect_leaders",
                       "reassign_partition", "remove_broker", "drain_broker",
                       "describe_drain", "list_clients", "kick_client",
                       "describe_settings", "change_settings", "acquire_records",
                       "bury_records", "seek_share", "pause_share", "resume_share",
                       "describe_share", "peek_share"],
    "node to client": ["welcome", "lane_opened", "topic_found", "topics", "node", "cleaned",
                       "floor_found",
                       "done", "group_assignment", "committed", "claimed", "groups",
                       "group_description", "transaction_ready", "transaction_ended",
                       "transactions", "time_looked_up", "appends_looked_up",
                       "segments_looked_up", "pages_looked_up", "positions_looked_up",
                       "access_list", "access_changed", "cluster", "partition_places",
                       "leaders_elected", "drain_status", "clients", "settings", "records_acquired",
                       "share_description", "share_peeked", "refused"],
    "node to writer": ["open_partition", "close_partition", "add_lane", "retire_lane",
                       "add_client", "remove_client", "trim_log", "swap_log", "stop_writer"],
    "writer to node": ["partition_opened", "partition_failed", "partition_offline",
                       "partition_closed", "log_cleaned", "lane_drained", "lane_dropped",
                       "stopped"],
}  # fmt: skip


def test_claims_fit_beside_all_answers_of_a_request():
    [most] = [it for it in CLIENT if isinstance(it, sh.AcquireRecords)]
    claims = [sh.ClaimedIds(ID, 4095, NUMBER, [RUN], bytes(16), bytes(8))] * sh.CLAIMS_MAX
    request = msgspec.structs.replace(most, settings=None, holds=None, claims=claims)
    assert len(msgspec.msgpack.encode(request)) <= MESSAGE_BYTES_MAX


def test_all_of_a_cluster_fits_into_one_message_to_the_gateway():
    assert CLUSTER.__struct_config__.tag == "gateway_cluster"
    assert len(CLUSTER.brokers) == ControllerConfig().brokers_max
    assert len(msgspec.msgpack.encode(CLUSTER)) <= MESSAGE_BYTES_MAX


def channels(inbound):
    """A connected pair: one that sends raw or typed, one that receives `inbound`."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return left, Channel(left, ms.ClientMessage), Channel(right, inbound)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_names_on_the_wire_never_change(direction):
    union, messages = DIRECTIONS[direction]
    assert [message.__struct_config__.tag for message in messages] == TAGS[direction]
    assert set(typing.get_args(union)) == {type(message) for message in messages}
    for message in messages:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message))["type"] in TAGS[direction]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_largest_of_every_message_goes_through_a_channel(direction):
    union, messages = DIRECTIONS[direction]
    _, sender, receiver = channels(union)
    with sender, receiver:
        for message in messages:
            sender.send(message)
            assert receiver.recv(45.0) == (message, [])


def test_a_welcome_carries_few_enough_descriptors():
    tables_and_bell = 3
    assert tables_and_bell + lo.WRITERS_MAX <= FDS_MAX


def test_a_page_of_topics_is_well_below_the_bound():
    (topics,) = (message for message in NODE if isinstance(message, ms.Topics))
    assert len(topics.topics) == ms.TOPICS_PER_PAGE
    assert len(msgspec.msgpack.encode(topics)) < MESSAGE_BYTES_MAX


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_messages_of_another_direction_are_refused(direction):
    union, _ = DIRECTIONS[direction]
    for other, (_, messages) in DIRECTIONS.items():
        if other == direction:
            continue
        for message in messages:
            raw, sender, receiver = channels(union)
            with sender, receiver:
                raw.send(msgspec.msgpack.encode(message))
                with pytest.raises(ChannelError, match="malformed"):
                    receiver.recv(5.0)


def test_a_later_version_may_add_fields_to_a_hello_and_is_told_apart_by_its_number():
    fields = {"type": "hello", "version": 2, "kind": 1, "start_time": 3, "client_id": "x"}
    raw, sender, receiver = channels(ms.ClientMessage)
    with sender, receiver:
        raw.send(msgspec.msgpack.encode({**fields, "colour": "blue"}))
        assert receiver.recv(45.0) == (ms.Hello(2, 1, 3, "x"), [])


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "find_topic"},
        {"type": "find_topic", "name": 5},
        {"type": "find_topic", "name": None},
        {"type": "no_such", "name": "x"},
        {"name": "x"},
        {"type": "open_lane", "writer": "0"},
        {"type": "open_lane", "writer": 1.5},
        {"type": "create_topic", "name": "x", "settings": {"partition": 3}},
        {"type": "create_topic", "name": "x", "settings": None},
        ["find_topic", "x"],
        "find_topic",
        None,
    ],
    ids=str,
)
def test_fields_that_miss_or_do_not_fit_are_refused(fields):
    raw, sender, receiver = channels(ms.ClientMessage)
    with sender, receiver:
        raw.send(msgspec.msgpack.encode(fields))
        with pytest.raises(ChannelError, match="malformed"):
            receiver.recv(5.0)


def test_settings_that_were_not_given_are_defaults():
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=ms.TopicSettings)
    assert decoded == ms.TopicSettings()
    assert (decoded.partitions, decoded.durability, decoded.timestamp_type, decoded.cleanup) == (
        *(1, "os", "create", "delete"),
    )


def test_messages_cannot_be_changed_once_made():
    for _, messages in DIRECTIONS.values():
        for message in messages:
            for field in message.__struct_fields__:
                with pytest.raises(AttributeError):
                    setattr(message, field, None)
