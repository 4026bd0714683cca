"""Checks partition folders without a node, reading every byte that a reader would trust once.

It checks of each log, from its own files alone:

    batches     header and body checksums, columns, offsets without a hole, epochs and append times
                that never fall, the partition they belong to
    segments    each ends where the next begins; only zeros are behind the last batch
    indexes     each entry names a batch, its position and the newest time up to it
    producers   each (producer, epoch, sequence) is there once, and in order
    the rest    epochs, recovery point and producer snapshots agree with the batches

Owns the verdict. Never changes a file, and never asks a node; while one runs, the tail may be in
motion and is no finding.
"""

from __future__ import annotations

from penstock.logcheck.check import check_partition
from penstock.logcheck.findings import Checked, Finding
from penstock.logcheck.folders import CheckedPartition, find_partitions

__all__ = ["Checked", "CheckedPartition", "Finding", "check_partition", "find_partitions"]
