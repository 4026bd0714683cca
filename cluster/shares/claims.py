"""Records with dedup ids as workers ask about them: which are the first ones of their ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.cluster.decisions import Decision
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.answers import ShareDecision
from penstock.cluster.shares.dedup_ids import DIGEST_BYTES, STAMP_BYTES
from penstock.cluster.shares.groups import ShareGroups
from penstock.cluster.shares.machine import SharePartition
from penstock.cluster.shares.runs import Runs, checked, count, joined, packed
from penstock.cluster.shares.share_log import Place
from penstock.cluster.shares.window import DONE
from penstock.core.errors import ConfigError


class ClaimedRecords(NamedTuple):
    """Records of a lease. `digests`, `stamps`: see `dedup_ids`."""

    place: Place
    lease: int
    runs: Runs
    digests: bytes
    stamps: bytes


class IdsJudged(NamedTuple):
    """`withheld`: runs that are not to be handed out: duplicates, so many, and what the lease does
    not hold. `forgotten`: other ids that had to give way, though the window was not over. `freed`:
    as `LeaseAnswered`."""

    withheld: Runs
    duplicates: int = 0
    forgotten: int = 0
    freed: int = 0


def judged(
    machine: SharePartition,
    now_us: int,
    lease: int,
    runs: Iterable[Sequence[int]],
    digests: bytes,
    stamps: bytes,
) -> ShareDecision[IdsJudged]:
    """They have these dedup ids and timestamps, and are to be handed out: those that are not
    the first ones of their ids are done."""
    asked = checked(runs, machine.limits.runs_max)
    number = count(asked)
    if (len(digests), len(stamps)) != (DIGEST_BYTES * number, STAMP_BYTES * number):
        raise ConfigError(
            f"{len(digests)} bytes of digests and {len(stamps)} of timestamps for {number} "
            f"records, which take {DIGEST_BYTES} and {STAMP_BYTES} each"
        )
    held, stale = machine._held(lease, asked)
    if not machine.limits.dedup_window or not held:
        return ShareDecision((), IdsJudged(stale))
    claimed, doubles, forgotten = machine._state.ids.claimed(
        now_us, asked, held, (digests, stamps), machine.limits
    )
    deltas: list[rec.Delta] = [] if claimed is None else [claimed]
    if doubles:
        deltas.append(rec.Settled(lease, DONE, packed(doubles)))
    withheld = joined(sorted((*stale, *doubles)))
    freed = machine._freed(doubles)
    return ShareDecision(tuple(deltas), IdsJudged(withheld, count(doubles), forgotten, freed))


def claim(
    groups: ShareGroups, now: float, name: str, member: str, claimed: ClaimedRecords
) -> Decision[IdsJudged]:
    """Settles duplicates. The member hands out neither those nor what its lease does not hold."""
    share = groups.share(name, claimed.place)
    if share is None or share.machine is None or not share.machine.is_of(member, claimed.lease):
        return Decision((), IdsJudged(claimed.runs))
    deltas, answer = judged(
        share.machine, int(now * 1e6), claimed.lease, claimed.runs, claimed.digests, claimed.stamps
    )
    groups.count(name, "duplicates", answer.duplicates)
    groups.count(name, "ids_forgotten", answer.forgotten)
    notify = groups.called(name, answer.freed, member)
    return Decision((share.record_of(deltas),) if deltas else (), answer, notify)
