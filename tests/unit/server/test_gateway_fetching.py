"""What remote consumers are sent, by which rules: credit, errors, fairness, waking, pages."""

from __future__ import annotations

import os
import resource

import pytest
from fetch_fixture import Gateway, Peer, Reading, folder_in
from partition_fixture import Partition, drained
from unit.core.log_helpers import TOPIC, MemoryStorage

from penstock.cluster.frames import messages as fr
from penstock.core import errors as er
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.segment import list_segments, segment_path
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region
from penstock.ipc.state import SEGMENT_WAIT
from penstock.server.gateway.fetch import BELT, NAME_WAIT, FetchLimits


@pytest.fixture
def at(tmp_path) -> Partition:
    return Partition(20_000, Storage(), folder_in(tmp_path))


@pytest.fixture
def gateway(at) -> Gateway:
    return Gateway(at)


def error_of(reading: Reading) -> tuple[str, str]:
    assert reading.failed is not None
    return reading.failed.error, reading.failed.message


def local_error(at: Partition, offset: int, epoch: int = -1) -> tuple[str, str]:
    """What a consumer on the node's host gets there."""
    reader = at.reader("read_uncommitted")
    reader.jump(offset, epoch)
    with pytest.raises(er.PenstockError) as raised:
        reader.take(None)
    return type(raised.value).__name__, str(raised.value)


def values(reading: Reading) -> list[bytes]:
    return [value for _, value in reading.records]


# --- reading -------------------------------------------------------------------------------------
def test_a_backlog_and_what_comes_later_arrive_in_order(at, gateway):
    client = gateway.client()
    for _ in range(200):
        at.write(1, 5)
    reading = gateway.fetch(client)
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)
    at.write(1, 3)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)
    assert reading.offset == at.page.log_end


def test_a_cursor_may_begin_within_a_batch(at, gateway):
    client = gateway.client()
    at.write(1, 10)
    at.write(1, 10)
    reading = gateway.fetch(client, 7)
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)[7:]


def test_a_contiguous_run_is_one_payload(at, gateway):
    client = gateway.client()
    for _ in range(30):
        at.write(1, 1)
    gateway.fetch(client)
    gateway.settle(client)
    assert len(client.of(fr.Fetched)) == 1


def test_aborted_records_are_left_out_counted_and_passed(at, gateway):
    client = gateway.client()
    committed = gateway.fetch(client, cursor=1, committed=True)
    everything = gateway.fetch(client, cursor=2)
    at.write(9, 1)
    for number in range(20):
        at.begin(1)
        at.write(1, 4)
        at.write(9, 2)
        at.end(1, committed=number % 4 == 0)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert committed.records == at.expected(committed=True)
    assert everything.records == at.expected(committed=False)
    assert (committed.aborted, everything.aborted) == (15 * 4, 0)
    assert committed.offset == everything.offset == at.page.log_end


def test_where_all_is_aborted_the_position_moves_and_no_credit_is_spent(at, gateway):
    client = gateway.client()
    for _ in range(50):
        at.begin(1)
        at.write(1, 4)
        at.end(1, committed=False)
    reading = gateway.fetch(client, committed=True, credit=1000)
    gateway.settle(client)
    assert (reading.records, reading.aborted, reading.offset) == ([], 200, at.page.log_end)
    assert reading.credit == 1000


def test_an_open_transaction_holds_committed_readers_and_no_others(at, gateway):
    client = gateway.client()
    at.write(9, 1)
    at.begin(1)
    at.write(1, 1)
    committed = gateway.fetch(client, cursor=1, committed=True)
    everything = gateway.fetch(client, cursor=2)
    gateway.settle(client)
    assert (values(committed), values(everything)) == ([b"0"], [b"0", b"1"])
    at.end(1, committed=True)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert values(committed) == [b"0", b"1"]


def test_beginning_a_cursor_anew_forgets_the_old_one(at, gateway):
    client = gateway.client()
    for _ in range(5):
        at.write(1, 4)
    gateway.fetch(client, credit=1)
    gateway.turn()
    reading = gateway.fetch(client, 12)
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)[12:]
    assert gateway.counts.cursors == 1


