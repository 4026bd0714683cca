"""Backups of a node under load, restored into another one: what they hold, and what they refuse."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.block
import msgspec
import pytest
from cli_runner import call_cli
from group_fixture import fill

from penstock import connect
from penstock.client.backup import files as bf
from penstock.client.backup.create import create
from penstock.client.backup.restore import restore
from penstock.core.crc import crc32c
from penstock.core.errors import PenstockError
from penstock.testing import Broker, drain, wait_until


@pytest.fixture(scope="module")
def other() -> Iterator[Broker]:
    """Where backups are restored."""
    with Broker() as broker:
        yield broker


def rows(broker: Broker, topic: str) -> list[tuple[Any, ...]]:
    found = drain(broker, topic)
    return sorted(
        (one.partition, one.timestamp, one.key or b"", one.value, tuple(one.headers), one.work)
        for one in found
    )


def only_file(folder: Path) -> Path:
    [found] = folder.glob("*/*.records")
    return found


def test_what_comes_while_it_runs_is_in_the_next_run_and_all_is_restored(node, other, tmp_path):
    topic = node.create_topic(partitions=3)
    stop, sent = threading.Event(), [0]

    def load() -> None:
        with connect(node.url) as client, client.producer() as producer:
            while not stop.is_set():
                key = b"%d" % (sent[0] % 50)
                headers = {"n": b"1"} if sent[0] % 7 == 0 else None
                producer.send(topic, b"v%d" % sent[0], key=key, headers=headers)
                sent[0] += 1
                if sent[0] % 500 == 0:
                    producer.flush(20)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with connect(node.url) as client:
            wait_until(lambda: sent[0] >= 2000, what="load")
            first = create(client, str(tmp_path), [topic])
            wait_until(lambda: sent[0] >= first.records + 2000, what="more load")
            second = create(client, str(tmp_path), [topic])
    finally:
        stop.set()
        thread.join()
    assert first.records > 0
    assert second.records > 0
    with connect(node.url) as client:
        third = create(client, str(tmp_path), [topic])
        assert first.records + second.records + third.records == sent[0]
        assert create(client, str(tmp_path), [topic]).records == 0
    with connect(other.url) as client:
        [told] = restore(client, str(tmp_path))
    assert (told.topic, told.partitions, told.records, told.gaps) == (topic, 3, sent[0], 0)
    assert rows(other, topic) == rows(node, topic)


def test_settings_work_fields_and_offsets_of_groups_come_back(node, other, tmp_path):
    topic = node.create_topic(retention=86_400.0)
    with connect(node.url) as client, client.producer(transactional_id="backed-up") as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            for number in range(10):
                producer.send(topic, b"%d" % number, priority=number % 3, ttl=3600.0)
        with client.consumer(topic, group=topic, isolation="read-committed") as consumer:
            consumer.poll(4, timeout=10)
            consumer.commit()
        create(client, str(tmp_path), [topic])
        [before] = client.admin().describe_group(topic).partitions
        assert before.committed is not None
        assert before.committed > 4  # a record that was aborted, and markers, lie before it
    with connect(other.url) as client:
        restore(client, str(tmp_path))
        admin = client.admin()
        assert admin.describe_topic(topic).settings["retention"] == 86_400.0
        [after] = admin.describe_group(topic).partitions
        assert (after.committed, after.lag) == (4, 6)
    there = rows(other, topic)
    assert [row[3] for row in there] == [b"%d" % number for number in range(10)]
    assert there == [row for row in rows(node, topic) if row[3] != b"aborted"]


def test_a_restore_that_was_ended_goes_on_and_never_into_other_records(node, other, tmp_path):
    topic = node.create_topic()
    fill(node, topic, 0, 30)
    with connect(node.url) as client:
        create(client, str(tmp_path), [topic])
        folder = bf.BackupFolder(tmp_path)
        with folder:
            [(_, _, file)] = bf.files_of(folder.load())
            [block] = [block for block in folder.blocks(file) if block.offsets[0] == 0]
    with connect(other.url) as client, client.producer() as producer:
        client.admin().create_topic(topic)
        for row in range(len(block.offsets) // 2):  # as far as a restore came
            producer.send(topic, block.values[row], key=block.keys[row],
                          timestamp=block.timestamps[row])  # fmt: skip
        producer.flush(10)
        with pytest.raises(bf.BackupError, match=r"is there: .* \(--resume\)"):
            restore(client, str(tmp_path))
        restore(client, str(tmp_path), resume=True)
        assert rows(other, topic) == rows(node, topic)
        restore(client, str(tmp_path), resume=True)
        assert len(rows(other, topic)) == 30
        client.admin().delete_topic(topic)
        wait_until(lambda: topic not in client.admin().list_topics(), what="its end")
        client.admin().create_topic(topic)
        fill(other, topic, 0, 1)
        with pytest.raises(bf.BackupError, match="has other records than the backup"):
            restore(client, str(tmp_path), resume=True)


def test_a_damaged_backup_is_refused_before_anything_is_made(node, other, tmp_path):
    topic = node.create_topic()
    fill(node, topic, 0, 50)
    with connect(node.url) as client:
        create(client, str(tmp_path), [topic])
    file, manifest = only_file(tmp_path), tmp_path / bf.MANIFEST
    data, kept = file.read_bytes(), manifest.read_bytes()
    damages = {
        "its sha256 is wrong": (data[:40] + bytes([data[40] ^ 1]) + data[41:], kept),
        "bytes, not": (data[:-1], kept),
        "its checksum is wrong": (data, kept.replace(b'"records":50', b'"records":51')),
        "is damaged": (data, kept[:-5]),
    }
    with connect(other.url) as client:
        for what, (records, told) in damages.items():
            file.write_bytes(records)
            manifest.write_bytes(told)
            with pytest.raises(bf.BackupError, match=what):
                restore(client, str(tmp_path))
        file.unlink()
        manifest.write_bytes(kept)
        with pytest.raises(bf.BackupError, match="cannot be read"):
            restore(client, str(tmp_path), dry_run=True)
        assert topic not in client.admin().list_topics()


def test_two_at_once_another_topic_of_the_name_and_a_foreign_folder_are_refused(node, tmp_path):
    topic = node.create_topic()
    fill(node, topic, 0, 5)
    kept, foreign = tmp_path / "kept", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    with connect(node.url) as client:
        create(client, str(kept), [topic])
        with bf.BackupFolder(kept), pytest.raises(bf.BackupError, match="is in use"):
            create(client, str(kept), [topic])
        with pytest.raises(bf.BackupError, match="has other files"):
            create(client, str(foreign), [topic])
        with pytest.raises(bf.BackupError, match="no topic that matches"):
            create(client, str(kept), ["nosuch*"])
        rest = kept / only_file(kept).parent.name / f"{99:020d}.records"
        rest.write_bytes(b"of a run that was killed")
        client.admin().delete_topic(topic)
        wait_until(lambda: topic not in client.admin().list_topics(), what="its end")
        client.admin().create_topic(topic)
        with pytest.raises(bf.BackupError, match="make a backup in another folder"):
            create(client, str(kept), [topic])
        assert not rest.exists()
        assert only_file(kept).exists()
    with pytest.raises(PenstockError, match="is no backup"):
        bf.BackupFolder(foreign)


def test_records_that_retention_took_before_a_run_are_a_gap_that_is_told(node, tmp_path):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    call = ("backup", str(tmp_path), "--topic", topic)
    ran = call_cli(*call, url=node.url)
    assert ran.code == 0
    assert "10 new records of 1 topic and offsets of" in ran.err
    fill(node, topic, 10, 10)
    with connect(node.url) as client:
        client.admin().trim(topic, before=15)
    ran = call_cli(*call, url=node.url)
    assert f"{topic}-0 10 to 15 were deleted before this run" in ran.err
    ran = call_cli("restore", str(tmp_path), "--dry-run", url=node.url)
    assert (ran.code, "is there" in ran.err) == (1, True)


def test_the_command_restores_and_shows_what_a_backup_has(node, other, tmp_path):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 10)
    call_cli("backup", str(tmp_path), "--topic", topic, url=node.url)
    shown = call_cli("restore", str(tmp_path), "--dry-run", url=other.url).lines
    assert shown[0].split() == [
        "TOPIC", "PARTITIONS", "RECORDS", "SIZE", "EARLIEST", "LATEST", "GAPS",
    ]  # fmt: skip
    assert shown[1].split()[:3] == [topic, "2", "10"]
    with connect(other.url) as client:
        assert topic not in client.admin().list_topics()
    ran = call_cli("restore", str(tmp_path), "--format", "json", url=other.url)
    assert [one["records"] for one in ran.objects] == [10]
    assert rows(other, topic) == rows(node, topic)


def packed(items: bytes) -> bytes:
    """A records file of one block, whose checksums are right."""
    payload: bytes = lz4.block.compress(items, store_size=False)
    return bf.MAGIC + bf.HEAD.pack(len(payload), crc32c(payload), len(items)) + payload


def of_nothing(count: int) -> bytes:
    """Three columns without an item, and one of so many that are null."""
    return b"\x96\x90\x90\x90" + b"\xdd" + count.to_bytes(4, "big") + b"\xc0" * count + b"\xc0\xc0"


@pytest.mark.parametrize(
    ("items", "what"),
    [
        (msgspec.msgpack.encode([[0, 1], [5, 6], [None], [b"a", b"b"], None, None]), "lengths"),
        (msgspec.msgpack.encode([[0], [5], [None], [b"a"], [[], []], None]), "lengths"),
        (msgspec.msgpack.encode([[0], [5], [None], [b"a"], None, []]), "lengths"),
        (of_nothing(bf.RECORDS_MAX + 1), "length <= 1048576"),
    ],
    ids=["keys", "headers", "work", "too many"],
)
def test_a_block_of_columns_that_do_not_fit_is_refused(tmp_path, items, what):
    folder = tmp_path / "t-0"
    folder.mkdir()
    data = packed(items)
    (folder / "0.records").write_bytes(data)
    (tmp_path / bf.MANIFEST).touch()
    file = bf.BackupFile("t-0/0.records", 0, 2, 2, len(data), "", 0, 1)
    refused = pytest.raises(bf.BackupError, match=f"damaged at byte 8: .*{what}")
    with bf.BackupFolder(tmp_path) as kept, refused:
        list(kept.blocks(file))


def test_headers_that_no_record_can_have_are_refused_and_take_no_memory(tmp_path):
    """Three bytes in the file are a tuple of 120 bytes in memory, were all of them read."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    count = 1 << 20
    tiny = b"\xdd" + count.to_bytes(4, "big") + b"\x92\xa0\xc0" * count
    items = b"\x96\x91\x00\x91\x05\x91\xc0\x91\xc4\x01a\x91" + tiny + b"\xc0"
    data = packed(items)
    (folder / "0.records").write_bytes(data)
    (tmp_path / bf.MANIFEST).touch()
    file = bf.BackupFile("t-0/0.records", 0, 1, 1, len(data), "", 0, 1)
    tracemalloc.start()
    try:
        with bf.BackupFolder(tmp_path) as kept:
            [block] = kept.blocks(file)
            with pytest.raises(bf.BackupError, match=r"headers .* offset 0 are damaged: .* <= 64"):
                block.headers_of(0)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(items)
    finally:
        tracemalloc.stop()


def test_links_in_a_backup_are_refused_and_nothing_elsewhere_is_touched(node, tmp_path):
    topic = node.create_topic()
    fill(node, topic, 0, 5)
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    with connect(node.url) as client:
        create(client, str(kept), [topic])
        file = only_file(kept)
        elsewhere.mkdir()
        precious = elsewhere / f"{7:020d}{bf.SUFFIX}"
        precious.write_bytes(b"precious")
        for link, to in (
            (kept / "other-0", elsewhere), (file.with_name(f"9{bf.SUFFIX}"), precious),
        ):  # fmt: skip
            link.symlink_to(to)
            for verb in (create, restore):
                with pytest.raises(bf.BackupError, match=f"{link.name} is a symbolic link"):
                    verb(client, str(kept), [topic])
            link.unlink()
        create(client, str(kept), [topic])
    assert precious.read_bytes() == b"precious"
