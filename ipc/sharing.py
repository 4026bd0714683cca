"""Messages of share group workers to the node's coordinator. They join as members of a group do,
with the guarantee "shared" (`ipc.coordination`).

Offsets are named by runs: pairs (first, end), ascending and apart.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

RECORDS_MAX: Final = 10_000
"""Records that one request acquires at most."""
ANSWERS_MAX: Final = 256
"""Leases that one request answers for."""
ENDS_MAX: Final = 500
"""Partitions whose ends one request tells."""
RUNS_MAX: Final = 1000
"""Runs that all answers of one request name together: a request is one message."""
HASHES_BYTES_MAX: Final = 8_000
"""Hashes of keys and tenants, 8 bytes each, that one request tells, of all partitions together."""
TOLD_MAX: Final = 32
"""Partitions whose hashes one request tells."""
HELD_MAX: Final = 500
"""Leases that a member holds at once."""
REASON_MAX: Final = 1000
DONE_LEASES_MAX: Final = 256
"""Leases whose jobs a transaction has done; of all of them together `RUNS_MAX` runs."""
CLAIMS_MAX: Final = 200
"""Records whose dedup ids one request claims."""
PEEKED_MAX: Final = 100
"""Records that one answer shows."""
REASON_SHOWN: Final = 300
"""Characters of a reason there."""
CONDEMNED_MAX: Final = 100
"""Records that one answer has to be made dead letters."""

Offset = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]
TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Runs = Annotated[list[tuple[int, int]], msgspec.Meta(max_length=RUNS_MAX)]
Hashes = Annotated[bytes, msgspec.Meta(max_length=HASHES_BYTES_MAX)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]


class ShareSettings(msgspec.Struct, frozen=True, array_like=True):
    """How a share group delivers. `start`: where it begins with a partition, "earliest" or
    "latest". `max_lease`: what a worker has for a record without asking for more time. Seconds; 0
    deliveries, a lease of 0: no end. `dead_share`: the group is paused once more than this part of
    the records that end become dead letters; 0: never. `order`: "key", or "" for none; `fair`:
    "key", "header:NAME", or "": the same of all members. `dedup_window`: how far the timestamps of
    records of one dedup id lie apart of which one is delivered; 0: each is."""

    max_deliveries: int = 5
    backoff_min: float = 1.0
    backoff_max: float = 300.0
    start: str = "earliest"
    max_lease: float = 0.0
    dead_share: float = 0.0
    order: Annotated[str, msgspec.Meta(max_length=20)] = ""
    fair: Annotated[str, msgspec.Meta(max_length=300)] = ""
    dedup_window: float = 600.0


class PartitionEnds(msgspec.Struct, frozen=True, array_like=True):
    """The range that readers of committed records may read, as the member knows it. In a group with
    an order or turns: `keys` and `tenants` of the records from `first` on, 8 bytes of hash each, 0
    where there is none; nothing begins of which they are not told."""

    topic_id: TopicId
    partition: Number
    start: Offset
    end: Offset
    first: Offset = 0
    keys: Hashes = b""
    tenants: Hashes = b""


class FailedRuns(msgspec.Struct, frozen=True, array_like=True):
    """Deliveries that failed. `delay`: seconds until the next one; None: the group's backoff."""

    runs: Runs
    reason: Reason = ""
    delay: float | None = None


class DelayedRuns(msgspec.Struct, frozen=True, array_like=True):
    """Records that are not due before `due_us`, microseconds since the epoch."""

    runs: Runs
    due_us: Offset


class ExtendedRuns(msgspec.Struct, frozen=True, array_like=True):
    """Records that the worker is still at: their lease does not end for so many seconds."""

    runs: Runs
    seconds: float


class LeaseAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Outcomes of records of a lease. Those not named stay leased. `extended` counts first.
    Done without a worker are `skipped` (offsets without a record), `expired` (their ttl is over)
    and `lost` (deleted by retention before anybody had them)."""

    topic_id: TopicId
    partition: Number
    lease: Offset
    accepted: Runs = []
    released: Runs = []
    failed: Annotated[list[FailedRuns], msgspec.Meta(max_length=RUNS_MAX)] = []
    rejected: Annotated[list[FailedRuns], msgspec.Meta(max_length=RUNS_MAX)] = []
    delayed: Annotated[list[DelayedRuns], msgspec.Meta(max_length=RUNS_MAX)] = []
    extended: Annotated[list[ExtendedRuns], msgspec.Meta(max_length=RUNS_MAX)] = []
    skipped: Runs = []
    expired: Runs = []
    lost: Runs = []


class ClaimedIds(msgspec.Struct, frozen=True, array_like=True):
    """Records of a lease with dedup ids, which are not handed out before the answer. For each a
    digest of 16 bytes of its key and id, and its timestamp (8 bytes, microseconds)."""

    topic_id: TopicId
    partition: Number
    lease: Offset
    runs: Runs
    digests: Annotated[bytes, msgspec.Meta(max_length=16 * CLAIMS_MAX)]
    stamps: Annotated[bytes, msgspec.Meta(max_length=8 * CLAIMS_MAX)]


class DoneLease(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of a lease that are done with a transaction."""

    topic_id: TopicId
    partition: Number
    lease: Offset
    runs: Runs


class DoneJobs(msgspec.Struct, frozen=True, array_like=True):
    """Jobs that a member has done, as `coordination.EndTransaction` takes it along."""

    group: str
    member_id: str
    leases: Annotated[list[DoneLease], msgspec.Meta(max_length=DONE_LEASES_MAX)]


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    topic_id: TopicId
    partition: Number
    lease: Offset


class AcquireRecords(msgspec.Struct, frozen=True, tag="acquire_records"):
    """Answer for leases, and then acquire at most so many records (0: none). `ends`: partitions
    that the member reads. `settings`: by who has joined, once.

    `holds`: all leases that the member knows, after the answer to a request was lost, also by a
    new connection: what else it was given was handed out to nobody, and goes back without being
    counted as delivered. Where it is None that is known to agree. `claims`: `CLAIMS_MAX` records at
    most, of any number of leases."""

    group: str
    member_id: str
    records_max: Annotated[int, msgspec.Meta(ge=0, le=RECORDS_MAX)] = 0
    ends: Annotated[list[PartitionEnds], msgspec.Meta(max_length=ENDS_MAX)] = []
    answers: Annotated[list[LeaseAnswer], msgspec.Meta(max_length=ANSWERS_MAX)] = []
    settings: ShareSettings | None = None
    holds: Annotated[list[HeldLease], msgspec.Meta(max_length=HELD_MAX)] | None = None
    claims: Annotated[list[ClaimedIds], msgspec.Meta(max_length=CLAIMS_MAX)] = []


class BuryRecords(msgspec.Struct, frozen=True, tag="bury_records"):
    """The dead letters of these condemned records are written."""

    group: str
    member_id: str
    topic_id: TopicId
    partition: Number
    runs: Runs


class SeekShare(msgspec.Struct, frozen=True, tag="seek_share"):
    """A share group begins with this offset of a partition; all leases there are void."""

    group: str
    topic_id: TopicId
    partition: Number
    offset: Offset


class PauseShare(msgspec.Struct, frozen=True, tag="pause_share"):
    """Nobody gets records of the group until `ResumeShare`. Answers are taken."""

    group: str
    reason: Reason = ""


class ResumeShare(msgspec.Struct, frozen=True, tag="resume_share"):
    """The group is no longer paused, by whomever it was."""

    group: str


class DescribeShare(msgspec.Struct, frozen=True, tag="describe_share"):
    """Partitions from the `skip`-th on: the answer has `ENDS_MAX` at most."""

    group: str
    skip: Annotated[int, msgspec.Meta(ge=0)] = 0


