"""The house plan, held by reading the tree: who may import whom, what is pure, what is listed.

Floors: `core` <- {`ipc`, `cluster`} <- `penstock` <- `bench`; `ipc` and `cluster` never import each
other; `test_import_graph` holds the rooms within `penstock`. Imports are read with ast and count
wherever they are: in functions, under TYPE_CHECKING, and as literal arguments of `import_module`.
"""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600

# Each floor's folder. "penstock" is the top floor: all of src/penstock but its symlinks.
FOLDERS = {
    "core": ROOT / "core",
    "ipc": ROOT / "ipc",
    "cluster": ROOT / "cluster",
    "penstock": ROOT / "src" / "penstock",
    "bench": ROOT / "bench",
}
MAY_IMPORT = {
    "core": {"core"},
    "ipc": {"core", "ipc"},
    "cluster": {"core", "cluster"},
    "penstock": {"core", "ipc", "cluster", "penstock"},
    "bench": {"core", "ipc", "cluster", "penstock", "bench"},
}

# core: no sockets, no threads, no shared memory, in any file.
CORE_NEVER = {"socket", "threading", "asyncio", "zmq", "posix_ipc", "multiprocessing"}
# core: files are touched through one seam, so that faults can be injected there.
CORE_FILES = {"os", "fcntl", "mmap", "shutil", "tempfile"}
# The files of core that may import CORE_FILES, and why each must.
CORE_OS_ALLOWED = {
    "storage.py": "is the seam: the only file access of the log",
}

# cluster: a protocol machine gets time, randomness and input as arguments.
MACHINE_NEVER = {
    *("os", "time", "random", "secrets", "socket", "select", "selectors", "threading", "asyncio"),
    *("zmq", "multiprocessing", "subprocess", "posix_ipc"),
}
# The files of cluster that are its shell, and what each does; every other file there is a machine.
CLUSTER_SHELL: dict[str, str] = {}

# Modules whose import must not load numpy: it costs each writer process memory and start-up time.
# Importing anything of Penstock imports `penstock`; the mains of node and writers belong here too.
WITHOUT_NUMPY = [
    *("penstock", "penstock.core.plain", "penstock.core.control"),
    *("penstock.server.node.node", "penstock.server.writer.main", "penstock.server.cleaner.main"),
    "penstock.server.gateway.main",
]

# The one package outside the namespace: Spark looks for sources in modules named `pyspark_*`.
SPARK_DISCOVERY = "pyspark_penstock"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `from a import b` is `a.b`; `lazy` when it stands inside a function."""

    name: str
    line: int
    lazy: bool

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]

    @property
    def floor(self) -> str | None:
        """The floor this import reaches, None when it is not one of ours."""
        parts = self.name.split(".")
        if parts[0] != "penstock":
            return None
        return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "penstock"


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every import in a source text; `package` is the package that relative imports start from."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, lazy = pending.pop()
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, node.lineno, lazy)
            case ast.ImportFrom(module=module, names=names, level=level):
                parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                for alias in names:
                    name = ".".join([*parents, *filter(None, [module]), alias.name])
                    yield Import(name, node.lineno, lazy)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, node.lineno, lazy)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                lazy = True
        pending.extend((child, lazy) for child in ast.iter_child_nodes(node))


def sources(floor: str) -> list[Path]:
    """The Python files of a floor, each once: symlinks are not followed."""
    folder = FOLDERS[floor]
    links = {entry for entry in folder.iterdir() if entry.is_symlink()}
    return sorted(file for file in folder.rglob("*.py") if links.isdisjoint(file.parents))


@cache
def imports_in(file: Path, floor: str) -> tuple[Import, ...]:
    return tuple(imports_of(file.read_text(), package_of(file, floor)))


def package_of(file: Path, floor: str) -> str:
    inside = file.relative_to(FOLDERS[floor]).parent.parts
    return ".".join(["penstock", *([] if floor == "penstock" else [floor]), *inside])


def floor_complaint(imported: Import, floor: str, in_cli: bool) -> str | None:
    """Why a file of `floor` may not have this import, None when it may."""
    if imported.root in FOLDERS and imported.root != "penstock":
        return f"imports bare {imported.name}: write penstock.{imported.name}"
    if imported.floor is None or imported.floor in MAY_IMPORT[floor]:
        return None
    if imported.floor == "bench" and in_cli and imported.lazy:
        return None  # the `penstock bench` command; everything else runs without bench loaded
    return f"{floor} may not import {imported.name}"


def complaints_of(floor: str) -> list[str]:
    found = []
    for file in sources(floor):
        in_cli = FOLDERS["penstock"] / "cli" in file.parents
        for imported in imports_in(file, floor):
            if complaint := floor_complaint(imported, floor, in_cli):
                found.append(f"{file.relative_to(ROOT)}:{imported.line}: {complaint}")
    return found


def forbidden_imports(floor: str, forbidden: set[str], exempt: dict[str, str]) -> list[str]:
    """Imports of `forbidden` in a floor's files, those named in `exempt` left out."""
    found = []
    for file in sources(floor):
        if file.relative_to(FOLDERS[floor]).as_posix() in exempt:
            continue
        for imported in imports_in(file, floor):
            if imported.root in forbidden:
                found.append(f"{file.relative_to(ROOT)}:{imported.line}: imports {imported.name}")
    return found


