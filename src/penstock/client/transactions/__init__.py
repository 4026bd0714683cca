"""Transactions as their producers see them: records and consumed offsets that count together.

`producer` has the producer with a transactional id, `stages` the producers with records that
somebody else commits. The coordinator in the node decides; see `penstock.ipc.coordination`.
"""

from __future__ import annotations
