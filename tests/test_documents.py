"""The pages of the documentation as a set: none is too long, and none is missing from its list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
DECISIONS = DOCS / "decisions"
LINES_MAX = 250
FIGURES_MAX = 12
LONG = {"protocol.md": "is the reference of every message: a reader searches it"}
PAGES = [DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("internals/*.md")]
PAGES += DOCS.glob("guide/*.md")


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_a_page_has_at_most_250_lines(page: Path) -> None:
    lines = len(page.read_text().splitlines())
    assert (lines > LINES_MAX) == (page.name in LONG), f"{page} has {lines} lines"


def test_each_decision_is_listed_once_with_its_date() -> None:
    listed = re.findall(
        r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\) [^|]+ \| (\S+) \| [^|]+\.? \|$",
        (DECISIONS / "README.md").read_text(),
        re.MULTILINE,
    )
    dates = {
        page.name: re.findall(r"^\d{4}-\d\d-\d\d", page.read_text(), re.MULTILINE)[0]
        for page in DECISIONS.glob("0*.md")
    }
    assert sorted((name, date) for _, name, date in listed) == sorted(dates.items())


def test_the_numbers_of_decisions_are_given_once() -> None:
    numbers = [page.name[:4] for page in DECISIONS.glob("0*.md")]
    assert sorted(set(numbers)) == sorted(numbers)


def test_the_readme_has_few_figures_and_each_is_among_all_figures() -> None:
    figures = (DOCS.parent / "README.md").read_text().split("<!-- figures -->")[1]
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (`.+`.*) \|$", figures, re.MULTILINE)
    every = (DOCS / "benchmarks" / "figures.md").read_text()
    assert 5 < len(rows) <= FIGURES_MAX
    assert [row for row in rows if row not in every] == []
