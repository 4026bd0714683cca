"""Checks of offsets that a client names, before a group keeps them.

The member belongs to the client's principal, which may read each topic, and no offset of a remote
client lies beyond the end of its log: such a group passes over records that are still to come.
State pages tell where logs end that are led here. A broker does not know where the logs of other
leaders end, and does not judge their offsets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.cluster import groups as gr
from penstock.core.errors import AccessDeniedError, OffsetOutOfRangeError, PenstockError
from penstock.ipc.state import StatePage
from penstock.server.coordinator.committed import LEADING
from penstock.server.node.attached_client import AttachedClient

TOPIC_ID_BYTES: Final = 16

_T = TypeVar("_T", gr.OffsetCommit, gr.Claim)


class OffsetChecks:
    """`pages`: those of each topic there is."""

    def __init__(
        self,
        pages: Callable[[], Mapping[bytes, Sequence[int]]],
        page: Callable[[int], StatePage],
    ) -> None:
        self._pages = pages
        self._page = page

    def of_member(
        self,
        groups: gr.GroupMachine,
        client: AttachedClient,
        group: str,
        member_id: str,
        offsets: Sequence[_T],
    ) -> list[_T]:
        """The offsets as the machine is to take them. Raises UnknownMemberError, AccessDeniedError
        or OffsetOutOfRangeError.

        A topic that the client may not read, or that is not there, gets an id that no topic has:
        the answer to both is that the member does not own it. A member that does own it gets
        AccessDeniedError if it may not read it."""
        groups.member_of(group, member_id, client.permits.acts_for)
        denied: dict[bytes, PenstockError | None] = {}
        found = []
        for each in offsets:
            if each.topic_id not in denied:
                denied[each.topic_id] = client.permits.denied(each.topic_id)
            why = denied[each.topic_id]
            if why is None:
                found.append(each)
                continue
            if not groups.is_owner(group, member_id, each.topic_id, each.partition, each.grant):
                each = msgspec.structs.replace(each, topic_id=os.urandom(TOPIC_ID_BYTES))
            elif isinstance(why, AccessDeniedError):
                raise why
            found.append(each)
        self.within_logs(client, group, found)
        return found

    def within_logs(
        self,
        client: AttachedClient,
        group: str,
        offsets: Sequence[gr.OffsetCommit | gr.Claim | gr.OffsetSeek],
    ) -> None:
        """Raises OffsetOutOfRangeError for an offset beyond the end of its log."""
        if client.remote is None:
            return
        for each in offsets:
            wanted = each.end if isinstance(each, gr.Claim) else each.offset
            end = self._end_of(each.topic_id, each.partition)
            if end is not None and wanted > end:
                raise OffsetOutOfRangeError(
                    f"group {group!r} cannot be at offset {wanted} of partition {each.partition} "
                    f"of topic {each.topic_id.hex()}: its log ends at {end}"
                )

    def _end_of(self, topic_id: bytes, partition: int) -> int | None:
        numbers = self._pages().get(topic_id, ())
        if not 0 <= partition < len(numbers):
            return None
        page = self._page(numbers[partition])
        if page.status not in LEADING or page.identity != (topic_id, partition):
            return None
        return page.log_end
