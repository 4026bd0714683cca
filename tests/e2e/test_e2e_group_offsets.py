"""Committed offsets of a group as a document, and groups that are moved by one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from cli_runner import call_cli
from group_fixture import fill

import penstock
from penstock import aio
from penstock.client.admin.exported_offsets import ExportedOffset, ExportedOffsets
from penstock.core import errors as er
from penstock.testing import Broker

pytestmark = [pytest.mark.over_tcp, pytest.mark.timeout(120)]


def read(client: penstock.Client, topic: str, group: str) -> list[int]:
    with client.consumer(topic, group=group, follow=False, start="earliest") as consumer:
        return [record.offset for record in consumer]


def test_a_group_goes_on_where_the_other_one_was(node: Broker, tmp_path: Path) -> None:
    topic, file = node.create_topic(), tmp_path / "offsets.json"
    with node.connect() as client, client.admin() as admin:
        fill(node, topic, 0, 10)
        assert read(client, topic, f"{topic}.a") == list(range(10))
        ran = call_cli("group", "export-offsets", f"{topic}.a", url=node.url)
        file.write_bytes(ran.out)
        [offset] = json.loads(ran.out)["offsets"]
        assert (offset["topic"], offset["partition"], offset["offset"]) == (topic, 0, 10)
        fill(node, topic, 10, 3)
        command = ("group", "import-offsets", f"{topic}.b", str(file))
        dry = call_cli(*command, "--dry-run", url=node.url)
        told = "with nothing committed before: 10 passed over, from the log's start"
        assert dry.lines == [f"{topic}-0 would go to 10, {told}"]
        assert not admin.describe_group(f"{topic}.b").partitions
        asked = call_cli(*command, url=node.url)
        assert (asked.code, "add --yes (or --dry-run)" in asked.err) == (2, True)
        done = call_cli(*command, "--yes", url=node.url)
        assert done.lines == [f"{topic}-0 goes to 10, {told}"]
        assert read(client, topic, f"{topic}.b") == [10, 11, 12]
        back = call_cli(*command[:3], "-", "--yes", url=node.url, stdin=file.read_bytes())
        assert back.lines == [f"{topic}-0 goes from 13 to 10: 3 records again, 0 passed over"]
        assert read(client, topic, f"{topic}.b") == [10, 11, 12]


def test_a_group_with_members_is_not_moved(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client, client.admin() as admin:
        fill(node, topic, 0, 2)
        read(client, topic, topic)
        exported = admin.export_offsets(topic)
        with (
            client.consumer(topic, group=topic),
            pytest.raises(er.GroupError, match="it has 1 members; stop them"),
        ):
            admin.import_offsets(topic, exported)
        admin.import_offsets(topic, exported)


def test_offsets_outside_the_log_are_refused_or_clamped(node: Broker) -> None:
    topic = node.create_topic(partitions=2)
    with node.connect() as client, client.admin() as admin, client.producer() as producer:
        for partition in (0, 1):
            for _ in range(5):
                producer.send_and_wait(topic, b"x", partition=partition)
        admin.trim(topic, 0, before=3)
        topic_id = admin.describe_topic(topic).topic_id
        given = ExportedOffsets(
            "g", "at-least-once", 0.0,
            [ExportedOffset(topic, topic_id, 0, 1, 1), ExportedOffset(topic, topic_id, 1, 9, 1)],
        )  # fmt: skip
        with pytest.raises(er.OffsetOutOfRangeError) as caught:
            admin.import_offsets(topic, given)
        assert f"{topic}-0 1 (3 to 5), {topic}-1 9 (0 to 5)" in str(caught.value)
        assert not admin.describe_group(topic).partitions
        assert [one.after for one in admin.import_offsets(topic, given, clamp=True)] == [3, 5]
        assert [one.committed for one in admin.describe_group(topic).partitions] == [3, 5]


def test_a_topic_made_anew_is_another_one(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client, client.admin() as admin:
        fill(node, topic, 0, 4)
        read(client, topic, f"{topic}.old")
        exported = admin.export_offsets(f"{topic}.old")
        admin.delete_topic(topic)
        with pytest.raises(er.UnknownTopicError):
            admin.import_offsets(topic, exported)
        admin.create_topic(topic)
        fill(node, topic, 0, 9)
        with pytest.raises(er.UnknownTopicError, match="is another one than"):
            admin.import_offsets(topic, exported)
        [reset] = admin.import_offsets(topic, exported, by_name=True)
        assert reset.after == 4
        assert read(client, topic, topic) == list(range(4, 9))


def test_at_most_once_goes_back_only_where_that_is_wanted(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client, client.admin() as admin:
        fill(node, topic, 0, 2)
        options = {"group": topic, "guarantee": "at-most-once", "follow": False}
        with client.consumer(topic, **options) as consumer:  # type: ignore[call-overload]
            assert len(list(consumer)) == 2
        exported = admin.export_offsets(topic)
        assert exported.guarantee == "at-most-once"
        fill(node, topic, 2, 2)
        with client.consumer(topic, **options) as consumer:  # type: ignore[call-overload]
            assert len(list(consumer)) == 2
        with pytest.raises(er.GroupError, match="would deliver 2 records twice"):
            admin.import_offsets(topic, exported)
        [reset] = admin.import_offsets(topic, exported, allow_redelivery=True)
        assert (reset.before, reset.after) == (4, 2)


def test_nothing_committed_is_nothing_to_export(node: Broker) -> None:
    ran = call_cli("group", "export-offsets", "never", url=node.url)
    assert (ran.code, "has committed nothing" in ran.err) == (1, True)


def test_from_an_event_loop(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client:
        fill(node, topic, 0, 3)
        read(client, topic, topic)

    async def work() -> None:
        async with await aio.connect(node.url) as client:
            admin = await client.admin()
            exported = await admin.export_offsets(topic)
            [reset] = await admin.import_offsets(f"{topic}.b", exported, dry_run=True)
            assert reset.after == 3

    asyncio.run(work())


GOOD = ExportedOffsets("g", "manual", 1.5, [ExportedOffset("t", "00", 0, 5, 1)])


def test_a_document_reads_as_it_was_written() -> None:
    assert ExportedOffsets.from_json(GOOD.to_json()) == GOOD
    empty = msgspec.structs.replace(GOOD, offsets=[], group='"offsets":[]')
    assert ExportedOffsets.from_json(empty.to_json()) == empty
    full = msgspec.structs.replace(GOOD, group='"offsets":[]')
    assert ExportedOffsets.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no exported offsets"),
        (b"{", "no exported offsets"),
        (b"[" * 100_000, "no exported offsets"),
        (b"\xff\xfe", "no exported offsets"),
        (GOOD.to_json().replace('"offset":5', '"offset":-1'), "offset"),
        (GOOD.to_json().replace('"offset":5', '"offset":9223372036854775807'), "offset"),
        (GOOD.to_json().replace('"partition":0', '"partition":"0"'), "partition"),
        (GOOD.to_json().replace('"schema":1', '"schema":2'), "schema 2"),
        (GOOD.to_json().replace('"group":', '"grup":'), "grup"),
        (
            msgspec.json.encode(msgspec.structs.replace(GOOD, offsets=[*GOOD.offsets] * 2)),
            "t-0 twice",
        ),
    ],
    ids=range(10),
)
def test_other_documents_are_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(er.ConfigError, match=said):
        ExportedOffsets.from_json(text)
    file = tmp_path / "it"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    assert call_cli("group", "import-offsets", "g", str(file)).code == 2
    assert call_cli("group", "import-offsets", "g", str(file) + "-not-there").code == 2
