"""Docstrings are plain: no sentence opens with What, Who or Whose, and some words stay out.

Sentences of the product say who does what: subject, verb, object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from import_graph import ROOT, modules

OPENER = r"(?:^|[.:;?!]\s+)(?:What|Who|Whose|Whom)\b"
WORD = r"(?i:\b(?:stands?|anew|whoever|that which|see the module)\b)"
BANNED = re.compile(f"{OPENER}|{WORD}")


def docstrings(source: str) -> Iterator[str]:
    """The texts between triple quotes that begin a line: those of modules, classes, functions and
    fields. `ast` finds the same ones, and takes ten times as long."""
    pieces = source.split('"""')
    for before, text in zip(pieces[::2], pieces[1::2], strict=False):
        if before.rpartition("\n")[2].strip(" r") == "":
            yield text


def is_banned(text: str) -> bool:
    return BANNED.search(re.sub(r"\s+", " ", text).strip()) is not None


def test_docstrings_of_the_product_are_plain():
    found = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in modules().values()
        for text in docstrings(file.read_text())
        if is_banned(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["What it is.", "Reads on. Who asks waits.", "One that stands\nthere.", "See the\n    module."],
)
def test_a_banned_docstring_is_seen(text):
    assert is_banned(text)


def test_plain_docstrings_are_not_complained_of():
    assert not is_banned(
        "Returns what was asked for, by whom it was, and understands each of them."
    )


def test_docstrings_are_found_and_other_texts_are_not():
    source = '''"""a"""\nb = """b\n"""\nc = 1\n"""c"""\ndef d():\n    r"""d"""\n    e("""e""")\n'''
    assert list(docstrings(source)) == ["a", "c", "d"]
