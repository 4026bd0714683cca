"""The catalogue of deliberate faults: one TOML file an area, one table a fault.

    id        a name of its own
    says      what is wrong then, in a sentence
    file      the source file, from the root of the repository
    old, new  the text that the fault replaces, which the file holds exactly once, and what with
    tests     test files or tests, one of which must fail
    harmless  why no test can fail: what else guards against the fault. Such a fault is not run

Owns reading, checking and applying. Never runs a test.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. `area` is the name of the file that lists it."""

    id: str
    area: str
    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    harmless: str = ""

    def applied(self, root: Path) -> str:
        """The source with the fault. Raises `ValueError` where the text does not apply."""
        path = root / self.file
        if not path.is_file():
            raise ValueError(f"{self.id}: {self.file} is not there")
        source = path.read_text()
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.id}: {self.file} has the old text {count} times, not once")
        changed = source.replace(self.old, self.new)
        if changed == source:
            raise ValueError(f"{self.id}: changes nothing")
        return changed

    def complaint(self, root: Path = ROOT) -> str:
        """Why this fault cannot be run; empty where it can."""
        try:
            ast.parse(self.applied(root), self.file)
        except ValueError as error:
            return str(error)
        except SyntaxError as error:
            return f"{self.id}: {self.file} does not compile with it: {error}"
        if bool(self.tests) == bool(self.harmless):
            return f"{self.id}: names tests, or says why it is harmless, and not both"
        missing = [test for test in self.tests if not is_there(root, test)]
        return f"{self.id}: no such tests: {', '.join(missing)}" if missing else ""


def is_there(root: Path, test: str) -> bool:
    """Whether a test exists: its file, and the function that `file::name[case]` names."""
    file, _, name = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    function = name.rpartition("::")[2].partition("[")[0]
    return not function or f"def {function}(" in path.read_text()


def load(folder: Path = FOLDER) -> list[Mutant]:
    """All faults, by area and in the order of their files."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        with path.open("rb") as file:
            listed = tomllib.load(file)["mutant"]
        for entry in listed:
            tests = tuple(entry.pop("tests", ()))
            found.append(Mutant(area=path.stem, tests=tests, **entry))
    return found


def tests_of(mutants: Sequence[Mutant]) -> list[str]:
    """Every test that these faults name, once."""
    return sorted({test for mutant in mutants for test in mutant.tests})
