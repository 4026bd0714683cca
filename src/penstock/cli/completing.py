"""Answers a shell that asks what a word could be: commands, options, choices, topics, nodes.

    penstock __complete bash LINE        LINE up to the cursor
    penstock __complete zsh|fish WORD... the words behind `penstock`, the last one unfinished

The first line of the answer is `words` or `files` (then the shell offers file names), each further
one a word, a tab and what it means. Topics come out of topics.json. Only groups are asked for at
the node, and without one there are none. Never reports errors: a wrong line has no completions.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

from penstock.cli.app import make_app, wanted
from penstock.cli.command import Env, merge
from penstock.core.errors import PenstockError
from penstock.ipc.paths import runtime_folder

FILES: Final = ("FILE", "DIR", "PATH", "PATHS", "FOLDER")
CATALOGUE_MAX: Final = 16 << 20
"""Bytes of topics.json that are read for a completion."""

GROUPS_TIMEOUT: Final = 0.5
"""Seconds that somebody who types waits for the node."""

Words = list[tuple[str, str]]


def answer(arguments: Sequence[str]) -> int:
    """Writes the completions of a line to stdout."""
    shell, *words = arguments or [""]
    if shell == "bash":
        words = split(words[0] if words else "")[1:]
    words = words or [""]
    try:
        found = complete(words)
    except Exception:  # whatever it is, the person is in the middle of typing
        found = []
    if found is None:
        sys.stdout.write("files\n")
        return 0
    if shell == "bash":  # which replaces only the text behind these
        cut = max(words[-1].rfind(sign) for sign in "=:") + 1
        found = [(word[cut:], about) for word, about in found]
    lines = [f"{word}\t{' '.join(about.split())}" if about else word for word, about in found]
    sys.stdout.write("\n".join(["words", *lines]) + "\n")
    return 0


def split(line: str) -> list[str]:
    """Returns the words of an unfinished line; the last one is empty behind a space."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quote is open: what is behind it is the word
        words.append(lexer.token)
    if not line or line[-1].isspace():
        words.append("")
    return words


def complete(words: Sequence[str]) -> Words | None:
    """Returns the possible last words; None: a file."""
    *before, last = words
    line = _Line(before)
    if line.command is None:
        return []
    if line.expects is not None:
        return line.values_of(line.expects, last)
    if last.startswith("-"):
        name, is_set, value = last.partition("=")
        option = line.option(name) if is_set else None
        if option is not None:
            found = line.values_of(option, value)
            return found and [(f"{name}={word}", about) for word, about in found]
        return _matching(line.options(), last)
    if line.children is not None:
        about = ((name, _help(child)) for name, child in line.children.items())
        return _matching(about, last)
    argument = line.argument()
    return [] if argument is None else line.values_of(argument, last)


class _Line:
    """The command that finished words lead to, and what has been given on the way."""

    def __init__(self, words: Sequence[str]) -> None:
        self.command: Any = typer.main.get_command(make_app(wanted(words)))
        self.expects: Any = None
        self._chain = [self.command]
        self._given = 0
        self._common: dict[str, str] = {}
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self.expects is not None:
            self._common[self.expects.name] = word
            self.expects = None
        elif self.command is None:
            pass
        elif word.startswith("-") and len(word) > 1:
            name, is_set, value = word.partition("=")
            option = self.option(name)
            if option is not None and _takes_value(option):
                if is_set:
                    self._common[option.name] = value
                else:
                    self.expects = option
        elif self.children is not None:
            self.command = self.children.get(word)
            self._chain.append(self.command)
        else:
            self._given += 1

    @property
    def children(self) -> dict[str, Any] | None:
        return getattr(self.command, "commands", None)

    def _params(self, kind: str) -> list[Any]:
        return [param for param in self.command.params if param.param_type_name == kind]

    def option(self, name: str) -> Any:
        return next((o for o in self._params("option") if name in o.opts), None)

    def options(self) -> Words:
        found = [
            (name, option.help or "")
            for option in self._params("option")
            if not option.hidden
            for name in option.opts
        ]
        return [*found, ("--help", "Show the help of this command.")]

    def argument(self) -> Any:
        """Returns the argument that the next word is of."""
        arguments = self._params("argument")
        for position, argument in enumerate(arguments):
            if argument.nargs == -1 or position == self._given:
                return argument
        return None

    def values_of(self, param: Any, start: str) -> Words | None:
        """Returns the possible values of an option or argument; None: a file."""
        choices = _choices(param)
        if choices:
            return _matching(((choice, "") for choice in choices), start)
        metavar = param.metavar or param.name.upper()
        if metavar in ("TOPIC", "[PATTERN]") or param.name == "topic":
            return _matching(self._topics(), start)
        if metavar == "GROUP":
            return _matching(self._groups(), start)
        if metavar == "URL":
            return _matching(_nodes(), start)
        return None if metavar in FILES else []

    def _env(self) -> Env:
        return merge(None, {"bootstrap": self._common.get("bootstrap"), "format": None,
                            "timeout": None, "verbose": 0, "quiet": False})  # fmt: skip

    def _groups(self) -> Words:
        from penstock.client.admin.admin import Admin
        from penstock.client.session import place_of

        with Admin(place_of(self._env().url), timeout=GROUPS_TIMEOUT) as admin:
            return [(one.group, f"{one.guarantee}, {one.state}") for one in admin.list_groups()]

    def _topics(self) -> Words:
        from penstock.observe.place import folder_for

        env = self._env()
        try:
            with Path(folder_for(env.url), "topics.json").open("rb") as file:
                data = file.read(CATALOGUE_MAX)
        except (PenstockError, OSError):
            return []
        import msgspec

        from penstock.ipc.names import is_internal
        from penstock.observe.sample import Catalogue

        topics = msgspec.json.decode(data, type=Catalogue).topics
        return sorted(
            (topic.name, f"{len(topic.pages)} partitions")
            for topic in topics
            if not is_internal(topic.name)
        )


def _matching(words: Iterable[tuple[str, str]], start: str) -> Words:
    return [(word, about) for word, about in words if word.startswith(start)]


def _takes_value(option: Any) -> bool:
    return not (option.is_flag or option.count)


def _choices(param: Any) -> list[str]:
    """Returns the members of an enumeration; typer keeps the annotation in one of two places."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return list(getattr(getattr(param, "type", None), "choices", ()))


def _help(command: Any) -> str:
    return (command.help or "").strip().partition("\n")[0]


def _nodes() -> Words:
    """Returns the nodes that have a socket."""
    names = sorted(path.stem for path in runtime_folder().glob("*.sock"))
    return [(f"shm://{name}", "") for name in names]
