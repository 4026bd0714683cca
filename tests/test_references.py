"""What code and tests refer to is in the repository: invariants, decisions, pages, test files.
Rules have a test of their own (`test_rules.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("core", "ipc", "cluster", "src/penstock", "bench", "tests")
INVARIANT = re.compile(r"\binvariants? (\d+)((?:, \d+)*)(?: and (\d+))?")
DECISION = re.compile(r"\bdecisions? (\d{4})\b")
PAGE = re.compile(r"\b(?:docs|tests)/[\w./-]+\.(?:md|py|toml|txt|svg)\b")
PLANTED = {"tests/test_references.py", "tests/mutants/test_mutants.py"}
"""Files whose texts name what there is not, to see it refused."""
DESIGN = re.compile(r"\b(?:semantics|formats|design|product|house)\.md\b")


def texts() -> Iterator[tuple[str, str]]:
    files = [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 900
    for file in files:
        name = str(file.relative_to(ROOT))
        if name not in PLANTED:
            yield name, file.read_text()


@cache
def known() -> tuple[set[str], set[str]]:
    """Numbers of invariants and of decisions."""
    listed = (ROOT / "docs" / "rules.md").read_text().partition("## Invariants")[2]
    decisions = {file.name[:4] for file in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    return set(re.findall(r"^(\d+)\. ", listed, re.MULTILINE)), decisions


def unresolved(text: str) -> list[str]:
    """The references of a text that lead nowhere."""
    invariants, decisions = known()
    cited = [
        (found.group(), number)
        for found in INVARIANT.finditer(text)
        for number in re.findall(r"\d+", found.group())
    ]
    return [
        *(said for said, number in cited if number not in invariants),
        *(found.group() for found in DECISION.finditer(text) if found.group(1) not in decisions),
        *(page for page in PAGE.findall(text) if not (ROOT / page).is_file()),
        *DESIGN.findall(text),
    ]


def test_references_resolve_within_the_repository():
    found = {file: left for file, text in texts() if (left := unresolved(text))}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["invariant 99", "invariants 3, 98 and 4", "decision 9999", "docs/guide/none.md", "house.md"],
)
def test_a_reference_that_leads_nowhere_is_seen(text):
    assert unresolved(f"as {text} says")


def test_references_that_resolve_are_not_complained_of():
    assert unresolved("invariants 1, 2 and 9, decision 0053, docs/rules.md") == []