def test_nothing_comes_for_a_cursor_that_was_dropped(at, gateway):
    client = gateway.client()
    reading = gateway.fetch(client)
    gateway.settle(client)
    gateway.fetching.drop(client, fr.Drop(client.number, 1))
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert reading.records == []
    assert gateway.counts.cursors == 0


# --- errors: as a consumer on the node's host gets them -----------------------------------------
def test_an_offset_below_the_log_start_is_the_same_error_as_on_the_host(at, gateway):
    client = gateway.client()
    for _ in range(200):
        at.write(1, 5)
    at.sync()
    at.trim(0.5)
    reading = gateway.fetch(client, 3)
    gateway.settle(client)
    assert error_of(reading) == local_error(at, 3)
    assert error_of(reading)[0] == "OffsetOutOfRangeError"


@pytest.mark.rule(11)
def test_rule_11_retention_overtakes_a_cursor_that_waits_for_credit(at, gateway):
    client = gateway.client()
    for _ in range(200):
        at.write(1, 5)
    reading = gateway.fetch(client, credit=1)
    gateway.turn()
    stands = reading.offset
    assert 0 < stands < 100
    at.sync()
    at.trim(0.9)
    assert len(list_segments(at.storage, at.folder)) == 1
    gateway.more(client)
    gateway.settle(client)
    assert error_of(reading) == local_error(at, stands)
    assert reading.failed is not None
    assert reading.failed.offset == stands


@pytest.mark.rule(11)
def test_rule_11_what_is_mapped_is_read_although_its_file_is_gone(at, gateway):
    """A payload that is under way still is what it was."""
    kept: list[bytes] = []
    client = gateway.client()
    for _ in range(20):
        at.write(1, 5)
    reading = gateway.fetch(client)
    views = []
    post = client.post

    def keeping(message, payload=None):
        views.append(payload)
        kept.append(bytes(payload or b""))
        return post(message, payload)

    client.post = keeping
    gateway.settle(client)
    for _ in range(200):
        at.write(1, 5)
    at.sync()
    at.trim(1.0)
    gateway.settle(client)
    assert [bytes(view or b"") for view in views] == kept
    assert reading.records[:100] == list(enumerate(b"%d" % n for n in range(100)))


@pytest.mark.rule(15)
def test_rule_15_a_log_that_parted_from_what_was_read_is_told_with_the_place(at, gateway):
    client = gateway.client()
    for _ in range(4):
        at.write(1, 5)
    save_epochs(at.storage, at.folder, EpochCache([(1, 0), (2, 12)]))
    at.page.publish_epoch(2)
    early = gateway.fetch(client, 12, cursor=1, leader_epoch=1)
    late = gateway.fetch(client, 15, cursor=2, leader_epoch=1)
    beyond = gateway.fetch(client, 400, cursor=3, leader_epoch=1)
    gateway.settle(client)
    assert early.failed is None
    assert [offset for offset, _ in early.records] == list(range(12, 20))
    assert error_of(late) == local_error(at, 15, 1)
    assert late.failed is not None
    assert late.failed.divergence == 12
    assert error_of(beyond)[0] == "LogTruncatedError"


