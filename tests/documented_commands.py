"""Command lines of `penstock` as pages show them, and what the real parser says of each.

A line of a block has to be complete. What stands in backticks in a sentence may leave out what is
required: it names a command, and all that it names has to be there.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from guide_blocks import blocks

from penstock.bench import cli as bench
from penstock.cli.app import make_app

PROGRAM: Final = re.compile(r"(?:\.venv/bin/|/opt/penstock/bin/)?penstock")
FENCED: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LISTED: Final = re.compile(r'(?:CMD|\s+command:) (\["serve".*\])$')
"""What goes behind the entry point of an image, in JSON."""
SHELLS: Final = ("", "console", "sh")
_ENDS: Final = frozenset("|;&()<>")
_BEFORE: Final = frozenset(("do", "then", "until", "while", "if", "!", "ExecStart="))
_FILLED: Final = {"N": "1", "M": "1", "SECONDS": "1"}
"""Placeholders in the place of numbers; the parser takes any other word as it is."""


class Shown(NamedTuple):
    """A command line of a page: where it is, its words, and whether it is a line to be run."""

    where: str
    words: tuple[str, ...]
    is_whole: bool


def shown_in(page: Path) -> Iterator[Shown]:
    """All of a page: Markdown, or what runs Penstock elsewhere: a unit of systemd, a Dockerfile, a
    file of compose, a script."""
    if page.suffix != ".md":
        lines = page.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            where = f"{page.name}:{number}"
            if line.startswith("ExecStart="):
                yield from _of_line(line.replace("=", "= ", 1), where)
            elif listed := LISTED.match(line):
                yield Shown(where, tuple(json.loads(listed[1])), True)
            elif lines[0].startswith("#!") and not line.startswith("#"):
                yield from _of_line(line, where)
        return
    for block in blocks(page):
        if block.language in SHELLS:
            for number, line in _lines(block.lines, block.language):
                yield from _of_line(line, f"{page.name}:{block.line + number}")
    for number, span in spans(page):
        one = re.sub(r"(?<=\w)(?:\\?\|[\w-]+)+", "", span)  # of `text|json`
        for found in _of_line(one, f"{page.name}:{number}"):
            yield found._replace(is_whole=False)


def spans(page: Path) -> Iterator[tuple[int, str]]:
    """What stands in backticks in its sentences and tables, with the number of the line."""
    if page.suffix != ".md":
        return
    blank = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
    for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", blank):
        yield blank.count("\n", 0, span.start()) + 1, " ".join(span[1].split())


def _lines(lines: list[str], language: str) -> Iterator[tuple[int, str]]:
    """What is typed in a block, with its line's number there."""
    for number, line in enumerate(lines):
        if language != "console":
            yield number, line
        elif line.startswith(("$ ", "> ")):
            yield number, line[2:]


def _of_line(line: str, where: str) -> Iterator[Shown]:
    """The commands of a line, those in `$(...)` too."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from _of_line(inner, where)
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "it", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # half a quotation: a sentence, or a piece of another language
        words = line.split()
    for at, word in enumerate(words):
        if PROGRAM.fullmatch(word) and _begins(words[:at]) and words[at + 1 : at + 2] != ["="]:
            ends = (n for n, each in enumerate(words[at:]) if set(each) <= _ENDS)
            yield Shown(where, tuple(_filled(words[at + 1 : at + next(ends, len(words))])), True)


def _begins(before: list[str]) -> bool:
    """Whether a command begins behind these words."""
    return not before or before[-1] in _BEFORE or set(before[-1]) <= _ENDS or "=" in before[-1]


def _filled(words: list[str]) -> list[str]:
    bare = (word.strip("[]") for word in words)
    return [_FILLED.get(word, re.sub(r"\$\w+", "1", word)) for word in bare if word != "..."]


@cache
def _group() -> Any:
    """The real tree of commands, none of which does anything."""
    root: Any = typer.main.get_command(make_app())

    def quiet(command: Any) -> None:
        for each in getattr(command, "commands", {}).values():
            quiet(each)
        if not hasattr(command, "commands"):
            command.callback = lambda **_: None

    quiet(root)
    return root


def complaint(shown: Shown) -> str:
    """What the parser has against it; empty if nothing."""
    said, words = io.StringIO(), list(shown.words)
    out = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(out):
        try:
            if words[:1] == ["bench"]:
                bench._parser().parse_args(words[1:])
            else:
                _group().main(args=words, prog_name="penstock")
        except SystemExit as left:
            if left.code and shown.is_whole and "Error: " not in said.getvalue():
                said.write("\nError: this is not all of a command")
    error = re.search(r"^(?:Error|penstock bench.*: error): (.*)", said.getvalue(), re.M | re.S)
    text = error[1].strip() if error else ""
    is_lacking = re.match(r"Missing |the following arguments are required|.* requires an arg", text)
    return "" if is_lacking and not shown.is_whole else text


def leaves() -> set[tuple[str, ...]]:
    """Every command that does something, as it is typed."""
    found: set[tuple[str, ...]] = set()
    for name, command in _group().commands.items():
        found |= {(name, verb) for verb in getattr(command, "commands", ())} or {(name,)}
    return found


@cache
def options_known() -> set[str]:
    """Every option that some command has."""
    found = set(_words(_group()))
    for command in bench._parser()._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
        found |= set(command._option_string_actions)
    return found


def _words(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for each in getattr(command, "commands", {}).values():
        yield from _words(each)
