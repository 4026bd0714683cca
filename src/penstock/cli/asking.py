"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import typer

from penstock.cli import output
from penstock.core import errors as er


def confirm(question: str) -> None:
    """A yes from a terminal; elsewhere nobody can answer."""
    if not output.is_terminal(sys.stdin):
        raise er.ConfigError(f"{question} Nobody can be asked here: add --yes (or --dry-run)")
    if not typer.confirm(question, err=True):
        raise er.PenstockError("nothing was deleted")
