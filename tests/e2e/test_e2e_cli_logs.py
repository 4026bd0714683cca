"""`penstock log dump` and `log verify`: partition folders read without a node."""

from __future__ import annotations

import shutil
import struct

import batch_bytes
import pytest
from cli_runner import call_cli, run_cli

from penstock.client.admin.admin import TopicConfig
from penstock.core import header as hd
from penstock.core.index import OFFSET_ENTRY
from penstock.testing.embedded import EmbeddedNode

PER_BATCH = 10
BATCHES = 40


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A data folder left by a clean stop: one partition, several segments, filled indexes."""
    folder = tmp_path_factory.mktemp("node") / "data"
    with EmbeddedNode(folder) as node, node.connect() as client:
        config = TopicConfig(segment_bytes=256 << 10)
        client.admin().create_topic("events", config)
        with client.producer(linger=0) as producer:
            for batch in range(BATCHES):
                values = [b"%06d" % (batch * PER_BATCH + row) * 400 for row in range(PER_BATCH)]
                keys = [b"key-%d" % row for row in range(PER_BATCH)]
                producer.send_batch("events", values, keys=keys).result(45)
    return folder


@pytest.fixture
def data(original, tmp_path):
    """A copy to damage."""
    copy = tmp_path / "data"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.sock"))
    return copy


def partition_of(data):
    [folder] = [path for path in data.iterdir() if path.is_dir()]
    return folder


def segments_of(data):
    return sorted(partition_of(data).glob("*.log"))


def batches_of(path):
    """(position, header) of every batch of a segment file."""
    image, at = path.read_bytes(), 0
    while image[at : at + 4] == hd.MAGIC:
        head = hd.checked(image, at)
        yield at, head
        at += head.length


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def verify(data):
    ran = call_cli("log", "verify", data, "--format", "json")
    [checked] = ran.objects
    assert ran.code == (0 if checked["ok"] else 1)
    return checked, [entry for entry in checked["findings"] if not entry["is_note"]]


def test_a_good_folder_is_good_by_data_folder_and_by_partition(data):
    assert len(segments_of(data)) > 2
    ran = run_cli("log", "verify", data)
    assert ran.code == 0
    assert ran.lines[0].startswith("events-0  good: offsets 0 to 400, 400 records in 40 batches")
    assert call_cli("log", "verify", partition_of(data)).lines == ran.lines
    checked, errors = verify(data)
    assert errors == []
    assert (checked["log_end"], checked["producers"]) == (BATCHES * PER_BATCH, 1)


def test_dump_shows_batches_and_records_as_they_stand(data):
    batches = call_cli("log", "dump", data, "--format", "json").objects
    assert [batch["base_offset"] for batch in batches] == list(range(0, 400, PER_BATCH))
    assert {batch["partition"] for batch in batches} == {"events-0"}
    assert [batch["base_sequence"] for batch in batches] == list(range(0, 400, PER_BATCH))
    assert {path.name for path in segments_of(data)} == {batch["file"] for batch in batches}
    for path in segments_of(data):
        own = [batch for batch in batches if batch["file"] == path.name]
        assert [batch["position"] for batch in own] == [at for at, _ in batches_of(path)]

    shown = call_cli("log", "dump", data, "--records", "-o", "135", "-n", "1", "--format", "json")
    batch, *records = shown.objects
    assert batch["base_offset"] == 130
    assert [record["offset"] for record in records] == list(range(130, 140))
    assert records[5]["key"] == "key-5"
    assert records[5]["value"] == "000135" * 400

    text = call_cli("log", "dump", data, "--records", "-n", "2").lines
    assert len(text) == 2 * (1 + PER_BATCH)
    assert "'key-0'" in text[1]
    assert call_cli("log", "dump", data, "-n", "0").lines == []


def test_a_running_node_may_be_looked_at(tmp_path):
    with EmbeddedNode(tmp_path / "data") as node, node.connect() as client:
        client.admin().create_topic("live", TopicConfig(partitions=3))
        producer = client.producer()
        producer.send_batch("live", [b"x"] * 10, partition=0).result(45)
        ran = call_cli("log", "verify", node.data)
        assert (ran.code, len(ran.lines)) == (0, 3)
        client.admin().trim("live", 0, before=4)
        ran = call_cli("log", "verify", node.data)
        assert ran.code == 0
        assert "offsets 4 to 10, 6 records in 1 batches" in ran.out.decode()


def test_a_flipped_bit_in_a_body_is_found(data):
    path = segments_of(data)[1]
    at, head = list(batches_of(path))[2]
    byte = path.read_bytes()[at + 1000]
    overwrite(path, at + 1000, bytes([byte ^ 1]))
    checked, errors = verify(data)
    assert errors[0]["file"] == path.name
    assert errors[0]["position"] == at
    assert "no good batch (body)" in errors[0]["message"]
    # What stands behind the damage, in the segments after it, is still looked at.
    assert checked["log_end"] == BATCHES * PER_BATCH
    dumped = call_cli("log", "dump", data, "--format", "json")
    assert dumped.code == 1
    assert head.base_offset not in [entry["base_offset"] for entry in dumped.objects]
    assert path.name in dumped.err


def test_a_flipped_bit_in_a_header_is_found(data):
    path = segments_of(data)[0]
    at, _ = list(batches_of(path))[3]
    overwrite(path, at + hd.LENGTH_AT, b"\xff")
    _, errors = verify(data)
    assert (errors[0]["file"], errors[0]["position"]) == (path.name, at)


def test_a_missing_segment_is_a_hole(data):
    gone = segments_of(data)[1]
    gone.unlink()
    _, errors = verify(data)
    assert errors[0]["kind"] == "segment"
    assert "the log goes on at offset" in errors[0]["message"]


def test_bytes_behind_the_last_batch_are_found(data):
    path = segments_of(data)[-1]
    at, head = list(batches_of(path))[-1]
    overwrite(path, at + head.length + 128, b"not zero")
    _, [error] = verify(data)
    assert (error["kind"], error["position"]) == ("tail", at + head.length)


def test_an_index_that_points_elsewhere_is_found(data):
    path = segments_of(data)[0].with_suffix(".index")
    offset, position = OFFSET_ENTRY.unpack_from(path.read_bytes(), 0)
    overwrite(path, 0, OFFSET_ENTRY.pack(offset + 1, position))
    _, [error] = verify(data)
    assert (error["kind"], error["file"]) == ("index", path.name)


def test_a_time_index_that_says_another_time_is_found(data):
    path = segments_of(data)[0].with_suffix(".time")
    (time,) = struct.unpack_from("<q", path.read_bytes())
    overwrite(path, 0, struct.pack("<q", time - 1))
    _, [error] = verify(data)
    assert error["kind"] == "index"


def test_a_missing_index_is_only_worth_a_note(data):
    segments_of(data)[0].with_suffix(".index").unlink()
    checked, errors = verify(data)
    assert errors == []
    assert [entry["kind"] for entry in checked["findings"]] == ["index"]


def copy_of(path, *, offset, sequence, epoch):
    """The last batch of a segment as another one: offset and sequence changed, checksums right."""
    at, head = list(batches_of(path))[-1]
    image = bytearray(path.read_bytes()[at : at + head.length])
    batch_bytes.put(image, base_offset=offset, base_sequence=sequence, producer_epoch=epoch)
    return at + head.length, bytes(batch_bytes.reseal(image))


@pytest.mark.parametrize(
    ("sequence", "epoch", "message"),
    [(390, 0, "a second time"), (401, 0, "400 is next"), (1, 1, "0 is next"), (0, 1, None)],
)
def test_invariant_3_each_sequence_once_and_in_order(data, sequence, epoch, message):
    path = segments_of(data)[-1]
    overwrite(path, *copy_of(path, offset=400, sequence=sequence, epoch=epoch))
    checked, errors = verify(data)
    assert checked["log_end"] == 410
    assert [error["kind"] for error in errors] == ([] if message is None else ["producer"])
    assert message is None or message in errors[0]["message"]


def test_a_batch_of_another_partition_is_found(data):
    folder = partition_of(data)
    folder.rename(folder.with_name(folder.name[:-1] + "7"))
    ran = call_cli("log", "verify", data)
    assert ran.code == 1
    assert "another partition" in ran.lines[0]


def test_what_stands_beside_the_log_is_checked_too(data):
    folder = partition_of(data)
    overwrite(folder / "epochs", 20, b"\x07")
    [snapshot, *_] = sorted(folder.glob("producers-*.snapshot"))
    overwrite(snapshot, 30, b"\x77")
    _, errors = verify(data)
    assert {error["kind"] for error in errors} == {"epochs", "snapshot"}


def test_a_log_that_ends_before_its_recovery_point_is_found(data):
    segments_of(data)[-1].unlink()
    _, errors = verify(data)
    assert {error["kind"] for error in errors} == {"point"}


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_folders_that_hold_no_log_are_usage_errors(command, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path / "empty"):
        ran = call_cli("log", command, path)
        assert (ran.code, ran.out) == (2, b"")
        assert str(path) in ran.err
