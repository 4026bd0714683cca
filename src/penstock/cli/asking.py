"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import typer

from penstock.cli import output
from penstock.core import errors as er


def confirm(question: str, *, tries: bool = True) -> None:
    """Asks for a yes at a terminal; elsewhere it raises, because nobody can answer. `tries`: the
    command has --dry-run."""
    if not output.is_terminal(sys.stdin):
        options = "--yes (or --dry-run)" if tries else "--yes"
        raise er.ConfigError(f"{question} Nobody can be asked here: add {options}")
    if not typer.confirm(question, err=True):
        raise er.PenstockError("nothing was done")