def modules_loaded_by(module: str) -> set[str]:
    """The names in sys.modules of a fresh interpreter that imported `module` and nothing else."""
    program = f"import sys; import {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("floor", FOLDERS)
def test_a_floor_imports_only_what_is_below_it(floor):
    assert complaints_of(floor) == []


def test_core_has_no_sockets_threads_or_shared_memory():
    assert forbidden_imports("core", CORE_NEVER, {}) == []


def test_core_touches_files_only_through_its_seam():
    assert forbidden_imports("core", CORE_FILES, CORE_OS_ALLOWED) == []


def test_cluster_machines_are_pure():
    assert forbidden_imports("cluster", MACHINE_NEVER, CLUSTER_SHELL) == []


@pytest.mark.parametrize("module", WITHOUT_NUMPY)
def test_the_nodes_processes_start_without_numpy(module):
    assert "numpy" not in modules_loaded_by(module)


def test_every_package_folder_is_listed_in_setup_cfg():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = {package_of(file, floor) for floor in FOLDERS for file in sources(floor)}
    assert listed == sorted({*found, SPARK_DISCOVERY})


def test_nothing_imports_spark_but_the_command_line_inside_a_function():
    """An extra: everything else runs without it (`penstock.spark` itself lies in its folder). That
    `penstock.cli.spark` and the benchmarks load none of it is held by running them."""
    own = FOLDERS["penstock"] / "spark"
    command = {
        FOLDERS["penstock"] / "cli" / "spark.py",
        FOLDERS["bench"] / "spark.py",
        FOLDERS["bench"] / "sparktopics.py",
        FOLDERS["bench"] / "sparktriggers.py",
    }
    found = []
    for floor in FOLDERS:
        for file in sources(floor):
            if own in file.parents or file in command:
                continue
            in_cli = FOLDERS["penstock"] / "cli" in file.parents or floor == "bench"
            for imported in imports_in(file, floor):
                is_spark = imported.root == "pyspark" or imported.name.startswith("penstock.spark")
                if is_spark and not (in_cli and imported.lazy):
                    found.append(f"{file.relative_to(ROOT)}:{imported.line}: {imported.name}")
    assert found == []


def test_every_package_folder_has_an_init():
    folders = {file.parent for floor in FOLDERS for file in sources(floor)}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("floor", [floor for floor in FOLDERS if floor != "penstock"])
def test_a_symlink_gives_each_folder_its_name_for_type_checkers(floor):
    link = FOLDERS["penstock"] / floor
    assert link.readlink() == Path("../..") / floor
    assert link.resolve() == FOLDERS[floor]


def test_no_file_is_too_long_to_read():
    files = [file for floor in FOLDERS if floor != "bench" for file in sources(floor)]
    lengths = {file.relative_to(ROOT): len(file.read_text().splitlines()) for file in files}
    assert {file: lines for file, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_test_files_have_unique_names_and_no_packages():
    """Pytest's default import mode puts each folder on sys.path, so a name names one file."""
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.name != "conftest.py"]
    names = Counter(file.name for file in files)
    assert [name for name, count in names.items() if count > 1] == []
    assert "__init__.py" not in names


def test_decisions_have_numbers_of_their_own():
    files = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = Counter(file.name[:4] for file in files)
    assert [number for number, count in numbers.items() if count > 1] == []
    assert [f.name for f in files if not f.read_text().startswith(f"# {f.name[:4]}: ")] == []


@pytest.mark.parametrize(
    ("floor", "source"),
    [
        ("core", "import penstock"),
        ("core", "from penstock import ipc"),
        ("core", "from penstock.ipc.lane import Lane"),
        ("core", "from ..cluster import raft"),
        ("ipc", "import penstock.cluster.raft as raft"),
        ("ipc", "def late():\n    from penstock.cluster import raft"),
        ("ipc", "import_module('penstock.cluster')"),
        ("cluster", "if TYPE_CHECKING:\n    from penstock.ipc import lane"),
        ("cluster", "from penstock import connect"),
        ("penstock", "def late():\n    import penstock.bench"),
        ("bench", "from core import log"),
    ],
)
def test_a_forbidden_import_is_seen(floor, source):
    complaints = [
        floor_complaint(imported, floor, in_cli=False)
        for imported in imports_of(source, f"penstock.{floor}")
    ]
    assert any(complaints)


@pytest.mark.parametrize(
    ("source", "allowed"),
    [("def bench():\n    import penstock.bench", True), ("import penstock.bench", False)],
)
def test_only_the_cli_reaches_bench_and_only_inside_a_function(source, allowed):
    [imported] = imports_of(source, "penstock.cli")
    assert (floor_complaint(imported, "penstock", in_cli=True) is None) == allowed
