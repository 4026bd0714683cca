"""Groups as an admin sees and moves them, by the API and by `penstock group`."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest
from cli_runner import call_cli
from group_fixture import fill

from penstock import Offset
from penstock.core import errors as er
from penstock.operations.judgement import judge_group
from penstock.testing import wait_until


def offsets(records):
    return [record.offset for record in records]


def read(client, topic, group, **options):
    with client.consumer(topic, group=group, follow=False, **options) as consumer:
        return offsets(consumer)


@pytest.mark.setting("group.group")
def test_lag_in_records_and_in_seconds(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client, client.admin() as admin:
        assert read(client, topic, "lags") == list(range(10))
        group = admin.describe_group("lags")
        assert (group.lag, group.lag_seconds, group.state) == (0, 0.0, "empty")
        before = time.time()
        fill(node, topic, 10, 7)
        [partition] = admin.describe_group("lags").partitions
        assert (partition.committed, partition.high_watermark, partition.lag) == (10, 17, 7)
        assert 0 <= partition.lag_seconds <= time.time() - before
        group = admin.describe_group("lags", sample=0.01)
        assert group.drain_seconds is None  # nobody works on it


def test_drain_time_from_two_looks(node):
    topic = node.create_topic()
    fill(node, topic, 0, 1000)
    with (
        node.connect() as client,
        client.admin() as admin,
        client.consumer(topic, group="drains") as consumer,
    ):
        consumer.poll(100, timeout=5)
        consumer.commit()
        consumer.poll(1)

        def position():
            return admin.describe_group("drains").partitions[0].position

        wait_until(lambda: position() == 100, what="its position")  # over tcp: in a while
        group = admin.describe_group("drains")
        [member] = group.members
        assert (member.member_id, member.partitions) == (consumer.member_id, 1)
        [partition] = group.partitions
        assert (partition.committed, partition.position, partition.lag) == (100, 100, 900)
        assert partition.member_id == consumer.member_id


def test_a_group_that_nobody_has_joined_is_empty(node):
    with node.connect() as client, client.admin() as admin:
        group = admin.describe_group("of-nobody")
        assert (group.state, group.members, group.partitions, group.lag) == ("empty", [], [], 0)
    told = call_cli("group", "describe", "of-nobody", url=node.url)
    assert told.lines == ["of-nobody: empty, nobody has joined it yet"]
    assert call_cli("group", "delete", "of-nobody", "--dry-run", url=node.url).code == 1


def test_what_a_member_has_in_hand_and_when_it_polled(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with (
        node.connect() as client,
        client.admin() as admin,
        client.consumer(topic, group="hands", guarantee="manual") as consumer,
    ):
        begun = time.monotonic()
        batch = consumer.poll(4, timeout=25)
        consumer.poll(1, timeout=25)

        def has_read() -> bool:
            return bool(admin.describe_group("hands").partitions[0].in_hand == 4)

        wait_until(has_read, what="its position, with nothing committed")
        text = call_cli("group", "describe", "hands", url=node.url).lines
        assert ", lag unknown (" in text[0]
        assert text[2].split()[2:7] == ["-", "10", "-", "-", "4"]
        [found] = judge_group(admin.describe_group("hands"))
        assert "has read 4 records, counted from the log's start, and committed none" in found.what
        consumer.commit(batch[0])
        consumer.poll(3, timeout=25)

        def is_told() -> bool:
            [member] = admin.describe_group("hands").members
            return member.poll_seconds is not None

        wait_until(is_told, what="its poll")  # over tcp: in a while
        wait_until(
            lambda: admin.describe_group("hands").partitions[0].position == 5, what="its position"
        )
        group = admin.describe_group("hands")
        assert 0 <= group.members[0].poll_seconds <= time.monotonic() - begun
        text = call_cli("group", "describe", "hands", url=node.url).lines
        assert text[1].split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "AGE",
                                   "IN-HAND", "COMMIT", "POLL", "STATUS", "MEMBER"]  # fmt: skip
        assert text[2].split()[:5] == [topic, "0", "1", "10", "9"]
        assert text[2].split()[6] == "4"


def test_reset_to_each_kind_of_place(node):
    topic = node.create_topic()
    fill(node, topic, 0, 50)
    time.sleep(0.002)
    moment = datetime.now(UTC)
    fill(node, topic, 50, 50)
    with node.connect() as client, client.admin() as admin:
        read(client, topic, "resets")
        for to, wanted in (
            ("earliest", 0), (70, 70), (Offset.relative(-20), 50), (moment, 50), ("latest", 100),
            (Offset.from_end(3), 97),
        ):  # fmt: skip
            [foretold] = admin.reset_offsets("resets", topic, to=to, dry_run=True)
            [done] = admin.reset_offsets("resets", topic, to=to)
            assert foretold == done
            assert done.after == wanted
        assert read(client, topic, "resets") == [97, 98, 99]
        with pytest.raises(er.OffsetOutOfRangeError):
            admin.reset_offsets("resets", topic, to=101)


def test_a_reset_under_the_feet_of_a_member_moves_it_and_refuses_its_commit(node):
    topic = node.create_topic(partitions=2)
    fill(node, topic, 0, 100)
    with (
        node.connect() as client,
        client.admin() as admin,
        client.consumer(topic, group="under", guarantee="manual") as consumer,
    ):
        batch = consumer.poll(timeout=25)
        while {chunk.partition for chunk in batch.chunks} != {0, 1}:  # one came first
            consumer.rewind()
            batch = consumer.poll(timeout=25)
        first = {chunk.partition: chunk.next_offset for chunk in batch.chunks}
        consumer.commit(batch)
        admin.reset_offsets("under", topic, to="earliest", partitions=1)
        with pytest.raises(er.StaleGenerationError, match=f"{topic}-1 "):
            consumer.commit(batch)
        again = consumer.poll(timeout=25)
        assert {chunk.partition for chunk in again.chunks} == {1}
        assert again.offsets.tolist() == list(range(first[1]))


def test_delete_group_forgets_and_is_refused_while_members_are_there(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    with node.connect() as client, client.admin() as admin:
        with client.consumer(topic, group="deleted", follow=False) as consumer:
            list(consumer)
            with pytest.raises(er.GroupError):
                admin.delete_group("deleted")
        admin.delete_group("deleted")
        assert "deleted" not in [one.group for one in admin.list_groups()]
        assert len(read(client, topic, "deleted")) == 10


# --- penstock group -------------------------------------------------------------------------------
def test_cli_consume_by_a_group_goes_on_where_it_ended(node):
    topic = node.create_topic()
    fill(node, topic, 0, 5)
    for guarantee in ("at-least-once", "at-most-once"):
        command = ("consume", topic, "-g", f"cli-{guarantee}", "--guarantee", guarantee)
        assert call_cli(*command, "-n", "2", url=node.url).lines == ["0", "1"]
        assert call_cli(*command, url=node.url).lines == ["2", "3", "4"]
        assert call_cli(*command, url=node.url).lines == []
    ran = call_cli("consume", topic, "-g", "g", "--guarantee", "manual", url=node.url)
    assert (ran.code, ran.out) == (2, b"")


def test_cli_group_commands(node):
    topic = node.create_topic()
    fill(node, topic, 0, 20)
    assert call_cli("consume", topic, "-g", "shown", "-n", "8", url=node.url).code == 0
    assert "shown" in call_cli("group", "list", url=node.url).lines
    [listed] = call_cli("group", "list", "show*", "--format", "json", url=node.url).objects
    assert (listed["group"], listed["state"], listed["members"]) == ("shown", "empty", 0)
    assert "at-least-once" in call_cli("group", "list", "--format", "wide", url=node.url).lines[1]
    [told] = call_cli("group", "describe", "shown", "--format", "json", url=node.url).objects
    assert (told["lag"], told["partitions"][0]["committed"]) == (12, 8)
    text = call_cli("group", "describe", "shown", "--format", "wide", url=node.url).lines
    assert text[0].startswith("shown: at-least-once, empty")
    assert text[2].split()[:5] == [topic, "0", "8", "20", "12"]

    seek = ("group", "seek", "shown", topic)
    ran = call_cli(*seek, "--to", "start", "--dry-run", url=node.url)
    assert ran.lines == [f"{topic}-0 would go from 8 to 0: 8 records again, 0 passed over"]
    assert call_cli(*seek, "--to", "start", url=node.url).code == 2  # nobody to ask
    ran = call_cli(*seek, "--by", "-3", "--yes", url=node.url)
    assert ran.lines == [f"{topic}-0 goes from 8 to 5: 3 records again, 0 passed over"]
    [told] = call_cli("group", "describe", "shown", "--format", "json", url=node.url).objects
    assert told["partitions"][0]["status"] == "REWIND"
    [*_, last] = call_cli("group", "describe", "shown", url=node.url).lines
    assert last.startswith(f"{topic}-0 is REWIND: it went back from 8 to 5 ")
    assert call_cli(*seek, url=node.url).code == 2
    nobody = call_cli("group", "seek", "shwon", topic, "--to", "end", "--yes", url=node.url)
    assert (nobody.code, "there is no group 'shwon'" in nobody.err) == (1, True)
    assert call_cli("consume", topic, "-g", "shown", "-n", "1", url=node.url).lines == ["5"]

    ran = call_cli("group", "delete", "shown", "--dry-run", url=node.url)
    assert ran.lines == ["would delete group shown: 1 committed offset"]
    with node.connect() as client, client.consumer(topic, group="shown", instance_id="one"):
        ran = call_cli("group", "delete", "shown", "--dry-run", url=node.url)
        assert (ran.code, ran.lines) == (1, [])
        assert "would not be deleted: it has 1 member; stop them first" in ran.err
        [head, *_] = call_cli("group", "describe", "shown", url=node.url).lines
        assert "1 member, lag" in head
    ran = call_cli("group", "seek", "shown", node.create_topic(), "--to", "end", "--dry-run",
                   url=node.url)  # fmt: skip
    assert ran.lines[0].endswith("-0 would go to 0, with nothing committed before")
    described = ("group", "describe", "shown", "--format", "json")  # a static member just goes
    wait_until(lambda: not call_cli(*described, url=node.url).objects[0]["members"])
    assert call_cli("group", "delete", "shown", "nobody", "--yes", url=node.url).code == 4
    assert "nobody has joined" in call_cli("group", "describe", "shown", url=node.url).lines[0]


def test_a_guarantee_without_a_group_is_refused(node):
    ran = call_cli("consume", node.create_topic(), "--guarantee", "at-most-once", url=node.url)
    assert ran.code == 2
    assert "name it by -g GROUP" in ran.err


def test_consume_goes_on_where_retention_left_off(node):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    consume = ("consume", topic, "-g", "overtaken")
    assert call_cli(*consume, "-n", "2", url=node.url).lines == ["0", "1"]
    with node.connect() as client, client.admin() as admin:
        admin.trim(topic, before=6)
    assert call_cli(*consume, url=node.url).code == 1
    ran = call_cli(*consume, "--on-out-of-range", "earliest", url=node.url)
    assert ran.lines == ["6", "7", "8", "9"]


def test_members_are_told_that_an_admin_sought_their_group(node, caplog):
    topic = node.create_topic()
    fill(node, topic, 0, 10)
    lost: list[tuple[str, int]] = []
    with (
        node.connect() as client,
        client.admin() as admin,
        client.consumer(topic, group="moved", on_lost=lost.extend) as consumer,
    ):
        assert len(consumer.poll(timeout=25)) == 10
        consumer.commit()
        admin.reset_offsets("moved", topic, to="earliest")
        assert offsets(consumer.poll(timeout=25)) == list(range(10))
    assert lost == [(topic, 0)]
    assert f"group moved: sought elsewhere by an admin, or given again: {topic}-0" in caplog.text
    assert "lost to others" not in caplog.text


def test_cli_completes_group_names(node):
    topic = node.create_topic()
    fill(node, topic, 0, 1)
    assert call_cli("consume", topic, "-g", "completed", url=node.url).code == 0
    ran = call_cli("__complete", "zsh", "-b", node.url, "group", "describe", "comp")
    assert ran.lines == ["words", "completed\tat-least-once, empty"]


def test_how_many_members_a_group_needs(node):
    topic = node.create_topic(partitions=4)
    fill(node, topic, 0, 1000)
    with (
        node.connect() as client,
        client.admin() as admin,
        client.consumer(topic, group="scaled") as consumer,
    ):
        consumer.poll(100, timeout=10)
        consumer.commit()

        def work() -> None:
            while not done.wait(0.005):
                consumer.poll(10, timeout=1)

        done = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            found = admin.scale_group("scaled", sample=0.3, lag_seconds=0.0)
        finally:
            done.set()
            thread.join()
        assert (found.group, found.members_now) == ("scaled", 1)
        assert found.members is not None
        assert found.member_rate is not None
    ran = call_cli("group", "scale", "scaled", "--sample", "0.1", url=node.url)
    assert ran.lines[0].startswith("scaled: ")
    assert "during the sample" in ran.lines[0] or "nothing comes" in ran.lines[0]
