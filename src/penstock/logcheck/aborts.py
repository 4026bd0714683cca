"""Control batches, and the `.txn` file of a segment held against its ABORT markers."""

from __future__ import annotations

import os

from penstock.core.aborted import TXN_ENTRY_BYTES, decode_aborted, txn_path
from penstock.core.control import ControlType, read_control
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.header import BatchHeader
from penstock.core.segment import segment_name
from penstock.core.storage import Storage
from penstock.logcheck.findings import Checked


class AbortCheck:
    """Gathers the markers of a segment while its batches pass."""

    def __init__(
        self, storage: Storage, folder: str, base: int, result: Checked, *, is_live: bool
    ) -> None:
        self._path = txn_path(folder, base)
        # Before the batches: a running node notes an abort behind its marker.
        self._data = storage.read_file(self._path)
        self._base = base
        self._result = result
        self._is_live = is_live
        self._markers: dict[int, tuple[int, int]] = {}

    def saw(self, position: int, head: BatchHeader, whole: memoryview) -> None:
        """Takes a control batch: header and record must say the same."""
        try:
            control = read_control(bytes(whole), 0, head)
        except (CorruptBatchError, UnsupportedVersionError) as error:
            self._result.find("control", segment_name(self._base), position, str(error))
            return
        if control.type is ControlType.ABORT:
            self._markers[head.base_offset] = (control.producer_id, control.epoch)

    def end(self, log_end: int) -> None:
        """Checks, after all batches, that every marker is noted, and no marker that is not in the
        log yet. An aborted transaction whose marker compaction has removed stays noted."""
        name = os.path.basename(self._path)
        if self._data is None:
            if self._markers:
                self._result.find(
                    "txn", name, None, "is missing: the next start makes it again", note=True
                )
            return
        entries = decode_aborted(self._data)
        if len(entries) * TXN_ENTRY_BYTES != len(self._data) and not self._is_live:
            at = len(entries) * TXN_ENTRY_BYTES
            self._result.find("txn", name, at, "holds bytes that are no good entry")
        noted = {each.last_offset: (each.producer_id, each.epoch) for each in entries}
        if self._is_live:
            return
        for offset, who in self._markers.items():
            producer_id, epoch = noted.get(offset, (who[0], who[1] + 1))
            if producer_id != who[0] or epoch > who[1]:  # it may close one of an epoch below
                self._result.find(
                    "txn",
                    name,
                    None,
                    f"does not say that offset {offset} aborts epoch {who[1]} of producer "
                    f"{who[0]}: its records show to readers of committed ones",
                )
        for offset in noted:
            if not self._base <= offset < log_end:
                self._result.find(
                    "txn", name, None, f"speaks of offset {offset}, the segment ends at {log_end}"
                )
