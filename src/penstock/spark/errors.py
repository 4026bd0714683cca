"""What is missing where Spark cannot be used, in one sentence each."""

from __future__ import annotations

from penstock.core.errors import PenstockError


class SparkMissingError(PenstockError, ImportError):
    """PySpark is not installed, or is too old."""


class JavaMissingError(PenstockError):
    """No Java is here that Spark runs on."""
