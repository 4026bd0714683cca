"""Checking partition folders without a node: every byte that a reader would trust, read once.

What is held against each log, from its own files alone:

    batches     header and body checksums, columns, offsets without a hole, epochs and append times
                that never fall, the partition they belong to
    segments    each ends where the next begins; nothing but zeros stands behind the last batch
    indexes     each entry names a batch, where it stands and the newest time up to it
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
