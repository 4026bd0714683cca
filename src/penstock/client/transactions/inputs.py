"""Holds what a transaction commits beside its records: consumed offsets, and jobs that are done.

The coordinator decides about all of it at once, so it is one message. Owns that bound.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core.errors import ResourceLimitError
from penstock.ipc import coordination as co
from penstock.ipc.channel import MESSAGE_BYTES_MAX
from penstock.ipc.sharing import DoneJobs

NUMBER_MAX: Final = (1 << 63) - 1

_encode: Final = msgspec.msgpack.Encoder().encode


class TransactionInputs(NamedTuple):
    """The offsets and jobs that a commit takes along."""

    offsets: list[co.GroupOffsets]
    done: list[DoneJobs]

    def check_size(self, transactional_id: str) -> None:
        """Raises `ResourceLimitError` for more than one message takes."""
        request = co.EndTransaction(
            transactional_id, NUMBER_MAX, NUMBER_MAX, True, self.offsets, NUMBER_MAX, self.done
        )
        size = len(_encode(request))
        if size <= MESSAGE_BYTES_MAX:
            return
        leases = [lease for each in self.done for lease in each.leases]
        raise ResourceLimitError(
            f"the transaction of {transactional_id!r} was not asked to commit: offsets of "
            f"{sum(len(each.offsets) for each in self.offsets)} consumed partitions, and jobs in "
            f"{sum(len(lease.runs) for lease in leases)} runs of offsets by {len(leases)} leases "
            f"(done=), take {size} bytes, over MESSAGE_BYTES_MAX={MESSAGE_BYTES_MAX} of one "
            "message. Abort it and commit less at once: fewer jobs, or fewer consumed partitions, "
            "in several transactions"
        )


NO_INPUTS: Final = TransactionInputs([], [])
