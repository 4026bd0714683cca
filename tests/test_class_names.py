"""One name, one meaning: a public class name is used once, but for those listed, which only get
fewer. Messages of protocols are listed too: each protocol has its Hello."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from import_graph import modules

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(__file__).with_name("shared_class_names.txt")


def class_names(text: str) -> list[str]:
    """Public classes of a module."""
    return re.findall(r"^class ([A-Za-z]\w*)", text, re.M)


def test_names_of_classes_that_are_used_more_than_once_only_get_fewer():
    """Each line: a name, and how many classes have it. Who renames one takes it from the list."""
    files = list(modules().values())
    assert len(files) > 400
    used = Counter(name for file in files for name in class_names(file.read_text()))
    listed = dict(line.split() for line in SHARED.read_text().splitlines())
    assert list(listed) == sorted(listed)
    assert {name: str(count) for name, count in sorted(used.items()) if count > 1} == listed


def test_a_name_is_seen():
    assert class_names("class A: pass\nclass _B: pass\nif 1:\n    pass") == ["A"]
