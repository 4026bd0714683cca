"""Errors where Spark cannot be used, or finds no node, in one sentence each."""

from __future__ import annotations

from penstock.core.errors import NotConnectedError, PenstockError


class SparkMissingError(PenstockError, ImportError):
    """PySpark is not installed, or is too old."""


class JavaMissingError(PenstockError):
    """No Java is here that Spark runs on."""


class NoSuchNodeError(NotConnectedError):
    """No node answers, and none has answered this process before: it is not waited for."""

    retriable = False
