"""Sealing: every record is found where its delivery looks for it, whatever it was sealed with."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any, cast

import pytest
from batch_bytes import get
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.producer.batch_builder import Rows, SealSettings, close_lid, seal
from penstock.client.producer.delivery import NARROW, WIDE, Box
from penstock.client.producer.partitioner import murmur2
from penstock.client.producer.routes import (
    BATCH_OVERHEAD,
    PartitionRoute,
    TopicRoutes,
    resequence,
)
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import EncodedBatch, encode_batch
from penstock.core.errors import RecordTooLargeError
from penstock.core.work import TIME_MAX, WorkFields
from penstock.ipc.messages import TopicInfo, TopicSettings

TOPIC_ID = bytes(range(16))
OPENED = 1_700_000_000_000_000
LARGE = 1 << 30


def topic_of(partitions):
    state = cast(Any, None)
    return TopicRoutes(
        TopicInfo("t", TOPIC_ID, list(range(partitions)), TopicSettings(partitions)),
        [PartitionRoute("t", TOPIC_ID, number, number, 0, state) for number in range(partitions)],
        LARGE,
    )


def new_box(width=NARROW):
    box = Box(cast(Any, None), "t", LARGE, OPENED, 0.0, 0.0)
    box.width = width
    return box


def settings_of(batch_bytes=LARGE, batch_bytes_max=LARGE, **changed):
    wanted = {"producer_id": 5, "codec": hd.CODEC_NONE, **changed}
    return SealSettings(batch_bytes=batch_bytes, batch_bytes_max=batch_bytes_max, **wanted)


def image_of(batch):
    assert batch.encoded is not None
    return memoryview(batch.encoded.image())


def columns_of(batch):
    image = image_of(batch)
    return decode(image, 0, hd.checked(image))


def located(box, ordinal):
    """The record that a delivery finds: (partition, key, value, headers, timestamp, work)."""
    batch, index = box.locate(ordinal)
    columns = columns_of(batch)
    headers = columns.headers()
    return (
        batch.route.partition,
        columns.keys[index],
        columns.values[index],
        headers[index] if headers is not None else (),
        int(columns.timestamps[index]),
        WorkFields(*(column and column[index] for column in columns.work or ())),
    )


ITEM = st.none() | st.binary(max_size=30)
KEY = st.none() | st.sampled_from([b"a", b"b", b"cc", b""]) | st.binary(max_size=4)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), ITEM), max_size=2).map(tuple)
STAMP = st.none() | st.integers(0, 1 << 55)
WORK = st.none() | st.builds(
    WorkFields,
    st.none() | st.integers(0, TIME_MAX),
    st.none() | st.integers(0, TIME_MAX),
    st.none() | st.integers(0, 9),
    st.none() | st.binary(min_size=1, max_size=20),
)


@st.composite
def sealings(draw):
    partitions = draw(st.sampled_from([1, 1, 2, 3, 7]))
    uses = draw(st.tuples(*[st.booleans()] * 5))
    columns = (KEY, HEADERS, STAMP, st.none() | st.integers(0, partitions - 1), WORK)
    fields = [column if use else st.none() for use, column in zip(uses, columns, strict=True)]
    records = draw(st.lists(st.tuples(ITEM, *fields), min_size=1, max_size=40))
    limits = draw(
        st.sampled_from([(LARGE, LARGE), (200, 900), (60, 900), (1, 900), (500, LARGE), (300, 900)])
    )
    trusted = draw(st.sampled_from([0, 5, 1 << 15]))
    codec = draw(st.sampled_from([hd.CODEC_NONE, hd.CODEC_LZ4]))
    sequences = [draw(st.integers(0, 1 << 40)) for _ in range(partitions)]
    return records, partitions, limits, trusted, codec, sequences, draw(st.booleans())


@settings(derandomize=True, max_examples=250)
@given(sealings(), st.randoms(use_true_random=False))
def test_every_record_is_found_where_its_delivery_looks(given_, chance):
    records, partitions, limits, trusted, codec, sequences, is_long = given_
    width = WIDE if any(field is not None for record in records for field in record[2:]) else NARROW
    topic, box = topic_of(partitions), new_box(width)
    box.is_long = is_long
    for route, sequence in zip(topic.routes, sequences, strict=True):
        route.next_sequence, route.epoch = sequence, 4
    # Threads overtake each other between taking an ordinal and appending, and some come too late.
    ordinals = list(range(len(records)))
    if chance.random() < 0.5:
        chance.shuffle(ordinals)
    late = set(chance.sample(ordinals, len(ordinals) // 8)) if chance.random() < 0.3 else set()
    arrived = [ordinal for ordinal in ordinals if ordinal not in late]
    for ordinal in arrived:
        box.items.extend((ordinal, *records[ordinal])[:width])
    box.sealed = True
    rows = close_lid(box)
    assert box.count == len(arrived) == len(rows.values)
    assert all(box.holds(ordinal) for ordinal in arrived)
    assert not any(box.holds(ordinal) for ordinal in late)
    assert not box.holds(len(records) + 5)
    if not arrived:
        return
    sticky = topic.sticky
    settings_ = settings_of(*limits, records_trusted=trusted, codec=codec)
    batches = seal(box, rows, topic, settings_)

    assert batches == box.batches
    assert sum(batch.count for batch in batches) == len(arrived)
    for ordinal in arrived:
        value, key, headers, stamp, partition, work = records[ordinal]
        found_partition, *found = located(box, ordinal)
        stamp = OPENED if stamp is None else stamp
        assert found == [key, value, headers or (), stamp, work or WorkFields()]
        if partition is not None:
            assert found_partition == partition
        elif key is not None:
            assert found_partition == (murmur2(key) & 0x7FFFFFFF) % partitions
        elif work is not None and work.dedup_id is not None:
            assert found_partition == (murmur2(work.dedup_id) & 0x7FFFFFFF) % partitions
        else:
            assert found_partition == sticky
    assert topic.sticky in (sticky, (sticky + 1) % partitions)

    # Order: within a partition records stand as they arrived, and sequences run on without a gap.
    for route, sequence in zip(topic.routes, sequences, strict=True):
        own = [batch for batch in batches if batch.route is route]
        places = [
            (batches.index(batch), index)
            for batch, index in map(box.locate, arrived)
            if batch.route is route
        ]
        assert places == sorted(places)
        for batch in own:
            image = image_of(batch)
            assert get(bytes(image), "base_sequence") == batch.sequence == sequence
            assert get(bytes(image), "producer_id") == 5
            assert get(bytes(image), "producer_epoch") == 4
            assert get(bytes(image), "partition") == route.partition
            assert get(bytes(image), "topic_id") == TOPIC_ID
            assert get(bytes(image), "record_count") == batch.count
            assert batch.length == len(image)
            sequence += batch.count
        assert route.next_sequence == sequence

    # Size: no batch is over what a frame takes.
    assert all(batch.length <= limits[1] for batch in batches)
    if is_long:  # it had room for several batches, which are no larger for that
        most = limits[0] + BATCH_OVERHEAD
        assert all(batch.length <= most or batch.count == 1 for batch in batches)


def rows_of(values, **columns):
    wanted = {"keys": None, "headers": None, "timestamps": None, "partitions": None, **columns}
    return Rows(values, **wanted)


@pytest.mark.parametrize("columns", [{}, {"keys": [b"k"] * 50}, {"headers": [(("h", b""),)] * 50}])
def test_a_box_with_room_for_several_batches_is_cut_where_all_goes_to_one_partition(columns):
    counts = {}
    for is_long in (False, True):
        box, topic = new_box(), topic_of(1)
        box.is_long = is_long
        batches = seal(box, rows_of([bytes(100)] * 50, **columns), topic, settings_of(1_300))
        counts[is_long] = [batch.count for batch in batches]
    assert counts[False] == [50]
    assert sum(counts[True]) == 50
    assert 5 <= max(counts[True]) <= 10


def test_columns_that_no_record_uses_are_left_out():
    for width in (NARROW, WIDE):
        box = new_box(width)
        for ordinal in range(5):
            box.items.extend((ordinal, b"v", *[None] * 5)[:width])
        box.sealed = True
        assert close_lid(box) == rows_of([b"v"] * 5)
    box = new_box(WIDE)
    for ordinal in range(3):
        key, stamp = [None, b"k"][ordinal == 1], [None, 7][ordinal == 2]
        box.items.extend((ordinal, b"v", key, None, stamp, None, None))
    box.sealed = True
    assert close_lid(box) == rows_of(
        [b"v"] * 3, keys=[None, b"k", None], timestamps=[OPENED, OPENED, 7]
    )


def test_a_box_beyond_the_prepared_ordinals_is_in_order_too():
    count = (1 << 16) + 10
    box = new_box()
    for ordinal in range(count):
        box.items.extend((ordinal, b"", None))
    box.sealed = True
    assert len(close_lid(box).values) == count
    assert box.order is None
    assert box.holds(count - 1)
    assert not box.holds(count)


@pytest.mark.parametrize("values", [[b"x" * 400] * 50, [b"x" * 10_000] * 3, [None] * 5000])
def test_long_runs_are_split_at_batch_bytes(values):
    topic, box = topic_of(1), new_box()
    batches = seal(box, rows_of(values), topic, settings_of(4096, 16_384))
    assert [value for batch in batches for value in columns_of(batch).values] == values
    sizes = [batch.length for batch in batches]
    assert max(sizes) <= max(4096 + 512, 10_000 + 512)
    if values[0] is not None:
        assert sum(size < 3500 for size in sizes) <= 1, "all but the last are full"


@pytest.mark.parametrize(
    ("bound", "codec"), [("BATCH_BYTES_MAX", hd.CODEC_NONE), ("RAW_BODY_MAX", hd.CODEC_LZ4)]
)
def test_rows_beyond_the_bounds_of_the_format_are_split_like_others(monkeypatch, bound, codec):
    """`send_batch` takes any number of rows, and lz4 may make very many of them fit a frame."""
    monkeypatch.setattr(hd, bound, 1 << 16)
    topic, box = topic_of(1), new_box()
    values = [bytes(1000)] * 200
    seal(box, rows_of(values), topic, settings_of(16_384, 32_768, codec=codec))
    assert len(box.batches) > 8
    assert [value for batch in box.batches for value in columns_of(batch).values] == values
    assert {get(bytes(image_of(batch)), "codec") for batch in box.batches} == {codec}


@pytest.mark.parametrize("trusted", [0, 100])
@pytest.mark.parametrize(
    "columns",
    [{}, {"keys": [b"k" * 9000]}, {"headers": [(("h", b"v" * 9000),)]}, {"keys": [b"k" * 4000]}],
    ids=["value", "key", "header", "together"],
)
def test_a_record_that_fits_no_frame_is_refused_and_not_kept_waiting_for_room(columns, trusted):
    topic, box = topic_of(1), new_box()
    rows = rows_of([b"x" * (4500 if columns else 9000)], **columns)
    with pytest.raises(RecordTooLargeError, match=r"record for t-0 .* the most is 8192"):
        seal(box, rows, topic, settings_of(4096, 8192, records_trusted=trusted))


def test_what_fits_a_frame_is_one_batch_even_above_batch_bytes():
    topic, box = topic_of(1), new_box()
    assert len(seal(box, rows_of([b"x" * 100] * 60), topic, settings_of(4096, 8192))) == 1
    assert box.locate(59) == (box.batches[0], 59)


def test_many_tiny_records_with_every_column_stay_within_a_frame():
    """The estimate of what a record takes has to be an upper bound."""
    topic, box = topic_of(1), new_box()
    count = 20_000
    rows = rows_of(
        [None, b""] * (count // 2),
        keys=[None, b""] * (count // 2),
        headers=[None, (("", None),)] * (count // 2),
        timestamps=[0, 1 << 45] * (count // 2),
    )
    bound = 1 << 17
    seal(box, rows, topic, settings_of(bound, bound + 512, records_trusted=0))
    assert len(box.batches) > 3
    assert max(batch.length for batch in box.batches) <= bound + 512


def test_records_without_a_key_take_turns_by_the_box():
    topic = topic_of(3)
    turns = []
    for _ in range(7):
        box = new_box()
        seal(box, rows_of([b"a", b"b"]), topic, settings_of())
        assert len(box.batches) == 1
        turns.append(box.batches[0].route.partition)
    assert turns == [0, 1, 2, 0, 1, 2, 0]


def test_a_box_that_cannot_be_encoded_takes_its_sequences_back():
    topic, box = topic_of(2), new_box()
    for route in topic.routes:
        route.next_to_fly = route.next_sequence = 100
    values = [b"x" * 50] * 20 + [cast(bytes, "no bytes")]
    rows = rows_of(values, partitions=[index % 2 for index in range(21)])
    with pytest.raises(TypeError):
        seal(box, rows, topic, settings_of(100, 700, records_trusted=0))
    assert topic.routes[0].next_sequence + topic.routes[1].next_sequence > 200
    box.sealed = True
    box.fail(RecordTooLargeError("why"))
    for route in topic.routes:
        route.mend()  # as who takes the lock next does
    assert [route.next_sequence for route in topic.routes] == [100, 100]
    assert (box.batches, box.done, box.is_done(3)) == ([], True, True)


# --- threads ------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
def test_invariant_4_threads_that_send_while_a_lid_closes_lose_and_reorder_nothing(seed):
    """The way of `Producer.send`: append first, look at `sealed` after, send again if late."""
    topic = topic_of(3)
    lock = threading.Lock()
    boxes = [new_box()]
    sealed: list[Box] = []
    deliveries: list[list[tuple[Box, int]]] = [[], [], []]
    again = [0, 0, 0]

    def send(sender):
        sent = deliveries[sender]
        while len(sealed) < 40 and len(sent) < 8_000:
            value = b"%d/%d" % (sender, len(sent))
            while True:
                box = boxes[-1]
                ordinal = next(box.ordinals)
                box.items.extend((ordinal, value, b"%d" % sender))
                if not box.sealed:
                    break
                with lock:
                    if box.holds(ordinal):
                        break
                again[sender] += 1
            sent.append((box, ordinal))

    def close():
        with lock:
            box = boxes[-1]
            boxes.append(new_box())
            box.sealed = True
            rows = close_lid(box)
            sealed.append(box)
            if rows.values:
                seal(box, rows, topic, settings_of(300, 900))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(3)]
    chance = random.Random(seed)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for _ in range(chance.randrange(50)):
                pass
            close()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    close()
    log: dict[bytes, list[bytes]] = {}
    for box in sealed:
        for batch in box.batches:
            columns = columns_of(batch)
            for key, value in zip(columns.keys, columns.values, strict=True):
                log.setdefault(key or b"", []).append(value or b"")
    for sender, sent in enumerate(deliveries):
        wanted = [b"%d/%d" % (sender, number) for number in range(len(sent))]
        assert log.get(b"%d" % sender, []) == wanted, f"seed {seed}, {again} sent again"
        step = max(1, len(sent) // 50)
        assert [located(box, ordinal)[2] for box, ordinal in sent[::step]] == wanted[::step]


# --- the same records again ---------------------------------------------------------------------
@pytest.mark.rule(4)
@pytest.mark.parametrize("codec", [hd.CODEC_NONE, hd.CODEC_LZ4])
def test_rule_4_resequenced_batches_differ_in_epoch_and_sequence_only(codec):
    def encoded(**numbers):
        return encode_batch(
            [b"x" * 100, None],
            hd.BatchIdentity(TOPIC_ID, 2, 5, **numbers),
            keys=[b"k", None],
            base_timestamp=OPENED,
            codec=codec,
        )

    first = encoded(producer_epoch=1, base_sequence=10)
    before = first.image()
    again = resequence(first, 2, 1 << 40)
    assert isinstance(again, EncodedBatch)
    assert again == encoded(producer_epoch=2, base_sequence=1 << 40)
    assert first.image() == before
