"""Keys with a date: warned of before, refused after it, by the real gateway."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from keyed_fixture import World
from node_helpers import eventually

import penstock
from penstock.cluster.frames import messages as fr
from penstock.core.errors import ConfigError
from penstock.ipc import layout as lo
from penstock.security import keys
from penstock.server.security.authorized_keys import WARN_WITHIN


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("expiry")) as world:
        yield world


def expire(world: World, name: str) -> Path:
    """Let this be the moment from which on the key lets nobody in."""
    now = time.time()
    file, place = world.folder / f"{name}.key", Path(keys.authorized_file(world.broker.data, name))
    known = (
        msgspec.structs.replace(keys.load_authorized_key(str(place)), expires=now),
        msgspec.structs.replace(keys.load_client_key(file), expires=now),
    )
    for path, key in zip((place, file), known, strict=True):
        path.write_bytes(msgspec.json.encode(key))
    return file


def test_a_key_is_refused_from_its_date_on(world: World) -> None:
    """Whoever is connected by then is sent away, and told why."""
    with world.dealer(world.key("short", expires=time.time() + WARN_WITHIN / 2)) as dealer:
        eventually(lambda: "key short of principal short expires at 20" in world.log)
        file = expire(world, "short")
        assert "its key expired at 20" in dealer.hear(fr.Ended).reason
    with (
        pytest.raises(penstock.NotConnectedError, match="this client's key expired at 20"),
        penstock.connect(world.broker.tcp_url, keys=file, transport="tcp", timeout=2) as client,
        client.admin() as admin,
    ):
        admin.list_topics()
    assert re.search(r"not let in: .* of short expired at 20", world.log)
    assert "key short of principal short expired at" in world.log


def test_who_has_time_left_is_let_in_and_not_warned_of(world: World) -> None:
    file = world.key("long", expires=time.time() + 2 * WARN_WITHIN)
    with world.dealer(file) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
    assert "key long" not in world.log


def test_a_key_that_would_have_expired_is_not_made(world: World) -> None:
    with pytest.raises(ConfigError, match="would have expired"):
        world.key("past", expires=time.time() - 1)
    assert not (world.folder / "past.key").exists()
    assert "expires" not in keys.load_client_key(world.key("never")).__repr__()
