"""Byte quotas of principals and client ids, as token buckets. Pure: time is an argument."""

from __future__ import annotations

from penstock.cluster.quotas.buckets import Bucket
from penstock.cluster.quotas.quotas import CONSUME, PRODUCE, Quotas
from penstock.cluster.quotas.settings import ANY, Quota, QuotaTable, check_quota

__all__ = ["ANY", "CONSUME", "PRODUCE", "Bucket", "Quota", "QuotaTable", "Quotas", "check_quota"]
