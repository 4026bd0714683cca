"""Each rule of docs/rules.md is held by marked tests, and each number that is cited is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import rules_table
from marked_tests import marked_tests

ROOT = Path(__file__).resolve().parents[1]
TESTS_MIN = 2
NAMED = re.compile(r"def (test_rules?_(\d+(?:_(?:and|to)_\d+)?)\w*)")
CITED = re.compile(r"\brules? (\d+)(?:(?:, | and | to )(\d+))?")
SEARCHED = (
    *(f"{folder}/**/*.py" for folder in ("core", "ipc", "cluster", "src/penstock", "bench")),
    *("tests/**/*.py", "docs/*.md", "docs/internals/*.md", "docs/decisions/*.md"),
)


def test_rules_are_numbered_without_gaps():
    assert list(rules_table.rules()) == list(range(1, len(rules_table.rules()) + 1))


def test_each_rule_is_held_by_tests_that_are_marked():
    tests = marked_tests("rule")
    few = {number: tests.get(number, []) for number in rules_table.rules()}
    assert {number: names for number, names in few.items() if len(names) < TESTS_MIN} == {}
    assert sorted(set(tests) - set(rules_table.rules())) == []


def test_a_test_that_names_a_rule_is_marked_with_it():
    marked = marked_tests("rule")
    missing = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, numbers in re.findall(
            r"def (test_rules?_(\d+(?:_(?:and|to)_\d+)?)\w*)", file.read_text()
        ):
            node = f"{file.relative_to(ROOT / 'tests').as_posix()}::{name}"
            first, *last = (int(number) for number in re.findall(r"\d+", numbers))
            span = range(first, last[0] + 1) if "_to_" in numbers else [first, *last]
            missing += [(number, node) for number in span if node not in marked.get(number, ())]
    assert missing == []


@pytest.mark.parametrize("pattern", SEARCHED)
def test_a_rule_that_is_cited_is_in_the_page(pattern):
    known = rules_table.rules()
    unknown = [
        f"{file.relative_to(ROOT)}: {found.group()}"
        for file in sorted(ROOT.glob(pattern))
        for found in CITED.finditer(file.read_text())
        for number in filter(None, found.groups())
        if int(number) not in known
    ]
    assert unknown == []


def test_the_table_of_the_page_is_the_one_of_the_markers():
    assert rules_table.written_table() == rules_table.table(), (
        "docs/rules.md: run python tests/rules_table.py --write"
    )
