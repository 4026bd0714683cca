"""Transactions as their producers see them: records and consumed offsets that count together.

`producer` has the producer with a transactional id, `stages` the producers whose records somebody
else commits. Who decides is the coordinator in the node; see `penstock.ipc.coordination`.
"""

from __future__ import annotations
