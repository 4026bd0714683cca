"""Proofs that a producer id was given to a principal."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.core.errors import DataFolderError
from penstock.server.gateway.tokens import SECRET_FILE, Tokens


def test_a_token_holds_over_restarts_and_for_nobody_else(tmp_path: Path) -> None:
    token = Tokens.of_folder(str(tmp_path)).make(7 << 56, "alice")
    later = Tokens.of_folder(str(tmp_path))
    assert later.is_good(token, 7 << 56, "alice")
    assert not later.is_good(token, 7 << 56, "bob")
    assert not later.is_good(token, 8, "alice")
    assert not later.is_good(b"", 7 << 56, "alice")


def test_another_folder_has_another_key(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = (Tokens.of_folder(str(tmp_path / name)) for name in "ab")
    assert not other.is_good(one.make(1, "alice"), 1, "alice")


def test_the_key_is_for_the_nodes_user_alone(tmp_path: Path) -> None:
    Tokens.of_folder(str(tmp_path))
    path = tmp_path / SECRET_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    Tokens.of_folder(str(tmp_path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).write_bytes(b"short")
    with pytest.raises(DataFolderError, match="remove it"):
        Tokens.of_folder(str(tmp_path))
    (tmp_path / SECRET_FILE).unlink()
    (tmp_path / SECRET_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataFolderError):
        Tokens.of_folder(str(tmp_path))


def test_a_proof_is_of_one_producer_one_epoch_and_one_principal(tmp_path: Path) -> None:
    tokens = Tokens.of_folder(str(tmp_path))
    producer_id = 7 << 56
    proof = tokens.prove(producer_id, 3, "alice")
    assert Tokens.of_folder(str(tmp_path)).is_proof(proof, producer_id, 3, "alice")
    assert not tokens.is_proof(proof, producer_id + 1, 3, "alice")
    assert not tokens.is_proof(proof, producer_id, 4, "alice")
    assert not tokens.is_proof(proof, producer_id, 3, "alic")
    for bad in (b"", proof[:-1], proof + b"x", tokens.make(producer_id, "alice")):
        assert not tokens.is_proof(bad, producer_id, 3, "alice")
    assert not tokens.is_good(proof, producer_id, "alice")
    assert tokens.make(producer_id, "\3\0\0\0alice") != proof, "the same bytes to another purpose"


def test_what_was_made_with_another_secret_is_void(tmp_path: Path) -> None:
    tokens = Tokens.of_folder(str(tmp_path))
    proof = tokens.prove(1, 0, "alice")
    tokens.use(bytes(32))
    assert not tokens.is_proof(proof, 1, 0, "alice")
    assert tokens.is_proof(Tokens(bytes(32)).prove(1, 0, "alice"), 1, 0, "alice")
