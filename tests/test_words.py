"""The product and its pages are in plain English: no docstring, comment or sentence of a page opens
with What, Who or Whose, and some words stay out, in error texts and names as well.

Sentences say who does what: subject, verb, object. Decisions and the changelog are dated history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from import_graph import ROOT, modules

OPENER = r"(?:^|[.:;?!]\s+)(?:What|Who|Whose|Whom)\b"
WORD = r"(?i:\b(?:stands?|anew|whoever|that which|see the module|whose turn)\b)"
OUT = re.compile(WORD)
BANNED = re.compile(f"{OPENER}|{WORD}")
COMMENT = re.compile(r"^.*?(?:^|\s)# (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
PAGES += [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]


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


def test_no_text_of_the_product_has_a_banned_word():
    found = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in modules().values()
        for match in OUT.finditer(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_comments_are_plain():
    found = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in modules().values()
        for text in COMMENT.findall(file.read_text())
        if is_banned(text)
    ]
    assert not found, "\n".join(found)


def sentences(page: str) -> list[str]:
    """Lines of a page without its code. A sentence may open at the end of a line."""
    return FENCED.sub("", page).splitlines()


def test_pages_are_plain():
    assert len(PAGES) > 50
    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in sentences(page.read_text())
        if BANNED.search(line)
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


def test_comments_and_sentences_are_found():
    assert COMMENT.findall("# What\na = 1  # b\n'c#d'\n") == ["What", "b"]
    assert sentences("a\n```\nWho\n```\nb. Who\n") == ["a", "", "b. Who"]
