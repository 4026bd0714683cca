"""The module by which Spark finds the format "penstock" by itself.

Spark imports every module whose name begins with `pyspark_` and takes its `DefaultSource`."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # raised, it would take every other Python source of Spark down too
    from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
