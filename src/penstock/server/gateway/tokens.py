"""Proofs that a producer is a principal's own. Every gateway with the same secret checks them.

    token    this producer id was given to this principal: it may be resumed, by a new connection,
             a new gateway, a new node or another broker
    proof    this principal has registered a partition with the transaction of this producer id and
             epoch: it may send batches of that epoch

The secret of a node that is alone lies in its data folder, for its user alone. Brokers have that of
their cluster, from the controller's log. A new secret makes old proofs void.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import Final

from penstock.core.errors import DataFolderError

SECRET_FILE: Final = "resume-secret"
SECRET_BYTES: Final = 32
_RESUME: Final = b"penstock-resume"
_TRANSACTION: Final = b"penstock-txn"
_PRODUCER: Final = struct.Struct("<QI")


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

    def use(self, secret: bytes) -> None:
        """All are made and checked with this one from now on."""
        self._secret = secret

    def make(self, producer_id: int, principal: str) -> bytes:
        return self._signed(_RESUME, producer_id.to_bytes(8, "little"), principal)

    def is_good(self, token: bytes, producer_id: int, principal: str) -> bool:
        return hmac.compare_digest(token, self.make(producer_id, principal))

    def prove(self, producer_id: int, epoch: int, principal: str) -> bytes:
        return self._signed(_TRANSACTION, _PRODUCER.pack(producer_id, epoch), principal)

    def is_proof(self, proof: bytes, producer_id: int, epoch: int, principal: str) -> bool:
        return hmac.compare_digest(proof, self.prove(producer_id, epoch, principal))

    def _signed(self, purpose: bytes, producer: bytes, principal: str) -> bytes:
        message = producer + principal.encode()
        return hashlib.blake2b(message, key=self._secret, digest_size=32, person=purpose).digest()


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
