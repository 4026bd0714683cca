"""No class inherits a concrete one of ours to reuse its code, but for those listed, which only get
fewer. A base is a protocol, or abstract, or plain data, or a mixin without fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from import_graph import modules

from penstock.client.producer.producer import Producer

LISTED = Path(__file__).with_name("inherited_classes.txt")
PLAIN = {"Protocol", "Struct", "NamedTuple", "Exception", "Enum", "IntEnum", "IntFlag", "StrEnum"}

CLASS = re.compile(r"^class (\w+)", re.M)
HEIR = re.compile(rf"^class \w+\((?!(?:{'|'.join(PLAIN)})\b)([^)]+)\)", re.M)

Classes = dict[tuple[str, str], ast.ClassDef]


def read() -> tuple[Classes, dict[tuple[str, str], tuple[str, str]]]:
    """The classes that have to do with inheritance among ours, by module and name, and of their
    modules what each name means. Only these modules are parsed: all of them take six seconds."""
    sources = {module: file.read_text() for module, file in modules().items()}
    made = {name for source in sources.values() for name in CLASS.findall(source)}
    bases = {
        name
        for source in sources.values()
        for heads in HEIR.findall(source)
        for name in re.findall(r"\w+", heads)
        if name in made
    }
    classes: Classes = {}
    meant = {}
    for module, source in sources.items():
        if not (HEIR.search(source) or bases.intersection(CLASS.findall(source))):
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                classes[module, node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    meant[module, alias.asname or alias.name] = (node.module, alias.name)
    return classes, meant


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].split(".")[-1]


def is_concrete(kind: ast.ClassDef) -> bool:
    """Whether it has fields and methods of its own, and none is left to its heirs."""
    if kind.name.endswith("Error") or {last_name(base) for base in kind.bases} & PLAIN:
        return False
    if any("dataclass" in ast.unparse(one) for one in kind.decorator_list):
        return False
    methods = [one for one in kind.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    said = "".join(ast.unparse(one) for one in methods)
    if "@abstractmethod" in said or "raise NotImplementedError" in said:
        return False
    return any(one.name == "__init__" for one in methods)


def inherited() -> set[str]:
    classes, meant = read()
    found = set()
    for (module, name), kind in classes.items():
        for base in map(last_name, kind.bases):
            where = meant.get((module, base), (module, base))
            if where in classes and is_concrete(classes[where]):
                found.add(f"{name} {where[1]}")
    return found


def test_concrete_classes_that_are_inherited_only_get_fewer():
    listed = LISTED.read_text().splitlines()
    assert listed == sorted(listed)
    assert inherited() == set(listed)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n    def __init__(self): pass", True),
        ("class A(Protocol):\n    def __init__(self): pass", False),
        ("@dataclass\nclass A:\n    def __init__(self): pass", False),
        (
            "class A:\n    def __init__(self): pass\n    @abstractmethod\n    def b(self): ...",
            False,
        ),
        ("class A:\n    def b(self): pass", False),
    ],
)
def test_a_concrete_class_is_seen(source: str, expected: bool) -> None:
    (kind,) = ast.parse(source).body
    assert isinstance(kind, ast.ClassDef)
    assert is_concrete(kind) is expected


def test_a_producer_says_itself_how_it_is_closed():
    with pytest.raises(TypeError, match=r"abstract method.*close"):
        Producer(None)  # type: ignore[abstract, arg-type]
