"""The buckets of all principals and client ids, and what each byte costs in seconds.

Owns which bucket counts what, and the bound on buckets: those unused for longest go first. A
principal's own bucket is used with each of its bytes, so inventing client ids does not lose it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.cluster.quotas.buckets import Bucket
from penstock.cluster.quotas.settings import Quota, QuotaTable

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
BUCKETS_MAX: Final = 10_000

_Key = tuple[str, str, str | None]


class Quotas:
    """`charge` when bytes pass; what it returns is how long to hold back what comes next."""

    def __init__(self, table: QuotaTable | None = None, buckets_max: int = BUCKETS_MAX) -> None:
        self._table = table or QuotaTable()
        self._buckets: OrderedDict[_Key, Bucket] = OrderedDict()
        self._buckets_max = buckets_max

    def set_table(self, now: float, table: QuotaTable) -> None:
        """Other quotas from now on."""
        self._table = table
        for key, bucket in list(self._buckets.items()):
            rate = self._rate(*key)
            if rate is None:
                del self._buckets[key]
            elif rate != bucket.rate:
                bucket.set_rate(now, rate)

    @property
    def count(self) -> int:
        return len(self._buckets)

    def charge(self, now: float, what: str, principal: str, client_id: str, nbytes: int) -> float:
        """Count these bytes; the seconds for which the next ones are to wait, 0 for none."""
        delay = 0.0
        if not self._table.is_empty:
            for bucket in self._of(now, what, principal, client_id):
                delay = max(delay, bucket.take(now, nbytes))
        return delay

    def _of(self, now: float, what: str, principal: str, client_id: str) -> list[Bucket]:
        found = []
        for client in (None, client_id):
            key = (what, principal, client)
            bucket = self._buckets.get(key)
            if bucket is not None:
                self._buckets.move_to_end(key)
            else:
                rate = self._rate(*key)
                if rate is None:
                    continue
                bucket = self._buckets[key] = Bucket(now, rate)
                if len(self._buckets) > self._buckets_max:
                    self._buckets.popitem(last=False)
            found.append(bucket)
        return found

    def _rate(self, what: str, principal: str, client_id: str | None) -> int | None:
        table = self._table
        quota: Quota | None = (
            table.of_principal(principal)
            if client_id is None
            else table.of_client(principal, client_id)
        )
        if quota is None:
            return None
        return quota.produce_bytes if what == PRODUCE else quota.consume_bytes
