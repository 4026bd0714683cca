"""Access of a cluster: rights and quotas are the same at all brokers.

    change ──► asked of the controller, unless another one came before ──► image ──► access.json

The document is one setting in the controller's log; `access.json` is each broker's copy, which its
gateway reads. Until the cluster has one, each broker's own document stays in force. Owns that
setting and the task that writes the copy. Keys are files, and each broker's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.cluster.controller import Image
from penstock.core.errors import PenstockError, PenstockTimeout
from penstock.server.broker.kept_up import kept_up
from penstock.server.broker.topics import Asked
from penstock.server.node.data_folder import decode_document, encode_document
from penstock.server.quorum.controller_requests import Set
from penstock.server.security.access_store import (
    ACCESS_SCHEMA,
    Access,
    AccessDocument,
    check_document,
)

logger = logging.getLogger("penstock.access")

SETTING: Final = ("access", "document")
RETRY: Final = 1.0
"""Seconds until a copy that could not be written is tried again."""


class SharedAccess:
    """The cluster's access document, and this broker's copy of it."""

    def __init__(self, access: Access, quorum: Asked, timeout: float) -> None:
        self._access = access
        self._quorum = quorum
        self._timeout = timeout
        self._wanted: bytes | None = None
        """The cluster's document."""
        self._held: bytes | None = None
        """The document in force here."""
        self._wake = asyncio.Event()
        self._holds = asyncio.Event()
        self._worker = kept_up(self._work, self._wake, "access")

    def heard(self, image: Image) -> None:
        """The image is current, and may say something else."""
        data = image.settings.get(SETTING)
        if data is not None and data is not self._wanted:
            self._wanted = data
            self._wake.set()

    async def settled(self) -> None:
        """Until what the cluster has holds here."""
        await self._until(lambda: self._held is self._wanted, "what other brokers changed")

    async def change(self, document: AccessDocument) -> None:
        """Have all brokers use it; returns when this one does. Raises `ConfigError` where somebody
        else changed it at the same time."""
        data = encode_document(document)
        request = Set(*SETTING, data, was=self._wanted, is_checked=True)
        await self._quorum.ask(request, self._timeout)
        await self._until(lambda: self._access.document.version >= document.version, "the change")

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while not is_so():
                    await self._holds.wait()
        except TimeoutError:
            raise PenstockTimeout(
                f"{what} of access does not hold on this broker after {self._timeout:g} s: it is "
                "decided, and will"
            ) from None

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            data = self._wanted
            assert data is not None
            try:
                await self._hold(data)
            except (OSError, PenstockError) as error:
                logger.error("access stays as it is here, the cluster has another: %s", error)
                asyncio.get_running_loop().call_later(RETRY, self._wake.set)
                continue
            self._held = data
            self._holds.set()
            self._holds = asyncio.Event()

    async def _hold(self, data: bytes) -> None:
        document = decode_document(data, AccessDocument, "access of the cluster", ACCESS_SCHEMA)
        check_document(document)
        if document == self._access.document:
            return
        await asyncio.shield(asyncio.to_thread(self._access.write, document))
        self._access.apply(document)
        logger.info(
            "access is that of version %d of the cluster now", document.version,
            extra={"version": document.version},
        )  # fmt: skip

    def close(self) -> None:
        self._worker.cancel()
