"""The group machine: signatures first, so that its shell can be built beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups.types import (
    Assignment,
    Claim,
    Claimed,
    ClientIdentity,
    GroupDescription,
    GroupLimits,
    GroupList,
    OffsetCommit,
    OffsetSeek,
    Release,
    Topics,
)


class Groups:
    """All groups of a node."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        raise NotImplementedError

    def replay(self, record: Record) -> None:
        """The only mutator. Records that are not of groups are passed over."""
        raise NotImplementedError

    # --- membership ---
    def join(
        self,
        now: float,
        group: str,
        member_id: str,
        new_member_id: str,
        topics: Sequence[str],
        pattern: str | None,
        guarantee: str,
        instance_id: str | None,
        session_timeout: float,
        processing_timeout: float | None,
        client: ClientIdentity,
    ) -> Decision[Assignment]:
        """`member_id` is empty at first (then `new_member_id` is taken), and known afterwards."""
        raise NotImplementedError

    def sync(
        self, now: float, group: str, member_id: str, released: Sequence[Release]
    ) -> Decision[Assignment]:
        raise NotImplementedError

    def leave(self, now: float, group: str, member_id: str) -> Decision[None]:
        """Unknown members have left already: no records."""
        raise NotImplementedError

    def fence(self, now: float, group: str, member_id: str, why: str) -> Decision[None]:
        """It lost everything at once: stalled, or its time ran out."""
        raise NotImplementedError

    def died(self, now: float, group: str, member_id: str) -> Decision[None]:
        """Its process is gone. Fenced, but for a static member: its successor has the session
        timeout to come."""
        raise NotImplementedError

    def connected(self, now: float, group: str, member_id: str) -> None:
        """Volatile: stops the session timeout. Every request of a member does so too."""
        raise NotImplementedError

    def disconnected(self, now: float, group: str, member_id: str) -> None:
        """Volatile: starts the session timeout."""
        raise NotImplementedError

    def members(self) -> Iterator[tuple[str, str, ClientIdentity]]:
        """(group, member id, process) of every member: whom to watch after a reload."""
        raise NotImplementedError

    # --- offsets ---
    def commit(
        self, now: float, group: str, member_id: str, offsets: Sequence[OffsetCommit]
    ) -> Decision[list[int]]:
        """Answers the places in `offsets` whose grant is not current."""
        raise NotImplementedError

    def claim(
        self,
        now: float,
        group: str,
        member_id: str,
        claim_id: int,
        claims: Sequence[Claim],
        skipped: int,
    ) -> Decision[Claimed]:
        """Rule 18; durable. The ids of a member's claims grow."""
        raise NotImplementedError

    def check_offsets(self, group: str, member_id: str, offsets: Sequence[OffsetCommit]) -> None:
        """For transactions: raises StaleGenerationError or UnknownMemberError."""
        raise NotImplementedError

    def offset_records(
        self, now: float, group: str, offsets: Sequence[OffsetCommit]
    ) -> tuple[Record, ...]:
        """Of offsets that were checked: what commits them."""
        raise NotImplementedError

    # --- administration ---
    def seek(
        self, now: float, group: str, offsets: Sequence[OffsetSeek], allow_redelivery: bool
    ) -> Decision[None]:
        raise NotImplementedError

    def delete(
        self, now: float, group: str, offsets: Sequence[tuple[bytes, int]]
    ) -> Decision[None]:
        """The whole group, or with `offsets` only these (topic id, partition)."""
        raise NotImplementedError

    def list_groups(self, after: str) -> GroupList:
        raise NotImplementedError

    def describe(self, group: str, skip: int) -> GroupDescription:
        raise NotImplementedError

    # --- the world ---
    def topics_changed(self, now: float, topics: Topics) -> Decision[None]:
        """`topics` is the whole catalogue, also the first one after a reload: groups drop what is
        not in it. What does not fit into one decision is left to `tick`."""
        raise NotImplementedError

    def tick(self, now: float) -> Decision[None]:
        raise NotImplementedError

    def deadline(self) -> float | None:
        """When `tick` is wanted next; it may be in the past."""
        raise NotImplementedError
