"""Access of a cluster: what one broker is told holds at all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cluster_topics_fixture import Decided

from penstock.core.errors import ConfigError, PenstockTimeout
from penstock.core.storage import Storage, storage_error
from penstock.ipc import accessing as ac
from penstock.server.broker import kept_up
from penstock.server.broker.access import SharedAccess
from penstock.server.security.access_requests import Accessing
from penstock.server.security.access_store import Access


def entry(name: str) -> ac.AccessEntry:
    return ac.AccessEntry("alice", "allow", "read", "topic", name)


class Full(Storage):
    """A disk that has no room while `is_full`."""

    is_full = False

    def write_file_atomic(self, path: str, data: bytes | bytearray | memoryview) -> None:
        if self.is_full:
            raise storage_error(OSError(28, "No space left on device"), "write", path)
        super().write_file_atomic(path, data)


class Broker:
    """One broker, as far as access goes."""

    def __init__(self, quorum: Decided, path: Path, timeout: float = 5.0) -> None:
        path.mkdir(exist_ok=True)
        self.storage = Full()
        self.quorum = quorum
        self.access = Access(str(path), self.storage)
        self.shared = SharedAccess(self.access, quorum, timeout)
        self.accessing = Accessing(self.access, self.shared)

    def hear(self) -> None:
        self.shared.heard(self.quorum.image)

    async def add(self, *names: str) -> ac.AccessChanged:
        return await self.accessing.change(ac.AddAccess([entry(name) for name in names]), "test")

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.access.document.entries]

    async def has(self, *names: str) -> None:
        async with asyncio.timeout(45):
            while self.names != list(names):
                await asyncio.sleep(0.001)


Test = Callable[[Decided, list[Broker]], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            quorum = Decided()
            brokers = [Broker(quorum, tmp_path / str(number)) for number in (1, 2)]

            def tell() -> None:
                for each in brokers:
                    each.hear()

            quorum.tell = tell  # type: ignore[method-assign]
            try:
                await test(quorum, brokers)
            finally:
                for each in brokers:
                    each.shared.close()
                    await each.accessing.close()

        asyncio.run(main())

    return run


def test_a_change_holds_at_all_brokers_and_in_their_files(run, tmp_path):
    async def test(_quorum: Decided, brokers: list[Broker]) -> None:
        one, two = brokers
        assert (await one.add("a")).changed == 1
        assert one.names == ["a"], "where it was asked it holds at once"
        await two.has("a")
        await two.add("b")
        await one.has("a", "b")
        assert one.access.document == two.access.document
        assert Access(str(tmp_path / "1")).document == one.access.document

    run(test)


def test_an_exception_that_nobody_expected_ends_no_copying(run, monkeypatch, caplog):
    monkeypatch.setattr(kept_up, "AGAIN", 0.01)

    async def test(_quorum: Decided, brokers: list[Broker]) -> None:
        one, two = brokers
        apply = two.access.apply
        monkeypatch.setattr(two.access, "apply", lambda document: 1 // 0)
        await one.add("a")
        async with asyncio.timeout(45):
            while "the task of access failed" not in caplog.text:
                await asyncio.sleep(0.001)
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.setattr(two.access, "apply", apply)
        await two.has("a")

    run(test)


def test_changes_at_once_are_both_there_or_one_is_refused(run):
    async def test(_quorum: Decided, brokers: list[Broker]) -> None:
        one, two = brokers
        answers = await asyncio.gather(one.add("a"), two.add("b"), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, ConfigError)]
        assert all("somebody else changed access just now" in str(each) for each in refused)
        assert len(one.names) == 2 - len(refused)
        await two.has(*one.names)
        await two.add("c")
        assert len(two.names) == 3 - len(refused)

    run(test)


def test_what_a_broker_had_before_holds_until_the_cluster_has_its_own(run, tmp_path):
    async def test(quorum: Decided, brokers: list[Broker]) -> None:
        one, two = brokers
        alone = Accessing(one.access)
        await alone.change(ac.AddAccess([entry("old")]), "test")
        quorum.tell()
        await asyncio.sleep(0.01)
        assert (one.names, two.names) == (["old"], [])
        await one.add("new")
        await two.has("old", "new")

    run(test)


def test_a_broker_that_was_away_or_has_no_room_gets_it_later(run):
    async def test(quorum: Decided, brokers: list[Broker]) -> None:
        one, two = brokers
        two.storage.is_full = True
        await one.add("a")
        await asyncio.sleep(0.05)
        assert two.names == []
        two.shared._timeout = 0.05
        with pytest.raises(PenstockTimeout, match="what other brokers changed of access"):
            await two.add("b")
        two.storage.is_full = False
        await two.has("a")
        two.shared._timeout = 5.0
        await two.add("b")
        await one.has("a", "b")

    run(test)
