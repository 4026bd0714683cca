"""Key files: who may read them, what they may hold, and what is let in because of them."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from penstock.core.errors import ConfigError
from penstock.security import keys
from penstock.server.security.authorized_keys import AuthorizedKeys


def test_a_key_is_made_for_its_owner_alone_and_never_shown(tmp_path):
    data, file = tmp_path / "data", tmp_path / "ann.key"
    made = keys.create_key(data, "ann", file, namespace="acme")
    server = keys.load_server_key(data)
    assert server is not None
    assert keys.load_client_key(file) == made
    assert made.server == server.public
    for place in (file, *(data / "keys").rglob("*.json")):
        assert place.stat().st_mode & 0o777 == 0o600
    assert (data / "keys" / "authorized").stat().st_mode & 0o777 == 0o700
    assert made.secret not in repr(made) + str(made)
    assert server.secret not in repr(server) + str(server)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    known = AuthorizedKeys(str(data))
    assert known.in_use
    assert known.by_public[made.public].principal == "ann"
    assert known.namespaces == {"ann": "acme"}
    assert made.secret not in (data / "keys/authorized/ann.json").read_text()


def test_a_key_that_finds_no_place_locks_nobody_out(tmp_path):
    """The node's own key would: once it is there, everybody needs one."""
    data = tmp_path / "data"
    nowhere = tmp_path / "no" / "ann"
    with pytest.raises(ConfigError, match=f"there is no folder {nowhere.parent}"):
        keys.create_key(data, "ann", nowhere)
    with pytest.raises(ConfigError, match=f"there is no folder {nowhere.parent}"):
        keys.create_cluster_key(nowhere)
    assert not data.exists()
    (tmp_path / "there").touch()
    with pytest.raises(ConfigError, match="it exists"):
        keys.create_key(data, "ann", tmp_path / "there")
    with pytest.raises(ConfigError, match="it exists"):
        keys.create_cluster_key(tmp_path / "there")
    assert not data.exists()


def test_nothing_is_overwritten(tmp_path):
    keys.create_key(tmp_path, "ann", tmp_path / "a")
    with pytest.raises(ConfigError, match="already"):
        keys.create_key(tmp_path, "ann", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    with pytest.raises(ConfigError, match="exists"):
        keys.create_key(tmp_path, "bob", tmp_path / "a")
    assert not (tmp_path / "keys/authorized/bob.json").exists()
    server = keys.load_server_key(tmp_path)
    keys.create_key(tmp_path, "bob", tmp_path / "b")
    assert keys.load_server_key(tmp_path) == server


def _make_keys(folders, number, start):
    for folder in folders:
        start.wait()
        keys.create_key(folder, f"c{number}", folder / f"{number}.key")


def test_first_keys_made_at_once_are_for_one_server_key(tmp_path):
    folders = [tmp_path / f"d{number}" for number in range(20)]
    for folder in folders:
        folder.mkdir()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(3, timeout=20)
    makers = [spawn.Process(target=_make_keys, args=(folders, n, start)) for n in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
    assert [maker.exitcode for maker in makers] == [0, 0, 0]
    for folder in folders:
        server = keys.load_server_key(folder)
        assert server is not None
        made = [keys.load_client_key(file) for file in folder.glob("*.key")]
        assert [key.server for key in made] == [server.public] * 3


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "x" * 101, "a b"])
def test_the_name_of_a_key_stays_in_its_folder(tmp_path, name):
    with pytest.raises(ConfigError):
        keys.create_key(tmp_path, name, tmp_path / "out", principal="ann")
    with pytest.raises(ConfigError):
        keys.revoke_key(tmp_path, name)


def test_a_secret_that_others_may_read_is_not_used(tmp_path):
    keys.create_key(tmp_path, "ann", tmp_path / "a")
    (tmp_path / "a").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        keys.load_client_key(tmp_path / "a")
    os.chmod(keys.server_key_file(tmp_path), 0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        keys.load_server_key(tmp_path)


def test_a_file_that_is_no_key_is_refused_without_its_contents(tmp_path):
    made = keys.create_key(tmp_path, "ann", tmp_path / "a")
    text = (tmp_path / "a").read_text()
    for wrong in (
        text[:-9],
        text.replace('"secret"', '"sekret"'),
        text.replace(made.secret, made.secret[:-1]),
        text.replace('"schema": 1', '"schema": 2'),
        "x" * 5000,
    ):
        (tmp_path / "a").write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            keys.load_client_key(tmp_path / "a")
        assert made.secret[:-1] not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        keys.load_client_key(tmp_path / "none")


def test_revoked_changed_and_broken_keys_are_seen(tmp_path):
    ann = keys.create_key(tmp_path, "ann", tmp_path / "a")
    known = AuthorizedKeys(str(tmp_path))
    assert not known.reload()
    bob = keys.create_key(tmp_path, "bob", tmp_path / "b")
    assert known.reload()
    assert set(known.by_public) == {ann.public, bob.public}
    before = known.by_public[bob.public].user_id
    file = tmp_path / "keys/authorized/bob.json"
    file.write_text(file.read_text().replace("null", '"acme"'))
    assert known.reload()
    assert known.by_public[bob.public].user_id != before
    file.write_text("{")
    assert known.reload()
    assert set(known.by_public) == {ann.public}
    revoked = keys.revoke_key(tmp_path, "ann")
    assert revoked is not None
    assert revoked.public == ann.public
    assert known.reload()
    assert known.by_public == {}
    assert known.in_use  # and nobody gets in for want of keys
    with pytest.raises(ConfigError, match="no key 'ann'"):
        keys.revoke_key(tmp_path, "ann")


def test_a_principal_with_two_namespaces_has_none(tmp_path):
    keys.create_key(tmp_path, "one", tmp_path / "1", principal="ann", namespace="acme")
    keys.create_key(tmp_path, "two", tmp_path / "2", principal="ann", namespace="other")
    assert AuthorizedKeys(str(tmp_path)).namespaces == {}
