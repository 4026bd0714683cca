"""The messages of clients to the node's coordinator: groups, their offsets, transactions.

They travel as the messages of `ipc.messages` do. A partition is named by its topic's id and its
number. A *grant* is the generation of the group in which a member got a partition; it fences a
former owner. `PARTITIONS_MAX` and `NAMES_MAX` bound the lists.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.ipc.sharing import DONE_LEASES_MAX, DoneJobs

PARTITIONS_MAX: Final = 1000
"""Partitions that one message names at most."""
NAMES_MAX: Final = 256
"""Topics of a member."""
ATTEMPT_CHARACTERS_MAX: Final = 64
STAGES_MAX: Final = 2_000
"""Stages that one message names at most."""
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
"""An offset without a leader epoch: it is not checked against the log's."""


# --- groups: client -> node ---------------------------------------------------------------------
class JoinGroup(msgspec.Struct, frozen=True, tag="join_group"):
    """Joins a group, or joins it again. `member_id` is empty at first, and comes from the answer
    from then on. `instance_id` makes a member static: a member with the same id takes over its
    partitions.

    `pattern` is a regular expression for whole topic names, beside `topics`. `session_timeout`:
    seconds for which a member whose connection ended keeps its partitions while its process lives.
    `processing_timeout`: seconds between two requests after which it loses them, if set.
    `takes_over`: false for a member that was replaced, so that it does not push its successor out.
    `attempt`: unique letters and digits. A first join whose answer was lost asks again with the
    same ones and is the same member. This holds by another connection and after the node's death
    too.
    """

    group: str
    member_id: str
    topics: list[str]
    pattern: str | None
    guarantee: str  # "at-most-once" | "at-least-once" | "exactly-once" | "manual"
    instance_id: str | None = None
    session_timeout: float = 30.0
    processing_timeout: float | None = None
    takes_over: bool = True
    attempt: str = ""


class Release(msgspec.Struct, frozen=True, array_like=True):
    """A partition that a member has let go of, or still holds, under this grant."""

    topic_id: bytes
    partition: int
    grant: int


class SyncGroup(msgspec.Struct, frozen=True, tag="sync_group"):
    """Asks for the member's partitions. It has let go of `released` and processes nothing of it any
    more. `skip`: partitions of the answer that are known already, where that said `more`."""

    group: str
    member_id: str
    released: list[Release]
    skip: int = 0


class LeaveGroup(msgspec.Struct, frozen=True, tag="leave_group"):
    group: str
    member_id: str


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """`offset` is the next one wanted; `leader_epoch` is that of the record before it."""

    topic_id: bytes
    partition: int
    grant: int
    offset: int
    leader_epoch: int = NO_EPOCH


class CommitOffsets(msgspec.Struct, frozen=True, tag="commit_offsets"):
    """Those whose grant is current count, the others are listed in the answer."""

    group: str
    member_id: str
    offsets: list[OffsetCommit]


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Records from `start` (what is committed) to below `end` of a partition: at most once."""

    topic_id: bytes
    partition: int
    grant: int
    start: int
    end: int
    leader_epoch: int = NO_EPOCH


class ClaimOffsets(msgspec.Struct, frozen=True, tag="claim_offsets"):
    """Rule 18. Asked again with the same `claim_id` the answer is the same. `skipped`: records of
    earlier grants that this member knows it never handed out."""

    group: str
    member_id: str
    claim_id: int
    claims: list[Claim]
    skipped: int = 0


class ListGroups(msgspec.Struct, frozen=True, tag="list_groups"):
    """As many groups as a message takes, whose names sort after `after`."""

    after: str = ""


class DescribeGroup(msgspec.Struct, frozen=True, tag="describe_group"):
    """Partitions from the `skip`-th on: the answer has `PARTITIONS_MAX` at most."""

    group: str
    skip: int = 0


class OffsetSeek(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH


class SeekGroup(msgspec.Struct, frozen=True, tag="seek_group"):
    """Sets committed offsets, also while members read: they get new grants. An at-most-once group
    goes backwards only with `allow_redelivery`. `is_report` means a report of progress by a worker
    outside the group. A group with members refuses such a report, and a request with `only_empty`.
    """

    group: str
    offsets: list[OffsetSeek]
    allow_redelivery: bool = False
    is_report: bool = False
    only_empty: bool = False


class DeleteGroup(msgspec.Struct, frozen=True, tag="delete_group"):
    """Refused while it has members. With `offsets` only these (topic id, partition) are deleted."""

    group: str
    offsets: list[tuple[bytes, int]] = []


# --- groups: node -> client ---------------------------------------------------------------------
class Owned(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a member. `revoked`: let go of it, then say so by `SyncGroup`."""

    topic: str
    topic_id: bytes
    partition: int
    page: int
    grant: int
    revoked: bool
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class GroupAssignment(msgspec.Struct, frozen=True, tag="group_assignment"):
    """All that a member owns. A change is announced by the notice in its client slot, see
    `ipc.clients`; `notice` is what stood there when this was decided.

    `more`: a message takes no more of it; the rest comes by `SyncGroup(skip=...)` with how many are
    known. In another generation or with another notice it is another list: begin with `skip=0`."""

    member_id: str
    generation: int
    partitions: list[Owned]
    notice: int = 0
    more: bool = False


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """`stale`: places in the request's list that another owner has by now."""

    stale: list[int]


