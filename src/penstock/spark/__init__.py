"""The data pipeline on Spark: the source and sink `penstock` of PySpark, and the jobs.

    spark = penstock.spark.session("orders")
    spark.read.format("penstock").option("bootstrap", url).option("subscribe", "orders").load()

An extra (`pip install penstock[spark]`, Java 17 or newer): nothing else of Penstock imports it but
the command line, when `penstock spark` runs. Names are loaded when first used: what a Python worker
of Spark does not need, it does not import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    found = getattr(import_module(f"penstock.spark.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
