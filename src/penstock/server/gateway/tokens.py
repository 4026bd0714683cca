"""Proofs that a producer id was given to a principal, so that it can be resumed over a new
connection, a new gateway or a new node.

The key lies in the data folder, for the node's user alone; a new one makes old proofs void.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Final

from penstock.core.errors import DataFolderError

SECRET_FILE: Final = "resume-secret"
SECRET_BYTES: Final = 32
_PERSON: Final = b"penstock-resume"


class Tokens:
    """Makes and checks them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def of_folder(cls, folder: str) -> Tokens:
        """With the key of that data folder, which is made if it is not there."""
        path = os.path.join(folder, SECRET_FILE)
        try:
            secret = _read(path)
            if secret is None:
                _make(path)
                secret = _read(path)
        except OSError as error:
            raise DataFolderError(f"{path} cannot be used: {error.strerror}") from error
        if secret is None or len(secret) != SECRET_BYTES:
            raise DataFolderError(
                f"{path} does not hold {SECRET_BYTES} bytes: remove it, and remote producers get "
                "new ids when they connect again"
            )
        return cls(secret)

    def make(self, producer_id: int, principal: str) -> bytes:
        message = producer_id.to_bytes(8, "little") + principal.encode()
        return hashlib.blake2b(message, key=self._secret, digest_size=32, person=_PERSON).digest()

    def is_good(self, token: bytes, producer_id: int, principal: str) -> bool:
        return hmac.compare_digest(token, self.make(producer_id, principal))


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        os.fchmod(fd, 0o600)
        return os.read(fd, SECRET_BYTES + 1)
    finally:
        os.close(fd)


def _make(path: str) -> None:
    """Written whole or not at all; one gateway at a time has the folder's lock."""
    temporary = f"{path}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, os.urandom(SECRET_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
