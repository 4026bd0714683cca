"""What a broker knows of its logs that are gone or offline, and how the controller hears of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cluster_topics_fixture import BOOT, Decided, Host

from penstock.cluster.replica import LogEnd
from penstock.core.errors import DataFolderError, PenstockTimeout
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.messages import TopicSettings
from penstock.server.broker import leaderless
from penstock.server.broker.offline_logs import OfflineLogs
from penstock.server.broker.replica_list import KEPT_FILE, KeptReplicas
from penstock.server.node.data_folder import DataFolder
from penstock.server.quorum import controller_requests as cr

T, U = b"t" * 16, b"u" * 16


# --- what was kept --------------------------------------------------------------------------------
@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], KeptReplicas]:
    folder = DataFolder.open(str(tmp_path), BOOT)
    folder.begin(BOOT, 1, 1)
    return lambda: KeptReplicas(folder)


def make(folder: Path, *places: tuple[bytes, int]) -> None:
    for topic_id, index in places:
        (folder / f"{topic_id.hex()}-{index}").mkdir()


def test_a_folder_that_was_noted_and_is_gone_is_lost(kept, tmp_path):
    make(tmp_path, (T, 0), (T, 1), (U, 0))
    kept().note([(T, 0), (T, 1), (U, 0)])
    assert kept().lost == ()
    shutil.rmtree(tmp_path / f"{T.hex()}-1")
    assert kept().lost == ((T, 1),)


def test_a_folder_that_was_never_made_is_not_lost(kept, tmp_path):
    make(tmp_path, (T, 0))
    kept().note([(T, 0), (T, 1)])
    assert kept().lost == ()
    assert kept().places == {(T, 0)}


def test_what_is_kept_no_more_may_go(kept, tmp_path):
    make(tmp_path, (T, 0), (T, 1))
    noted = kept()
    noted.note([(T, 0), (T, 1)])
    noted.keep({(T, 0), (U, 5)})
    assert noted.says({(T, 0)})
    shutil.rmtree(tmp_path / f"{T.hex()}-1")
    assert kept().lost == ()
    assert kept().places == {(T, 0)}


def test_a_folder_of_a_release_that_noted_nothing_has_what_is_there(kept, tmp_path):
    make(tmp_path, (T, 0))
    first = kept()
    assert (first.places, first.lost) == ({(T, 0)}, ())
    assert not first.says({(T, 0)}), "it is not written yet"
    first.note([(T, 0)])
    assert first.says({(T, 0)})
    shutil.rmtree(tmp_path / f"{T.hex()}-0")
    assert kept().lost == ((T, 0),)


@pytest.mark.parametrize("data", [b"{", b'{"schema": 9, "topics": {}}', b'{"schema": 1}'])
def test_a_note_that_cannot_be_read_keeps_the_broker_from_starting(kept, tmp_path, data):
    (tmp_path / KEPT_FILE).write_bytes(data)
    with pytest.raises(DataFolderError, match=KEPT_FILE):
        kept()


# --- brokers --------------------------------------------------------------------------------------
World = Callable[[Callable[[Decided, Host], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def world(tmp_path: Path) -> World:
    def run(test: Callable[[Decided, Host], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            quorum = Decided()
            host = Host(quorum, 1, tmp_path / "1")
            try:
                quorum.tell()
                await test(quorum, host)
            finally:
                await host.close()

        asyncio.run(main())

    return run


async def create(host: Host, **settings: Any) -> ms.TopicInfo:
    return (await host.topics.create(ms.CreateTopic("t", TopicSettings(**settings)))).topic


def test_a_partition_whose_folder_is_gone_is_told_once_and_begins_empty(world):
    async def test(quorum: Decided, host: Host) -> None:
        topic = await create(host, partitions=2)
        page = host.tables.page(topic.pages[1])
        page.claim(topic.topic_id, 1, 1)
        page.publish_ends(7, 7, 7)
        page.publish_status(lo.STATUS_ONLINE)
        await host.topics.close()
        shutil.rmtree(host.path / f"{topic.topic_id.hex()}-1")
        again = Host(quorum, 1, host.path, tables=host.tables)
        try:
            assert again.topics.lost == ((topic.topic_id, 1),)
            again.hear()
            await again.settled()
            assert again.open == {"t-0", "t-1"}
            assert again.folders == host.folders
            assert page.log_end == 0, "what it shows is no damage of the log that begins"
        finally:
            await again.topics.close()
        assert KeptReplicas(again.folder).lost == ()

    world(test)


def test_a_partition_that_was_deleted_or_moved_away_is_not_lost(world):
    async def test(quorum: Decided, host: Host) -> None:
        topic = await create(host, partitions=2)
        await quorum.ask(cr.Reassign(((topic.topic_id, 0),), (2, 3)), timeout=1)
        at = quorum.image.partitions[topic.topic_id, 0]
        assert 1 not in at.replicas
        await host.settled()
        assert KeptReplicas(host.folder).places == {(topic.topic_id, 1)}
        await host.topics.delete("t")
        await host.settled()
        assert KeptReplicas(host.folder).places == set()

    world(test)


class Asked:
    """The quorum, as a broker asks it."""

    def __init__(self, quorum: Decided) -> None:
        self._quorum = quorum
        self.image = quorum.image
        self.applied = 0
        self.refusals = 0
        self.here = 1

    @property
    def broker_epoch(self) -> int | None:
        return self._quorum.image.brokers[self.here].epoch

    async def ask(self, request: cr.QuorumRequest[Any], timeout: float) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise PenstockTimeout("nobody answers")
        return await self._quorum.ask(request, timeout)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_controller_is_told_what_it_does_not_know_until_it_does(world):
    async def test(quorum: Decided, host: Host) -> None:
        asked = Asked(quorum)
        logs = OfflineLogs(1, asked)
        host.partitions.on_state = logs.noted
        try:
            topic = await create(host, partitions=2)
            place = (topic.topic_id, 0)
            logs.heard(quorum.image, None)
            asked.refusals = 2
            host.partitions.went_offline(ms.PartitionOffline(topic.pages[0], "its disk"))
            assert logs.places == (place,)
            await until(lambda: quorum.image.partitions[place].offline == (1,))
            assert quorum.image.partitions[place].leader != 1
            assert quorum.image.partitions[topic.topic_id, 1].offline == ()
            told = quorum.asked.count(cr.Logs)
            logs.heard(quorum.image, {place})
            await asyncio.sleep(0.02)
            assert quorum.asked.count(cr.Logs) == told, "it knows"
            host.partitions.opened(ms.PartitionOpened(topic.pages[0], 0, "", "its disk"))
            assert logs.places == (place,), "opened with other settings, and as ill as before"
            host.partitions.opened(ms.PartitionOpened(topic.pages[0], 0, ""))
            await until(lambda: quorum.image.partitions[place].offline == ())
            assert not logs.places
        finally:
            logs.close()

    world(test)


def test_a_log_that_cannot_be_opened_is_offline_before_the_broker_is_registered(world):
    async def test(quorum: Decided, host: Host) -> None:
        logs = OfflineLogs(1, Asked(quorum))
        host.partitions.on_state = logs.noted
        try:
            topic = await create(host)
            host.partitions.failed(ms.PartitionFailed(topic.pages[0], "damaged"))
            assert logs.places == ((topic.topic_id, 0),)
            assert cr.Logs not in quorum.asked, "the image is not current: the registration tells"
        finally:
            logs.close()

    world(test)


# --- partitions that nobody leads -----------------------------------------------------------------
def test_the_controller_is_told_again_what_is_here_while_nobody_leads(world, monkeypatch):
    monkeypatch.setattr(leaderless, "TELL_AGAIN", 0.01)

    async def test(quorum: Decided, host: Host) -> None:
        topic = await create(host, replication_factor=1)
        place = (topic.topic_id, 0)
        here = quorum.image.partitions[place].replicas[0]
        asked = Asked(quorum)
        asked.here = here
        logs = leaderless.LeaderlessLogs(here, asked)
        try:
            logs.heard(quorum.image, None)
            logs.told(place, LogEnd(0, 0, 7))
            await asyncio.sleep(0.05)
            assert cr.ReportLogEnds not in quorum.asked, "it is led"
            quorum.lose_power(here, beat=False)
            word = quorum.image.partitions[place]
            assert word.leader is None
            logs.heard(quorum.image, {place})
            asked.refusals = 2
            logs.told(place, LogEnd(word.leader_epoch, 0, 7))
            await until(lambda: quorum.asked.count(cr.ReportLogEnds) >= 3)
            assert quorum.image.partitions[place].leader is None, "its broker is fenced"
            quorum.beat(here)
            await until(lambda: quorum.image.partitions[place].leader == here)
            unclean = quorum.image.partitions[place].unclean
            assert unclean is not None
            assert unclean.first == 7
            told = quorum.asked.count(cr.ReportLogEnds)
            await asyncio.sleep(0.05)
            assert quorum.asked.count(cr.ReportLogEnds) <= told + 1, "somebody leads"
        finally:
            logs.close()

    world(test)


def test_the_leader_logs_once_what_may_be_missing(world, caplog):
    async def test(quorum: Decided, host: Host) -> None:
        topic = await create(host, replication_factor=1)
        place = (topic.topic_id, 0)
        here = quorum.image.partitions[place].replicas[0]
        quorum.lose_power(here, beat=True)
        word = quorum.image.partitions[place]
        await quorum.ask(cr.ReportLogEnds(here, quorum.image.brokers[here].epoch,
            ((place, LogEnd(word.leader_epoch, 0, 7, 9)),)), timeout=1.0)  # fmt: skip
        logs = leaderless.LeaderlessLogs(here, Asked(quorum))
        try:
            logs.heard(quorum.image, None)
            logs.heard(quorum.image, {place})
        finally:
            logs.close()

    world(test)
    [line] = [each.getMessage() for each in caplog.records if "is clean" in each.getMessage()]
    assert "from offset 7 on may be missing (offsets below 9 were in use)" in line
