"""Brokers of different versions: what they say to each other, and what stops the older one."""

from __future__ import annotations

import asyncio
import logging
import os

import golden_quorum
import msgspec
import pytest
from event_loops import eventually, run
from quorum_fixture import World, create
from unit.server.test_quorum_links import End, linked

from penstock import __version__
from penstock.cluster.controller import pack, records
from penstock.cluster.controller.records import METADATA_VERSION
from penstock.cluster.raft import Members, Snapshot, Write
from penstock.core.errors import ConfigError, UnsupportedVersionError
from penstock.core.storage import Storage
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum import messages as qm
from penstock.server.quorum.raft_storage import RaftDisk

NEWER = {"metadata": METADATA_VERSION + 1, "release": "9.8.7"}


def newer(end: End, **fields: object) -> None:
    """It greets as another version would."""
    hello, admit = end.links._hello, end.links._admit

    def greets() -> qm.Hello:
        return msgspec.structs.replace(hello(), **fields)

    def admits(other: qm.Hello) -> qm.Welcome:
        return msgspec.structs.replace(admit(other), **fields)

    vars(end.links).update(_hello=greets, _admit=admits)
    if end.links._door is not None:
        end.links._door._admits = admits


def test_another_version_of_the_link_is_refused_on_both_sides_by_a_message_for_people(caplog):
    caplog.set_level(logging.WARNING, "penstock.quorum")

    async def scene(one: End, two: End) -> None:
        newer(two, version=qm.LINK_VERSION + 1, **NEWER)
        one.links.know({2: two.url})
        two.links.know({1: one.url})
        await eventually(lambda: one.links.trouble(2) and two.links.trouble(1), "both are told")
        wanted = (
            f"broker 2 (Penstock 9.8.7) speaks version {qm.LINK_VERSION + 1} of the control link, "
            f"and broker 1 (Penstock {__version__}) version {qm.LINK_VERSION}"
        )
        await eventually(lambda: wanted in two.links.trouble(1), "the one that was refused")
        assert wanted in one.links.trouble(2)
        assert one.links.nodes() == set()
        lines = [each.getMessage() for each in caplog.records if wanted in each.getMessage()]
        assert any("is refused" in line for line in lines), "who refuses"
        assert any("it refused" in line for line in lines), "who is refused"

    linked(scene, lambda: End(1), lambda: End(2))


def test_other_records_are_told_of_on_both_sides_and_keep_nobody_out(caplog):
    caplog.set_level(logging.INFO, "penstock.quorum")

    async def scene(one: End, two: End) -> None:
        newer(two, **NEWER)
        one.links.know({2: two.url})
        await eventually(lambda: 2 in one.links.nodes() and 1 in two.links.nodes(), "linked")
        assert one.links.releases[2] == ("9.8.7", METADATA_VERSION + 1)
        assert two.links.releases[1] == (__version__, METADATA_VERSION)

    linked(scene, lambda: End(1), lambda: End(2))
    said = [each for each in caplog.records if each.levelno == logging.WARNING]
    about = [each.getMessage() for each in said if "metadata version" in each.getMessage()]
    assert any("broker 2 runs Penstock 9.8.7" in line for line in about)


@pytest.mark.parametrize("name", ["hello", "welcome"])
def test_who_tells_no_release_is_of_the_first_one(name):
    message = qm.decode(golden_quorum.load()[f"{name}-first-release"])
    assert isinstance(message, qm.Hello | qm.Welcome)
    assert (message.release, message.metadata) == ("", 1)


def test_an_unknown_record_stops_a_broker_and_a_newer_one_goes_on_with_all_there_is(
    tmp_path, monkeypatch
):
    """All three brokers here are older than the record, as if the newer one had gone again. The
    last one may not hear any more that it counts."""

    async def main() -> None:
        topic_id = os.urandom(16)
        world = World(tmp_path)
        async with world:
            active = await world.agreed()
            await active.ask(create("orders", topic_id))
            await world.same()
            image = list(active.image.records())
            strange = records.record("counter", "n", value=7)
            key = msgspec.msgpack.encode(("share group", "g"))
            entry = pack((strange, strange._replace(key=key)))
            index = active._consensus.propose(entry)
            await eventually(lambda: len(world.failures) >= 2, "most of them stop")
            for error in world.failures.values():
                assert isinstance(error, UnsupportedVersionError)
                for part in (
                    "share group", f"entry {index} of the controller's log", __version__,
                    f"metadata version {METADATA_VERSION}", "nothing is lost",
                ):  # fmt: skip
                    assert part in str(error), part
        world.failures.clear()
        monkeypatch.setitem(records.VALUES, "share group", msgspec.msgpack.Decoder(int))
        async with asyncio.timeout(45), world:
            again = await world.agreed()
            assert again.image.ids == {"orders": topic_id}
            known = [each for each in image if b"broker" not in each.key]
            assert {each.key for each in known} <= {each.key for each in again.image.records()}
            assert again.image.counters["n"] == 7
            await again.ask(create("more", os.urandom(16)))
            assert not world.failures

    run(main())


def test_an_unknown_record_in_a_snapshot_stops_a_broker_as_it_starts(tmp_path):
    strange = records.record("counter", "n", value=7)
    data = pack((strange._replace(key=msgspec.msgpack.encode(("share group", "g"))),))
    (tmp_path / "1").mkdir(mode=0o700)
    disk = RaftDisk(Storage(), str(tmp_path / "1"), 1)
    disk.open((1,))
    disk.write([Write(1, 1, 1, 6, (), Snapshot(5, 1, Members((1,)), data))])
    disk.close()

    async def main() -> None:
        world = World(tmp_path, count=1)
        quorum = await world.start(1, registers=False)
        await eventually(lambda: world.failures, "it stops")
        assert "the snapshot up to entry 5 of the controller's log" in str(world.failures[1])
        assert "share group" in str(quorum.failure)
        await world.stop(1)

    run(main())


def test_a_request_goes_by_its_name_and_one_without_a_name_here_is_refused():
    request = cr.ForgetBroker(2)
    assert (cr.NAMES[cr.ForgetBroker], cr.encoded(request)) == ("forget", golden_quorum.FORGET)
    assert cr.decode_ask("forget", golden_quorum.FORGET) == request
    with pytest.raises(ConfigError, match="no 'replay': it is older"):
        cr.decode_ask("replay", golden_quorum.FORGET)
