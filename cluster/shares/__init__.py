"""Share groups: workers that share the records of a partition, each record with one at a time.

Pure: no I/O, no clock, no threads. `SharePartition` is the machine of one group in one partition.
"""

from __future__ import annotations

from penstock.cluster.shares.limits import ShareLimits as ShareLimits
from penstock.cluster.shares.machine import LeaseAnswered as LeaseAnswered
from penstock.cluster.shares.machine import LeaseGranted as LeaseGranted
from penstock.cluster.shares.machine import ShareDecision as ShareDecision
from penstock.cluster.shares.machine import SharePartition as SharePartition
from penstock.cluster.shares.state import ShareSnapshot as ShareSnapshot
