"""Settings that are changed while the node runs: who has them, for how long, what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call_cli
from group_fixture import fill

import penstock
from penstock import aio
from penstock.core import errors as er
from penstock.server.config import NodeConfig
from penstock.server.node.live_settings import LIVE, SETTINGS_FILE, LiveSettings
from penstock.testing import Broker, wait_until

pytestmark = [pytest.mark.timeout(120)]
WITHIN = 45.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Started with two settings of its own."""
    with Broker(listen=True, options={"topics_max": 77, "lanes_max": 99}) as made:
        yield made


@pytest.fixture
def admin(broker: Broker) -> Iterator[penstock.Admin]:
    """Gives back what a test changed."""
    with broker.connect() as client, client.admin() as made:
        yield made
        made.alter_settings({one.name: None for one in made.list_settings() if one.is_live})


def values(admin: penstock.Admin, *names: str) -> list[Any]:
    found = {one.name: one.value for one in admin.list_settings()}
    return [found[name] for name in names]


def test_settings_are_listed_with_where_they_come_from(broker: Broker) -> None:
    listed = call_cli("node", "config", "--format", "json", url=broker.url).objects
    known = {one["name"]: one for one in listed}
    assert {name for name, one in known.items() if one["is_live"]} == LIVE
    assert known["topics_max"] == {
        "name": "topics_max", "value": 77, "default": 1000, "source": "start", "is_live": True,
        "allowed": "1..4096",
    }  # fmt: skip
    assert (known["lane_capacity"]["is_live"], known["clients_max"]["source"]) == (False, "default")
    text = call_cli("node", "config", "topics_max", "listen", url=broker.url).lines
    assert text[0].split() == ["SETTING", "VALUE", "FROM", "CHANGES", "DEFAULT", "ALLOWED"]
    assert text[1].split()[:4] == ["topics_max", "77", "start", "live"]
    assert text[2].split()[3] == "restart"


def test_a_change_holds_at_once_and_is_given_back(broker: Broker, admin: penstock.Admin) -> None:
    attached = admin.describe_node().clients
    ran = call_cli("node", "config", f"clients_max={attached + 1}", url=broker.url)
    assert (ran.code, ran.err) == (0, f"in use, and kept: clients_max={attached + 1}\n")
    with broker.connect() as client:
        first = client.admin()
        with pytest.raises(er.ResourceLimitError, match="its bound clients_max"):
            client.admin()
        first.close()
        call_cli("node", "config", "clients-max=", url=broker.tcp_url)
        wait_until(lambda: values(admin, "clients_max") == [512], timeout=WITHIN)
        client.admin().close()


