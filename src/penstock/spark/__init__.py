"""The data pipeline on Spark: the source and sink `penstock` of PySpark, and the jobs.

    spark = penstock.spark.session("orders")
    spark.read.format("penstock").option("bootstrap", url).option("subscribe", "orders").load()

An extra (`pip install penstock[spark]`, Java 17 or newer): nothing else of Penstock imports it but
the command line, when `penstock spark` runs. Names are loaded when first used: what a Python worker
of Spark does not need, it does not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "JavaMissingError": "errors",
    "PenstockDataSource": "source",
    "SparkMissingError": "errors",
    "register": "sessions",
    "session": "sessions",
}

__all__ = [
    "JavaMissingError",
    "PenstockDataSource",
    "SparkMissingError",
    "register",
    "session",
]

if TYPE_CHECKING:
    from penstock.spark.errors import JavaMissingError, SparkMissingError
    from penstock.spark.sessions import register, session
    from penstock.spark.source import PenstockDataSource

__getattr__, __dir__ = loaded(__name__, _HOMES)
