"""What administrators do, super-users too, stands in the audit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from keyed_fixture import World

from penstock.ipc import accessing as ac
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("audit")) as world:
        yield world


def allowed(world: World) -> list[str]:
    """What the audit says of each action that was allowed."""
    lines = (line.partition("allowed: ")[2] for line in world.log.splitlines())
    return [line.partition(" (")[0] for line in lines if line]


def test_actions_of_a_super_user_are_told(world: World) -> None:
    who = f"user:{os.geteuid()}"
    with world.broker.connect() as client, client.admin() as admin:
        admin.create_topic("audited")
        admin.list_topics()
        admin.delete_topic("audited")
        admin.set_limits(ac.LimitSetting("audited", topics_max=1))
    assert allowed(world)[-3:] == [
        f"{who} to create topic 'audited'",
        f"{who} to delete topic 'audited'",
        f"{who} to alter cluster 'cluster'",
    ]


def test_what_an_action_upon_the_node_is_about_is_told(world: World) -> None:
    with world.broker.connect() as client, client.consumer(), client.admin() as admin:
        admin.alter_settings({"topics_max": 7})
        admin.alter_settings({"topics_max": None})
        [gone] = [one for one in admin.list_clients() if one.kind == "consumer"]
        admin.kick_client(gone.id)
    lines = [line for line in world.log.splitlines() if "allowed: " in line]
    told = [line.rpartition("'cluster' (")[2] for line in lines]
    assert told[-3:] == [
        "ChangeSettings changes={'topics_max': 7})",
        "ChangeSettings changes={'topics_max': None})",
        f"KickClient number={gone.id})",
    ]


def test_actions_that_a_principal_may_are_told_and_its_daily_work_is_not(world: World) -> None:
    with world.dealer(world.key("ann", namespace="ann")) as ann:
        ann.attach(1, lo.KIND_CONSUMER)
        ann.ask(1, ms.CreateTopic("ann.t", ms.TopicSettings()))
        ann.ask(1, co.JoinGroup("ann.g", "", ["ann.t"], None, "at-least-once"))
        ann.ask(1, co.SeekGroup("ann.h", []))
        ann.ask(1, co.SeekGroup("ann.r", [], is_report=True))
        ann.ask(1, ms.DeleteTopic("theirs"))
    assert [line for line in allowed(world) if line.startswith("ann ")] == [
        "ann to create topic 'ann.t'",
        "ann to alter group 'ann.h'",
    ]