class Claimed(msgspec.Struct, frozen=True, tag="claimed"):
    """For each claim whether it is granted, and what is committed now (`NO_OFFSET`: nothing)."""

    granted: list[bool]
    committed: list[int]


class GroupInfo(msgspec.Struct, frozen=True):
    group: str
    guarantee: str
    state: str  # "empty" | "stable" | "moving"
    generation: int
    members: int
    partitions: int


class Groups(msgspec.Struct, frozen=True, tag="groups"):
    groups: list[GroupInfo]
    more: bool


class MemberInfo(msgspec.Struct, frozen=True):
    """`slot`: its client slot, -1 while it is not connected."""

    member_id: str
    instance_id: str | None
    client_id: str
    pid: int
    slot: int
    partitions: int


class GroupPartition(msgspec.Struct, frozen=True, array_like=True):
    """`member_id` is empty where nobody owns it; `committed_at` in microseconds since the epoch.
    `commits` has times and offsets of the last commits by turns, the oldest first."""

    topic: str
    topic_id: bytes
    partition: int
    page: int
    member_id: str
    grant: int
    offset: int
    leader_epoch: int
    committed_at: int
    commits: list[int]


class GroupDescription(msgspec.Struct, frozen=True, tag="group_description"):
    info: GroupInfo
    members: list[MemberInfo]
    partitions: list[GroupPartition]
    more: bool
    skipped: int
    counts: dict[str, int] = {}


# --- transactions: client -> node ---------------------------------------------------------------
class InitTransactions(msgspec.Struct, frozen=True, tag="init_transactions"):
    """Take a transactional id over: what an earlier holder has open is aborted, and it is fenced.
    `timeout`: seconds after which the coordinator aborts what is still open."""

    transactional_id: str
    timeout: float


class AddPartitions(msgspec.Struct, frozen=True, tag="add_partitions"):
    """Open the transaction of this epoch on these (topic id, partition), before the first record
    goes there."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[bytes, int]]


class GroupOffsets(msgspec.Struct, frozen=True):
    """Consumed offsets that are committed with a transaction."""

    group: str
    member_id: str
    offsets: list[OffsetCommit]


class EndTransaction(msgspec.Struct, frozen=True, tag="end_transaction"):
    """Decide the transaction of this epoch; asked again it answers what was decided then. One stale
    grant among the offsets aborts it, one lease of `done` that is not held any more, and so do
    fewer `partitions` known to the coordinator than its producer has opened it on."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    offsets: list[GroupOffsets] = []
    partitions: int = 0
    done: Annotated[list[DoneJobs], msgspec.Meta(max_length=DONE_LEASES_MAX)] = []


class BeginStage(msgspec.Struct, frozen=True, tag="begin_stage"):
    """A producer of its own under (transaction id, epoch), whose records wait for
    `CommitTransaction` (rule 20). Stages of `attempt`s that sort before this one are ended."""

    transactional_id: str
    epoch: int
    attempt: str = ""


class EndStages(msgspec.Struct, frozen=True, tag="end_stages"):
    """These stages are given up, where they are not decided. Nothing is decided of their epoch."""

    transactional_id: str
    stages: list[str]


class CommitTransaction(msgspec.Struct, frozen=True, tag="commit_transaction"):
    """Commit these stages and abort all others of the id up to this epoch; with `commit` false all.
    Decided once: a repetition answers the first outcome. `is_last`: the id is not used again, and
    forgotten `stage_timeout` later."""

    transactional_id: str
    epoch: int
    stages: list[str]
    commit: bool = True
    is_last: bool = False


class ListTransactions(msgspec.Struct, frozen=True, tag="list_transactions"):
    after: str = ""


# --- transactions: node -> client ---------------------------------------------------------------
class TransactionReady(msgspec.Struct, frozen=True, tag="transaction_ready"):
    """The identity of the producer in its next transaction. Its batches carry it, by any lane.
    `stage`: its name, for a stage."""

    producer_id: int
    producer_epoch: int
    stage: str = ""


class TransactionEnded(msgspec.Struct, frozen=True, tag="transaction_ended"):
    """The decision. `next_epoch`: the producer epoch of the next transaction. `decided`: of stages,
    the last epoch that is decided."""

    committed: bool
    next_epoch: int = 0
    decided: int = NO_EPOCH


class TransactionInfo(msgspec.Struct, frozen=True):
    """`topics`: the first of those that it writes to and the asker may describe, by name."""

    transactional_id: str
    state: str  # "ready" | "open" | "committing" | "aborting" | "staged"
    producer_id: int
    producer_epoch: int
    partitions: int
    open_for: float
    topics: list[str] = []


class Transactions(msgspec.Struct, frozen=True, tag="transactions"):
    transactions: list[TransactionInfo]
    more: bool


Request = (
    JoinGroup | SyncGroup | LeaveGroup | CommitOffsets | ClaimOffsets | ListGroups | DescribeGroup
    | SeekGroup | DeleteGroup | InitTransactions | AddPartitions | EndTransaction | BeginStage
    | EndStages | CommitTransaction | ListTransactions
)  # fmt: skip
Reply = (
    GroupAssignment | Committed | Claimed | Groups | GroupDescription | TransactionReady
    | TransactionEnded | Transactions
)  # fmt: skip
