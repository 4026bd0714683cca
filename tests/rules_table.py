"""The rules of docs/rules.md, and which tests hold them: read from the marker `rule` of tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from marked_tests import marked_tests

TESTS: Final = Path(__file__).resolve().parent
RULES: Final = TESTS.parent / "docs" / "rules.md"
BEGIN: Final = "<!-- rules -->\n"
END: Final = "<!-- /rules -->"


def rules() -> dict[int, str]:
    """Number and title of each rule, as the page has them."""
    found = re.findall(r"^### (\d+)\. (.+)$", RULES.read_text(), re.MULTILINE)
    return {int(number): title for number, title in found}


def table() -> str:
    """A row for each rule: how many tests hold it, and the files that they are in."""
    tests = marked_tests("rule")
    rows = ["| rule | tests | in |", "|---|---|---|"]
    for number, title in rules().items():
        held_by = tests.get(number, [])
        files = sorted({Path(test.partition("::")[0]).name for test in held_by})
        named = ", ".join(f"`{name.removesuffix('.py')}`" for name in files)
        rows.append(f"| {number}. {title} | {len(held_by)} | {named} |")
    return "\n".join(rows) + "\n"


def written_table() -> str:
    return RULES.read_text().partition(BEGIN)[2].partition(END)[0]


def write() -> None:
    before, _, rest = RULES.read_text().partition(BEGIN)
    RULES.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(table(), end="")
