"""Share groups: workers that share the records of a partition, each record with one at a time.

Pure: no I/O, no clock, no threads. `SharePartition` is the machine of one group in one partition,
`LoggedShare` what it is in a log that is compacted, `ShareGroups` all of them.
"""

from __future__ import annotations

from penstock.cluster.shares.answers import LeaseAnswered as LeaseAnswered
from penstock.cluster.shares.answers import LeaseGranted as LeaseGranted
from penstock.cluster.shares.answers import ShareDecision as ShareDecision
from penstock.cluster.shares.arranging import ArrangedGroups as ArrangedGroups
from penstock.cluster.shares.arranging import ToldHashes as ToldHashes
from penstock.cluster.shares.claims import ClaimedRecords as ClaimedRecords
from penstock.cluster.shares.claims import IdsJudged as IdsJudged
from penstock.cluster.shares.claims import claim as claim
from penstock.cluster.shares.claims import judged as judged
from penstock.cluster.shares.dedup_ids import columns_of_ids as columns_of_ids
from penstock.cluster.shares.done_jobs import AcceptedJobs as AcceptedJobs
from penstock.cluster.shares.done_jobs import AcceptedLease as AcceptedLease
from penstock.cluster.shares.done_jobs import TransactedJobs as TransactedJobs
from penstock.cluster.shares.group import KnownEnds as KnownEnds
from penstock.cluster.shares.groups import GrantedRecords as GrantedRecords
from penstock.cluster.shares.groups import ShareGroups as ShareGroups
from penstock.cluster.shares.groups import runs_of as runs_of
from penstock.cluster.shares.limits import ShareLimits as ShareLimits
from penstock.cluster.shares.machine import SharePartition as SharePartition
from penstock.cluster.shares.peek import PeekedRecord as PeekedRecord
from penstock.cluster.shares.policy import SharePolicy as SharePolicy
from penstock.cluster.shares.runs import Run as Run
from penstock.cluster.shares.runs import Runs as Runs
from penstock.cluster.shares.share_log import LoggedShare as LoggedShare
from penstock.cluster.shares.share_log import Place as Place
from penstock.cluster.shares.state import Arrangement as Arrangement
from penstock.cluster.shares.state import ShareSnapshot as ShareSnapshot