@pytest.mark.rule(15)
def test_rule_15_a_cursor_that_waits_learns_of_another_epoch_without_new_records(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    reading = gateway.fetch(client, 5, leader_epoch=1)
    save_epochs(at.storage, at.folder, EpochCache([(1, 0)]))
    at.page.publish_epoch(1)
    gateway.settle(client)
    assert reading.failed is None
    save_epochs(at.storage, at.folder, EpochCache([(1, 0), (2, 3)]))
    at.page.publish_epoch(2)
    gateway.turn(after=BELT)
    assert reading.failed is not None
    assert reading.failed.divergence == 3
    assert client.epochs[at.page.index] == [(1, 0), (2, 3)]


@pytest.mark.rule(15)
@pytest.mark.parametrize(("end", "is_lost"), [(8, False), (4, True)])
def test_rule_15_a_leader_of_before_makes_nobody_forget_the_epoch_in_which_he_read(
    at, gateway, end, is_lost
):
    """It knows no newer one, and comes to lead again: what was read is judged by its own epoch."""
    client = gateway.client()
    at.write(1, 5)
    save_epochs(at.storage, at.folder, EpochCache([(1, 0)]))
    at.page.publish_epoch(1)
    reading = gateway.fetch(client, 5, leader_epoch=2)
    gateway.settle(client)
    assert reading.failed is None
    save_epochs(at.storage, at.folder, EpochCache([(1, 0), (2, 3), (3, end)]))
    at.page.publish_epoch(3)
    gateway.turn(after=BELT)
    assert (reading.failed is not None) == is_lost
    if is_lost:
        assert error_of(reading) == local_error(at, 5, 2)


@pytest.mark.rule(15)
def test_rule_15_a_cursor_knows_the_epoch_of_what_it_has_read(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    epoch = at.page.leader_epoch
    save_epochs(at.storage, at.folder, EpochCache([(epoch, 0)]))
    reading = gateway.fetch(client)
    gateway.settle(client)
    save_epochs(at.storage, at.folder, EpochCache([(epoch, 0), (epoch + 1, 3)]))
    at.page.publish_epoch(epoch + 1)
    gateway.turn(after=BELT)
    assert error_of(reading) == local_error(at, 5, epoch)


@pytest.mark.rule(15)
def test_rule_15_what_holds_no_records_at_the_begin_of_an_epoch_parts_nobody_from_the_log():
    """The position moves past it together with records of the epoch before."""
    at = Partition(20_000, MemoryStorage(), folder_in("/data"))
    at.write(1, 1)
    at.sync()
    at.boot += 1
    at.generation += 1
    at.start()
    at.begin(1)
    gateway = Gateway(at)
    client = gateway.client()
    reading = gateway.fetch(client)
    for _ in range(3):
        gateway.settle(client)
        gateway.turn(after=BELT)
    assert (reading.failed, reading.offset, reading.epoch) == (None, 2, at.page.leader_epoch)
    again = gateway.fetch(client, reading.offset, leader_epoch=reading.epoch)
    gateway.settle(client)
    assert again.failed is None


@pytest.mark.rule(10)
def test_rule_10_a_position_above_the_end_waits(at, gateway):
    client = gateway.client()
    at.write(1, 2)
    reading = gateway.fetch(client, 4)
    gateway.settle(client)
    at.write(1, 4)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert values(reading) == [b"4", b"5"]


@pytest.mark.rule(10)
def test_rule_10_a_writer_that_stopped_while_it_published_holds_nobody_elses_round(at, gateway):
    client = gateway.client()
    at.write(1, 1)
    reading, seqlock = gateway.fetch(client), at.page._base + lo.Q_PAGE_SEQLOCK
    at.region.q[seqlock] += 1
    wants = gateway.turn()
    assert wants is not None
    assert 0 < wants <= 0.01
    at.region.q[seqlock] += 1
    gateway.turn(after=wants)
    assert len(reading.records) == 1
    at.write(1, 1)
    at.region.q[seqlock] += 1
    gateway.fetching.rung(client)
    gateway.turn()
    gateway.turn(after=SEGMENT_WAIT / 2)
    assert reading.failed is None
    gateway.turn(after=SEGMENT_WAIT)
    assert error_of(reading) == ("PenstockTimeout", str(at.page.stuck()))


def test_damage_is_the_same_error_as_on_the_host_and_what_is_good_comes_first(at, gateway):
    client = gateway.client()
    for _ in range(10):
        at.write(1, 5)
    (base,) = list_segments(at.storage, at.folder)
    reader = at.reader("read_uncommitted")
    with open(segment_path(at.folder, base), "r+b") as file:
        found = reader._reader.fetch(reader.limit(), 1 << 20)
        file.seek(found[6].position + 20)
        file.write(b"\xff\xff")
    reading = gateway.fetch(client)
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)[:30]
    assert error_of(reading) == local_error(at, 30)
    assert error_of(reading)[0] == "CorruptBatchError"


def test_a_deleted_topic_is_told_also_to_who_waits_or_has_no_credit(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    waits = gateway.fetch(client, 5, cursor=1)
    without = gateway.fetch(client, 0, cursor=2, credit=0)
    gateway.settle(client)
    at.page.publish_status(lo.STATUS_DELETED)
    gateway.turn(after=BELT)
    expected = ("UnknownTopicError", "topic 't' was deleted")
    assert error_of(waits) == error_of(without) == expected
    assert expected == local_error(at, 0)


def test_a_page_that_is_another_partitions_by_now_is_a_deleted_topic(at, gateway):
    client = gateway.client()
    other = at.page
    other.claim(b"x" * 16, 3, 9)
    reading = gateway.fetch(client)
    gateway.settle(client)
    assert error_of(reading) == ("UnknownTopicError", "topic 't' was deleted")


def test_a_topic_may_be_known_a_moment_later_and_is_refused_if_it_never_is(at, gateway):
    client = gateway.client()
    at.write(1, 1)
    gateway.names.clear()
    gateway.turn()
    reading = gateway.fetch(client)
    unknown = gateway.fetch(client, topic_id=b"?" * 16, cursor=2)
    dropped = gateway.fetch(client, topic_id=b"?" * 16, cursor=3)
    gateway.fetching.drop(client, fr.Drop(client.number, 3))
    gateway.settle(client)
    assert unknown.failed is None
    gateway.names[TOPIC] = "t"
    gateway.turn(after=0.01)
    gateway.settle(client)
    assert len(reading.records) == 1
    gateway.turn(after=NAME_WAIT)
    assert error_of(unknown)[0] == "UnknownTopicError"
    assert dropped.failed is None


def test_a_page_outside_the_table_is_refused(at, gateway):
    client = gateway.client()
    reading = gateway.fetch(client, page=lo.PAGES_MAX)
    assert error_of(reading)[0] == "UnknownTopicError"


def test_cursors_of_an_endpoint_are_bounded(at, gateway, monkeypatch):
    monkeypatch.setattr(fr, "CURSORS_MAX", 3)
    client = gateway.client()
    readings = [gateway.fetch(client, cursor=number) for number in range(5)]
    readings.append(gateway.fetch(client, cursor=1))
    gateway.settle(client)
    refused = [reading.failed.error for reading in readings if reading.failed is not None]
    assert refused == ["ResourceLimitError"] * 2


def test_a_reader_without_the_right_is_refused_also_when_it_is_taken_away(at):
    allowed = {"alice"}

    def may_read(principal: str, topic: str) -> None:
        if principal not in allowed:
            raise er.TopicExistsError(f"{principal} may not read {topic}")

    gateway = Gateway(at, may_read=may_read)
    client, stranger = gateway.client(), gateway.client()
    stranger.principal = "mallory"
    at.write(1, 1)
    reading, refused = gateway.fetch(client), gateway.fetch(stranger)
    gateway.settle(client)
    assert (len(reading.records), len(refused.records)) == (1, 0)
    assert error_of(refused)[1] == "mallory may not read t"
    allowed.clear()
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.turn(after=2.0)
    assert len(reading.records) == 1
    assert error_of(reading)[1] == "alice may not read t"


def test_what_was_aborted_and_cannot_be_known_is_an_error_behind_what_is_good(
    at, gateway, monkeypatch
):
    client = gateway.client()
    at.write(9, 3)
    at.begin(1)
    at.write(1, 1)
    at.end(1, committed=False)
    original = Storage.open

    def failing(self, path, flags, mode=0o600):
        if path.endswith(".txn"):
            raise er.StorageError("no descriptor", retriable=True)
        return original(self, path, flags, mode)

    monkeypatch.setattr(Storage, "open", failing)
    reading = gateway.fetch(client, committed=True)
    gateway.settle(client)
    assert (len(reading.records), reading.offset) == (3, 3)
    assert error_of(reading) == ("StorageError", "no descriptor")
    monkeypatch.undo()
    again = gateway.fetch(client, reading.offset, committed=True)
    gateway.settle(client)
    assert (again.records, again.aborted, again.offset) == ([], 1, at.page.log_end)


# --- bounds --------------------------------------------------------------------------------------
def test_credit_is_passed_by_less_than_a_batch_and_none_is_sent_without(at, gateway):
    client = gateway.client()
    for _ in range(300):
        at.write(1, 3)
    reading = gateway.fetch(client, credit=1000)
    for _ in range(20):
        gateway.turn()
    assert reading.credit <= 0
    before = reading.offset
    assert 0 < before < 900
    gateway.more(client, credit=1 - reading.credit)
    gateway.turn()
    assert reading.offset > before
    gateway.settle(client)
    assert reading.records == at.expected(committed=False)


def test_who_gives_back_less_than_a_batch_takes_is_charged_for_it(at, gateway):
    client = gateway.client()
    at.write(1, 3)
    reading = gateway.fetch(client)
    gateway.turn()
    [owed] = reading.owed
    for credit in (0, 1):
        gateway.fetching.more(client, fr.More(client.number, 1, credit))
    assert client.peer.charged == 2
    gateway.fetching.more(client, fr.More(client.number, 1, owed - 1))
    assert client.peer.charged == 2


def test_one_connection_has_a_bounded_number_of_bytes_under_way(at):
    for _ in range(300):
        at.write(1, 3)
    gateway = Gateway(at, FetchLimits(payload_bytes=2000, connection_bytes=10_000))
    peer = Peer()
    clients = [gateway.client(peer) for _ in range(3)]
    other = gateway.client()
    for client in [*clients, other]:
        for cursor in range(4):
            gateway.fetch(client, cursor=cursor, credit=1 << 20)
    for _ in range(300):
        gateway.turn()
    under_way = sum(size for client in clients for _, size in client.order)
    batch = 256
    assert 10_000 <= under_way <= 10_000 + 3 * (2000 + batch)
    assert all(client.order for client in clients), "an idle neighbour takes all of it"
    assert sum(size for _, size in other.order) >= 10_000
    gateway.settle(*clients, other)
    for client in [*clients, other]:
        for reading in client.cursors.values():
            assert reading.records == at.expected(committed=False)


def test_the_connections_of_one_principal_have_a_bounded_number_of_bytes_under_way(at):
    for _ in range(300):
        at.write(1, 3)
    gateway = Gateway(at, FetchLimits(payload_bytes=2000, principal_bytes=10_000))
    clients, other = [gateway.client() for _ in range(3)], gateway.client()
    other.principal = "another"
    for client in [*clients, other]:
        gateway.fetch(client, credit=1 << 20)
    for _ in range(300):
        gateway.turn()
    under_way = sum(size for client in clients for _, size in client.order)
    assert 10_000 <= under_way <= 10_000 + 3 * (2000 + 256)
    assert all(client.order for client in clients)
    assert sum(size for _, size in other.order) >= 10_000
    gateway.fetching.gone(clients.pop())
    gateway.settle(*clients, other)
    for client in [*clients, other]:
        for reading in client.cursors.values():
            assert reading.records == at.expected(committed=False)


@pytest.mark.parametrize("how", ["consumes", "drops", "goes"])
def test_what_one_endpoint_gives_back_lets_its_neighbour_go_on(at, how):
    for _ in range(300):
        at.write(1, 3)
    gateway = Gateway(at, FetchLimits(payload_bytes=2000, connection_bytes=10_000))
    peer = Peer()
    first, second = gateway.client(peer), gateway.client(peer)
    for client in (first, second):
        gateway.fetch(client, credit=1 << 20)
    for _ in range(20):
        gateway.turn()
    before = len(second.order)
    gateway.turn()
    assert 0 < len(second.order) == before, "the connection has all that it may have"
    if how == "consumes":
        gateway.more(first)
    elif how == "drops":
        gateway.fetching.drop(first, fr.Drop(first.number, 1))
    else:
        gateway.fetching.gone(first)
    gateway.turn()
    assert len(second.order) > before
    line = gateway.fetching._line_of[second]
    theirs = sum(sum(reading.owed) for reading in first.cursors.values())
    assert line.link.out_bytes == line.out_bytes + (theirs if how == "consumes" else 0)


@pytest.mark.rule(12)
def test_cursors_do_without_open_files_where_there_are_no_descriptors(at, gateway):
    client = gateway.client()
    at.write(1, 3)
    readings = [gateway.fetch(client)]
    gateway.settle(client)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    try:
        for number in range(2, 6):
            readings.append(gateway.fetch(client, cursor=number))
            gateway.settle(client)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [reading.failed for reading in readings] == [None] * 5
    assert all(reading.records == at.expected(committed=False) for reading in readings)


def test_a_peer_whose_outbox_is_full_gets_nothing_more_until_it_has_room(at, gateway):
    client = gateway.client()
    reading = gateway.fetch(client)
    gateway.settle(client)
    client.peer.has_room = False
    at.write(1, 1)
    gateway.fetching.rung(client)
    wants = gateway.turn()
    assert reading.records == []
    assert wants is not None
    client.peer.has_room = True
    gateway.turn(after=wants)
    assert len(reading.records) == 1


@pytest.mark.rule(12)
def test_open_files_are_bounded_and_cursors_go_on_where_they_were(at):
    gateway = Gateway(at, FetchLimits(files_max=4))
    for _ in range(30):
        at.write(1, 3)
    client = gateway.client()
    readings = [gateway.fetch(client, cursor=number) for number in range(50)]
    gateway.settle(client)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        at.write(1, 3)
        gateway.fetching.rung(client)
        gateway.settle(client)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert all(reading.records == at.expected(committed=False) for reading in readings)


def test_an_endpoint_that_is_gone_leaves_nothing(at, gateway):
    before = len(os.listdir("/proc/self/fd"))
    client = gateway.client()
    at.write(1, 1)
    for number in range(5):
        gateway.fetch(client, cursor=number)
    gateway.turn()
    gateway.fetching.gone(client)
    client.cursors.clear()
    assert gateway.counts.cursors == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert gateway.turn(after=10) is None
    at.write(1, 1)
    gateway.fetching.rung(client)
    assert gateway.turn() is None


def test_a_peer_that_goes_while_it_is_served_ends_nobody_elses_round(at, gateway):
    client, other = gateway.client(), gateway.client()
    reading = gateway.fetch(client)
    gateway.fetch(client, cursor=2)
    theirs = gateway.fetch(other)
    at.write(1, 1)
    client.peer.is_gone = True
    gateway.turn()
    gateway.fetching.gone(client)
    gateway.settle(other)
    assert (len(reading.records), len(theirs.records)) == (0, 1)
    assert gateway.counts.cursors == 1


@pytest.mark.parametrize("is_rung", [True, False])
def test_what_goes_wrong_with_one_endpoint_costs_that_endpoint(at, gateway, is_rung):
    own, peer = Region(at.region.mapping), Peer()
    client, other = gateway.client(peer, state=own), gateway.client(peer)
    gateway.fetch(client)
    reading = gateway.fetch(other)
    at.write(1, 1)
    gateway.turn()
    own.close()
    if is_rung:
        gateway.fetching.rung(client)
    at.write(1, 1)
    for _ in range(3):
        gateway.turn(after=BELT)
    assert [who for who, _ in gateway.ended] == [client]
    assert "the gateway failed at fetching for it" in gateway.ended[0][1]
    assert len(reading.records) == 2
    assert (gateway.counts.cursors, gateway.counts.refusals) == (1, {"failure": 1})
    line = gateway.fetching._line_of[other]
    assert line.link.out_bytes == line.out_bytes


def test_a_quota_holds_back_tells_and_goes_on(at):
    spent: list[tuple[str, str, int]] = []

    def allow(principal: str, client_id: str, nbytes: int, now: float) -> float:
        spent.append((principal, client_id, nbytes))
        return 2.5

    gateway = Gateway(at, allow=allow)
    client = gateway.client()
    reading = gateway.fetch(client)
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.turn()
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.turn()
    assert len(reading.records) == 1
    assert client.of(fr.Throttled) == [fr.Throttled(client.number, "consume", 2.5)]
    assert spent == [("alice", "client-1", reading.owed[0])]
    assert gateway.counts.throttles["consume"] == 1
    gateway.turn(after=2.4)
    assert len(reading.records) == 1
    gateway.turn(after=0.2)
    assert len(reading.records) == 2


# --- fairness ------------------------------------------------------------------------------------
def test_who_catches_up_never_delays_new_records_of_others_by_more_than_a_round(at):
    for _ in range(2000):
        at.write(1, 3)
    gateway = Gateway(at, FetchLimits(payload_bytes=4000, fresh_bytes=2000, round_bytes=8000))
    behind = [gateway.client() for _ in range(5)]
    fresh = gateway.client()
    reading = gateway.fetch(fresh, at.page.log_end)
    gateway.settle(fresh)
    for client in behind:
        for cursor in range(3):
            gateway.fetch(client, cursor=cursor, credit=1 << 28)
    for _ in range(20):
        gateway.turn()  # all of them were new at first
    for client in behind:
        client.order.clear()
    for _ in range(20):
        gateway.turn()
        at.write(1, 1)
        gateway.fetching.rung(fresh)
        gateway.turn()
        assert reading.offset == at.page.log_end
    sent = [sum(size for _, size in client.order) for client in behind]
    assert max(sent) - min(sent) <= 2 * (4000 + 256), "not in turn"
    for client in behind:
        shares = [
            sum(size for which, size in client.order if which == cursor) for cursor in (0, 1, 2)
        ]
        assert max(shares) - min(shares) <= 2 * (4000 + 256), "not in turn within an endpoint"


def test_who_catches_up_gets_on_however_many_others_have_new_records(at):
    for _ in range(500):
        at.write(1, 3)
    gateway = Gateway(at, FetchLimits(payload_bytes=4000, fresh_bytes=2000, round_bytes=4000))
    fresh = [gateway.client() for _ in range(20)]
    for client in fresh:
        gateway.fetch(client, at.page.log_end)
    gateway.settle(*fresh)
    behind = gateway.client()
    reading = gateway.fetch(behind, credit=1 << 28)
    for _ in range(60):
        at.write(1, 1)
        for client in fresh:
            gateway.fetching.rung(client)
        gateway.turn()
    assert reading.offset > 500


# --- waking --------------------------------------------------------------------------------------
def test_an_idle_endpoint_sleeps_by_the_protocol_on_pages_with_credit(at, gateway):
    client = gateway.client()
    slot = client.session.slot
    assert not slot.watches(at.page.index)
    gateway.fetch(client, credit=100)
    gateway.settle(client)
    first = slot.ticket
    assert first
    assert slot.watches(at.page.index)
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.turn()
    assert client.cursors[1].credit <= 0
    assert not slot.watches(at.page.index), "nothing can be sent, so nobody needs to ring"
    gateway.more(client)
    gateway.turn()
    assert slot.watches(at.page.index)
    assert slot.ticket > first
    gateway.fetching.drop(client, fr.Drop(client.number, 1))
    assert not slot.watches(at.page.index)


def test_what_comes_between_the_look_and_the_ticket_is_not_missed(at, gateway):
    class LateSlot(ClientSlot):
        def publish_sleeping(self, ticket: int) -> None:
            at.write(1, 1)
            super().publish_sleeping(ticket)

    client = gateway.client()
    client.session.slot = LateSlot(gateway.clients, client.session.slot.index)
    reading = gateway.fetch(client)
    assert gateway.turn() == 0.0
    gateway.turn()
    assert len(reading.records) >= 1


def test_an_idle_gateway_asks_for_few_turns(at, gateway):
    clients = [gateway.client() for _ in range(30)]
    for client in clients:
        gateway.fetch(client)
    gateway.settle(*clients)
    turns, start = 0, gateway.now
    wants = gateway.turn()
    while gateway.now < start + 10:
        assert wants
        wants = gateway.turn(after=wants)
        turns += 1
    assert turns <= 10 / BELT * 10 + 30


def test_the_belt_finds_what_nobody_rang_for(at, gateway):
    clients = [gateway.client() for _ in range(30)]
    readings = [gateway.fetch(client) for client in clients]
    gateway.settle(*clients)
    at.write(1, 1)
    for _ in range(11):
        gateway.turn(after=BELT / 10)
    assert all(len(reading.records) == 1 for reading in readings)


def test_an_endpoint_without_a_slot_is_served_too(at, gateway):
    client = gateway.client(slot=False)
    reading = gateway.fetch(client)
    gateway.settle(client)
    at.write(1, 1)
    gateway.turn(after=0.021)
    assert len(reading.records) == 1


# --- pages ---------------------------------------------------------------------------------------
def test_pages_come_with_the_records_that_moved_them(at, gateway):
    client = gateway.client()
    gateway.fetch(client)
    gateway.settle(client)
    at.write(1, 7)
    gateway.fetching.rung(client)
    gateway.turn()
    (message,) = client.of(fr.Fetched)
    (state,) = message.pages
    page = at.page
    assert (state.page, state.high_watermark, state.log_end) == (page.index, 7, 7)
    assert (state.topic_id, state.partition) == page.identity
    assert (state.log_start, state.last_stable, state.leader_epoch) == (0, 7, page.leader_epoch)
    assert state.counters == state.cleaning == []


def test_pages_that_move_without_records_are_told_at_a_bounded_pace(at, gateway):
    client = gateway.client()
    at.begin(1)
    gateway.fetch(client, committed=True)
    gateway.settle(client)
    told = len(client.of(fr.Pages))
    for _ in range(20):
        at.write(1, 1)
        gateway.fetching.rung(client)
        gateway.turn(after=0.001)
    assert len(client.of(fr.Pages)) <= told + 2
    for _ in range(3):
        gateway.turn(after=0.02)
    assert client.pages[at.page.index].high_watermark == at.page.high_watermark
    assert client.pages[at.page.index].last_stable == at.page.last_stable == 0


def test_pages_of_a_cursor_without_credit_are_told_too(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    gateway.fetch(client, credit=1)
    gateway.turn()
    at.write(1, 5)
    gateway.turn(after=0.11)
    assert client.pages[at.page.index].high_watermark == 10


def test_a_trim_and_a_sync_are_told_within_the_belt(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    gateway.fetch(client, 5)
    gateway.settle(client)
    at.sync()
    at.trim(0.4)
    gateway.turn(after=BELT)
    gateway.turn(after=0.03)
    assert client.pages[at.page.index].log_start == 2
    assert client.pages[at.page.index].durable == 5


def test_leader_epochs_are_told_once_to_each_endpoint(at, gateway):
    client, other = gateway.client(), gateway.client()
    save_epochs(at.storage, at.folder, EpochCache([(1, 0)]))
    at.page.publish_epoch(1)
    for each in (client, other):
        gateway.fetch(each)
        gateway.settle(each)
        assert each.epochs == {at.page.index: [(1, 0)]}
        each.epochs.clear()
    at.write(1, 1)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert client.of(fr.Fetched)
    assert not client.epochs


def test_a_producer_that_waits_for_stable_storage_is_told_when_it_comes(at, gateway):
    client = gateway.client(kind=lo.KIND_PRODUCER)
    at.write(1, 5)
    gateway.fetching.watch_durable(client, at.page.index, 5)
    gateway.turn()
    assert client.pages[at.page.index].durable < 5
    told = len(client.came)
    gateway.turn(after=BELT)
    assert len(client.came) == told  # nothing has moved
    at.sync()
    gateway.fetching.rung(client)
    gateway.turn()
    assert client.pages[at.page.index].durable == 5
    assert len(client.came) == told + 1
    at.write(6, 1)
    at.sync()
    gateway.turn(after=BELT)
    assert len(client.came) == told + 1  # it waits for nothing any more


def test_admins_are_told_the_counters(at, gateway):
    admin = gateway.client(kind=lo.KIND_ADMIN)
    state = admin.states.of(at.page.index)
    assert (len(state.counters), len(state.cleaning)) == (6, 6)


def test_a_page_that_was_never_given_away_has_no_topic(at, gateway):
    state = gateway.client().states.of(0)
    assert (state.page, state.topic_id, state.log_end) == (0, b"", 0)


def test_a_local_reader_agrees_with_what_came(at, gateway):
    client = gateway.client()
    for number in range(100):
        at.write(number % 3 + 1, number % 5 + 1)
    reading = gateway.fetch(client)
    gateway.settle(client)
    assert reading.records == drained(at.reader("read_uncommitted"))
