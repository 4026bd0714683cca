"""access.json: what holds after it changed, was damaged, was corrected."""

from __future__ import annotations

import json

import pytest

from penstock.cluster.access import Entry
from penstock.cluster.quotas import Quota
from penstock.core.errors import DataFolderError
from penstock.security import keys
from penstock.server.security.access_store import Access, AccessDocument

ANN = Entry("ann", "allow", "read", "topic", "orders.*")


def written(folder, *entries, **more):
    access = Access(str(folder))
    access.write(AccessDocument(version=1, entries=list(entries), **more))
    return access


def test_another_process_sees_a_change_within_its_next_look(tmp_path):
    reader = Access(str(tmp_path))
    assert reader.policy.allows("bob", "read", "topic", "x")
    written(tmp_path, ANN, quotas=[Quota("ann", produce_bytes=7)])
    assert reader.look(100.0)
    assert not reader.policy.allows("bob", "read", "topic", "x")
    assert reader.policy.allows("ann", "read", "topic", "orders.eu")
    assert reader.quotas.of_principal("ann") == Quota("ann", produce_bytes=7)
    written(tmp_path)
    assert not reader.look(100.4)  # not yet again
    assert reader.look(101.1)
    assert reader.policy.is_open
    assert (tmp_path / "access.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-5],
        lambda text: text.replace('"entries"', '"entrys"'),
        lambda text: text.replace('"allow"', '"alow"'),
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: "",
        lambda text: text.replace("orders.*", "or*rs"),
    ],
)
def test_a_damaged_file_keeps_the_node_out_and_changes_nothing_for_who_runs(
    tmp_path, caplog, damage
):
    written(tmp_path, ANN)
    running = Access(str(tmp_path))
    file = tmp_path / "access.json"
    good = file.read_text()
    file.write_text(damage(good))
    with pytest.raises(DataFolderError, match=r"access\.json"):
        Access(str(tmp_path))
    for _ in range(3):
        assert not running.reload()
    assert running.policy.allows("ann", "read", "topic", "orders.eu")
    assert not running.policy.allows("bob", "read", "topic", "orders.eu")
    assert "access.json" in running.failure
    assert len([one for one in caplog.records if "stays" in one.message]) == 1
    file.write_text(good)
    assert running.reload()
    assert running.failure == ""


def test_files_that_are_gone_open_nothing(tmp_path):
    written(tmp_path, ANN)
    running = Access(str(tmp_path))
    (tmp_path / "access.json").unlink()
    assert not running.reload()
    assert "is gone" in running.failure
    assert not running.policy.allows("bob", "read", "topic", "x")
    keys.create_key(tmp_path, "ann", tmp_path / "ann.key")
    assert running.reload()
    (tmp_path / "keys/server.json").unlink()
    running.reload()
    assert running.keys.in_use


def test_keys_in_use_close_the_door_for_those_without(tmp_path):
    access = Access(str(tmp_path))
    assert access.policy.is_open
    keys.create_key(tmp_path, "ann", tmp_path / "ann.key", namespace="acme")
    assert access.reload()
    assert not access.policy.allows("anonymous", "read", "topic", "x")
    assert access.policy.allows("ann", "create", "topic", "acme.x")


def test_the_file_is_readable_by_people(tmp_path):
    written(tmp_path, ANN)
    assert json.loads((tmp_path / "access.json").read_text())["entries"] == [
        {"principal": "ann", "effect": "allow", "operation": "read", "kind": "topic",
         "name": "orders.*"}
    ]  # fmt: skip
