"""Serves admins' requests about access: list, add, remove; quotas and limits.

A change is decided as a new document, written and synced off the loop, and only then holds. One at
a time. In a cluster the document is that of all brokers, and comes back by the controller's image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from penstock.cluster.access import Entry, NamespaceLimits
from penstock.cluster.quotas import Quota
from penstock.core.errors import ConfigError, NotConnectedError
from penstock.ipc import accessing as ac
from penstock.server.security.access_store import Access, AccessDocument, check_document

logger: Final = logging.getLogger("penstock.access")

_S = TypeVar("_S", bound=msgspec.Struct)


class SharedDocument(Protocol):
    """The document that all brokers of a cluster have."""

    async def settled(self) -> None:
        """Until what the cluster has holds here."""

    async def change(self, document: AccessDocument) -> None:
        """Have all brokers use it; returns when this one does."""


class Accessing:
    """The requests of `ipc.accessing`."""

    def __init__(
        self,
        access: Access,
        shared: SharedDocument | None = None,
        uses: Callable[[], list[ac.LimitUse]] = list,
    ) -> None:
        """`uses`: how much of each limit is used here."""
        self._access = access
        self._uses = uses
        self._shared = shared
        self._lock = asyncio.Lock()
        self._job: asyncio.Future[None] | None = None
        self._is_closed = False

    def listed(self, request: ac.ListAccess) -> ac.AccessList:
        document = self._access.document
        version, skip = document.version, max(request.skip, 0)
        upto = skip + ac.ENTRIES_PER_PAGE
        match request.what:
            case "entries":
                entries = _as(ac.AccessEntry, document.entries[skip:upto])
                return ac.AccessList(version, upto < len(document.entries), entries=entries)
            case "quotas":
                quotas = _as(ac.QuotaSetting, document.quotas[skip:upto])
                return ac.AccessList(version, upto < len(document.quotas), quotas=quotas)
            case "limits":
                limits = _as(ac.LimitSetting, document.limits[skip:upto])
                return ac.AccessList(version, upto < len(document.limits), limits=limits)
            case "uses":
                uses = self._uses()
                return ac.AccessList(version, upto < len(uses), uses=uses[skip:upto])
        raise ConfigError(
            f"there is no list {request.what[:100]!r}: entries, quotas, limits or uses"
        )

    async def change(
        self, request: ac.AddAccess | ac.RemoveAccess | ac.SetQuota | ac.SetLimits, who: str
    ) -> ac.AccessChanged:
        """Carry a change out. `who` asked for it."""
        async with self._lock:
            if self._shared is not None:
                await self._shared.settled()
            self._access.reload()
            if self._access.failure:
                raise ConfigError(
                    f"access cannot be changed: {self._access.failure}. Until then that of version "
                    f"{self._access.document.version} holds"
                )
            before = self._access.document
            after = _changed(before, request)
            changed = _difference(before, after)
            if after != before:
                after = msgspec.structs.replace(after, version=before.version + 1)
                check_document(after)
                if self._shared is not None:
                    await self._shared.change(after)
                else:
                    await self._write(after)
                    self._access.apply(after)
                logger.info(
                    "%s made access that of version %d: %s", who, after.version, request,
                    extra={"principal": who, "version": after.version},
                )  # fmt: skip
            return ac.AccessChanged(after.version, changed)

    async def _write(self, document: AccessDocument) -> None:
        if self._is_closed:
            raise NotConnectedError("this node is stopping: ask again when it is back")
        self._job = asyncio.get_running_loop().run_in_executor(None, self._access.write, document)
        await asyncio.shield(self._job)

    async def close(self) -> None:
        """Wait for what has begun: it must not reach into a folder that is another node's."""
        self._is_closed = True
        if self._job is not None:
            await asyncio.wait([self._job])


def _changed(document: AccessDocument, request: ac.Request) -> AccessDocument:
    match request:
        case ac.AddAccess():
            known = set(document.entries)
            new = dict.fromkeys(_as(Entry, request.entries))
            fresh = [entry for entry in new if entry not in known]
            return msgspec.structs.replace(document, entries=[*document.entries, *fresh])
        case ac.RemoveAccess():
            gone = set(_as(Entry, request.entries))
            kept = [entry for entry in document.entries if entry not in gone]
            return msgspec.structs.replace(document, entries=kept)
        case ac.SetQuota():
            [quota] = _as(Quota, [request.quota])
            place = (quota.principal, quota.client_id)
            quotas = [one for one in document.quotas if (one.principal, one.client_id) != place]
            if not quota.is_empty:
                quotas.append(quota)
            return msgspec.structs.replace(document, quotas=sorted(quotas, key=_place))
        case ac.SetLimits():
            [limit] = _as(NamespaceLimits, [request.limits])
            limits = [one for one in document.limits if one.namespace != limit.namespace]
            if limit != NamespaceLimits(limit.namespace):
                limits.append(limit)
            return msgspec.structs.replace(document, limits=sorted(limits, key=_namespace))
        case _:
            raise AssertionError(f"{type(request).__name__} changes nothing")


def _difference(before: AccessDocument, after: AccessDocument) -> int:
    if before.entries != after.entries:
        return abs(len(after.entries) - len(before.entries))
    return int(before != after)


def _place(quota: Quota) -> tuple[str, str]:
    return quota.principal, quota.client_id or ""


def _namespace(limits: NamespaceLimits) -> str:
    return limits.namespace


def _as(kind: type[_S], structs: Sequence[msgspec.Struct]) -> list[_S]:
    """The same fields in the same order: messages and document name them alike."""
    made: Any = kind
    return [made(*msgspec.structs.astuple(each)) for each in structs]