class PeekShare(msgspec.Struct, frozen=True, tag="peek_share"):
    """Looks at records of a group in a partition, from an offset on, without leasing them.
    `state`: "ready", "behind", "waiting", "leased", "condemned"; "": each of these."""

    group: str
    topic_id: TopicId
    partition: Number
    state: Literal["", "ready", "behind", "waiting", "leased", "condemned"] = ""
    first: Offset = 0
    records_max: Annotated[int, msgspec.Meta(ge=1, le=PEEKED_MAX)] = PEEKED_MAX


# --- node -> client -----------------------------------------------------------------------------
class LeasedRecords(msgspec.Struct, frozen=True, array_like=True):
    """Records that the member works on from now on. `deliveries`: (how often, first, end)."""

    topic_id: bytes
    partition: int
    lease: int
    runs: list[tuple[int, int]]
    deliveries: list[tuple[int, int, int]]


class FailureInfo(msgspec.Struct, frozen=True, array_like=True):
    """`at_us`: microseconds since the epoch."""

    member_id: str
    at_us: int
    reason: str


class CondemnedRecord(msgspec.Struct, frozen=True, array_like=True):
    """This member is to write its dead letter, and then to say so by `BuryRecords`."""

    topic_id: bytes
    partition: int
    offset: int
    deliveries: int
    failures: list[FailureInfo]


class RecordsAcquired(msgspec.Struct, frozen=True, tag="records_acquired"):
    """`stale`: for each answer the runs that its lease did not hold any more, so that nothing
    changed. `frontiers`: for each of `ends`, where records begin that nobody has had yet.
    `notice`: see `coordination.GroupAssignment`. `is_full`: records that are begun and not done
    hold up the others. `at_us`: the coordinator's time, by which records are due and expire.
    `is_paused`: nobody gets any; a notice comes once that is over. `withheld`: for each claim the
    runs that are not to be handed out: duplicates, which are done, and what its lease does not
    hold."""

    leases: list[LeasedRecords]
    stale: list[list[tuple[int, int]]]
    frontiers: list[int]
    condemned: list[CondemnedRecord] = []
    notice: int = 0
    is_full: bool = False
    at_us: int = 0
    is_paused: bool = False
    withheld: list[list[tuple[int, int]]] = []


class SharePartitionInfo(msgspec.Struct, frozen=True, array_like=True):
    """All below `floor` is final, all from `frontier` on is new. Numbers of records. `ready_from`:
    the first offset that is ready; -1: none. `behind`: of a key that others have, or that waits."""

    topic: str
    topic_id: bytes
    partition: int
    page: int
    floor: int
    frontier: int
    ready: int
    waiting: int
    leased: int
    condemned: int
    next_due_us: int = 0
    ready_from: int = -1
    behind: int = 0


class PauseInfo(msgspec.Struct, frozen=True, array_like=True):
    """`by`: the principal who paused it; "" for the breaker (`dead_share`)."""

    at_us: int
    by: str
    reason: str


class ShareDescription(msgspec.Struct, frozen=True, tag="share_description"):
    """`leased`: records by member. `counts`: since the coordinator serves. `pause`: None while
    it delivers."""

    settings: ShareSettings
    partitions: list[SharePartitionInfo]
    leased: dict[str, int]
    counts: dict[str, int]
    more: bool = False
    pause: PauseInfo | None = None


class PeekedInfo(msgspec.Struct, frozen=True, array_like=True):
    """`due_us`: when one that waits is ready. `member_id`, `at_us`: who has a leased one, since
    when. `reason`: of its last failure, at most `REASON_SHOWN` of it."""

    offset: int
    state: str
    deliveries: int
    due_us: int = 0
    member_id: str = ""
    at_us: int = 0
    reason: str = ""


class SharePeeked(msgspec.Struct, frozen=True, tag="share_peeked"):
    """`frontier`: all from there on is new; -1: the group has not begun with the partition. `more`:
    whether there are further ones behind the last."""

    records: list[PeekedInfo]
    frontier: int
    more: bool = False


Request = (
    AcquireRecords | BuryRecords | SeekShare | PauseShare | ResumeShare | DescribeShare | PeekShare
)
Reply = RecordsAcquired | ShareDescription | SharePeeked
