"""Which tests carry a marker with arguments, read from the files of tests."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parent


@cache
def marked_tests(marker: str) -> dict[Any, list[str]]:
    """Tests (node ids from tests/ on) by the arguments of `pytest.mark.<marker>(...)`."""
    found: dict[Any, list[str]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text()
        if f"mark.{marker}(" in text:  # to parse them all takes long
            for argument, test in _marks(ast.parse(text), f"pytest.mark.{marker}"):
                found[argument].append(f"{file.relative_to(TESTS).as_posix()}::{test}")
    return dict(found)


def _marks(tree: ast.Module, marker: str) -> Iterator[tuple[Any, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == marker:
                    for argument in mark.args:
                        yield ast.literal_eval(argument), node.name