def test_a_change_counts_more_than_the_start_until_it_is_given_back(broker: Broker) -> None:
    with broker.connect() as client, client.admin() as admin:
        [changed] = admin.alter_settings({"topics_max": 3})
        assert (changed.value, changed.source) == (3, "live")
        kept = json.loads((broker.data / SETTINGS_FILE).read_text())
        assert kept == {"schema": 1, "settings": {"topics_max": 3}}
    broker.restart(kill=True)
    assert "settings that were changed while the node ran hold on: topics_max=3" in (
        broker.log_path.read_text()
    )
    with broker.connect() as client, client.admin() as admin:
        for name in ("a", "b", "c"):
            admin.create_topic(name)
        with pytest.raises(er.ResourceLimitError, match="topics_max"):
            admin.create_topic("d")
        [back] = admin.alter_settings({"topics_max": None})
        assert (back.value, back.source) == (77, "start")
        admin.create_topic("d")
        assert json.loads((broker.data / SETTINGS_FILE).read_text())["settings"] == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lane_capacity": 1 << 20}, "lane_capacity needs a restart"),
        ({"listen": "tcp://127.0.0.1:1"}, "listen needs a restart"),
        ({"data_folder": "/tmp"}, "data_folder needs a restart"),
        ({"no_such": 1}, "a node has no setting 'no_such'"),
        ({"clients_max": 0}, r"clients_max is 0: allowed are whole numbers 1\.\.1024"),
        ({"clients_max": "5"}, "clients_max is '5'"),
        ({"clients_max": 5.0}, "clients_max is 5.0"),
        ({"clients_max": True}, "clients_max is True"),
        ({"drain_timeout": float("nan")}, "drain_timeout is nan"),
        ({"drain_timeout": -1}, "drain_timeout is -1"),
        ({"disk_warn": -0.1}, "disk_warn is -0.1"),
        ({"restart_backoff": 50.0}, "restart_backoff_max is 5, below restart_backoff 50"),
        ({"clients_max": 100, "lanes_max": 0}, "lanes_max is 0"),
        ({"clients_max": [1]}, "a setting is no list"),
        ({f"x{at}": 1 for at in range(101)}, "101 settings at once"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_changes_nothing(
    admin: penstock.Admin, changes: dict[str, Any], said: str
) -> None:
    before = admin.list_settings()
    with pytest.raises(er.ConfigError, match=said):
        admin.alter_settings(changes)
    assert admin.list_settings() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clients_max", "lanes_max=3"], "not both at once"),
        (["no_such"], "no setting 'no_such'"),
        (["clients_max=many"], "write a whole number"),
        (["drain_timeout=soon"], "is no duration"),
        (["disk_stop=lots"], "is no size"),
        (["listen=tcp://127.0.0.1:1"], "listen needs a restart"),
        (["=3"], "write KEY=VALUE"),
        (["topics_max=3", "--broker", "7"], "broker 7 answers for itself"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_words_are_wrong_usage(broker: Broker, words: list[str], said: str) -> None:
    ran = call_cli("node", "config", *words, url=broker.url)
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_room_on_the_disk_is_judged_anew(broker: Broker, admin: penstock.Admin) -> None:
    topic = broker.create_topic()
    assert admin.describe_topic(topic).disk["level"] != "full"
    assert call_cli("node", "config", "disk_stop=1000000GiB", url=broker.url).code == 0
    assert admin.describe_topic(topic).disk["level"] == "full"
    assert call_cli("node", "config", "disk_stop=1MiB", "disk_warn=0", url=broker.url).code == 0
    assert admin.describe_topic(topic).disk["level"] == "ok"


def test_the_cleaner_begins_again_with_its_new_settings(
    broker: Broker, admin: penstock.Admin
) -> None:
    topic = broker.create_topic()
    admin.alter_topic(topic, retention=3600.0)
    wait_until(lambda: "cleaner started" in broker.log_path.read_text(), timeout=WITHIN)
    log = broker.log_path.read_text()
    admin.alter_settings({"cleaner_interval": 0.5, "cleaner_rate": 1 << 20})
    wait_until(lambda: "cleaner started" in broker.log_path.read_text()[len(log) :], timeout=WITHIN)
    since = broker.log_path.read_text()[len(log) :]
    assert "changed settings of the node: cleaner_interval=0.5, cleaner_rate=1048576" in since
    assert "died" not in since


def test_offsets_expire_by_the_retention_of_now(broker: Broker, admin: penstock.Admin) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 0, 2)
    with broker.connect() as client:
        with client.consumer(topic, group="forgotten", follow=False) as consumer:
            assert len(list(consumer)) == 2
        assert "forgotten" in [one.group for one in admin.list_groups()]
        admin.alter_settings({"offsets_retention": 1.0})
        wait_until(
            lambda: "forgotten" not in [one.group for one in admin.list_groups()], timeout=WITHIN
        )


def test_from_an_event_loop(broker: Broker, admin: penstock.Admin) -> None:
    async def work() -> None:
        async with await aio.connect(broker.url) as client:
            looped = await client.admin()
            [changed] = await looped.alter_settings({"drain_timeout": 7})
            assert changed.value == 7
            assert changed in await looped.list_settings()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ('{"schema": 9}', "schema 9"),
        ('{"schema": 1, "settings": {"clients_max": 0}}', "clients_max is 0"),
        ('{"schema": 1, "settings": {"clients_max": [0]}}', "cannot be read"),
        ('{"schema": 1, "settings": {"lane_capacity": 1}}', "lane_capacity needs a restart"),
        ('{"schema": 1, "settings": {"restart_backoff": 50.0}}', "Correct or remove the file"),
    ],
    ids=range(6),
)
def test_a_file_that_means_nothing_keeps_the_node_from_its_start(
    tmp_path: Path, text: str, said: str
) -> None:
    async def read() -> None:
        LiveSettings(NodeConfig(str(tmp_path))).read()

    (tmp_path / SETTINGS_FILE).write_text(text)
    with pytest.raises(er.DataFolderError, match=said) as caught:
        asyncio.run(read())
    assert SETTINGS_FILE in str(caught.value)


def test_the_guide_names_all_that_are_live() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/running.md").read_text()
    section = page.split("## Settings while it runs")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert named & {one.name for one in fields(NodeConfig)} == LIVE
