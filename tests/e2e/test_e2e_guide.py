"""The guide is true: its blocks run and print what they say, its links lead somewhere, the messages
it explains are in the code, and so are the bounds it lists. How blocks are marked: `guide_blocks`.
Pages that need Spark are run in tests/spark, that on clusters in tests/cluster.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from cli_runner import environment
from guide_blocks import (
    GUIDE,
    ROOT,
    RUNS_IN_A_SHELL,
    RUNS_WITH_SPARK,
    first_cells,
    run_blocks,
    run_page,
    serves,
)
from quorum_fixture import free_port

from penstock.cli.app import make_app
from penstock.core import errors
from penstock.ipc import layout
from penstock.server.broker.settings import CLUSTER_ONLY
from penstock.server.config import NodeConfig
from penstock.spark import errors as spark_errors
from penstock.spark import positions
from penstock.testing.embedded import EmbeddedNode

LIMITS = ROOT / "docs" / "limits.md"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
DOCUMENTS = [
    *PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "internals").glob("*.md")),
    ROOT / "docs" / "decisions" / "README.md",
]  # fmt: skip
RUN_HERE = [
    page
    for page in PAGES
    if run_blocks(page)
    and {block.marker for block in run_blocks(page)}.isdisjoint((RUNS_WITH_SPARK, RUNS_IN_A_SHELL))
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's machine: where he is at home, and `python` on the path. What he sends to another
    host goes there."""
    home, runtime, programs = (tmp_path / name for name in ("home", "run", "bin"))
    for folder in (home, runtime, programs):
        folder.mkdir(mode=0o700)
    (programs / "python").symlink_to(sys.executable)
    places = {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
    }
    for name, value in environment(env=places).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("PENSTOCK_TRANSPORT", "tcp")
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def named(home: Path) -> dict[str, str]:
    """What a reader has in the place of hosts, ports and folders of the pages."""
    clients, metrics = free_port(), free_port()
    return {
        "tcp://0.0.0.0:9640": f"tcp://127.0.0.1:{clients}",
        "tcp://broker.example:9640": f"tcp://127.0.0.1:{clients}",
        "127.0.0.1:9641": f"127.0.0.1:{metrics}",
        "/var/lib/penstock": str(home / "node"),
        "/home/ann": str(home),
    }


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda p: p.stem)
def test_the_blocks_of_a_page_do_what_they_show(page, home, named):
    if serves(page):
        run_page(page, None, named)
        return
    data = home / ".local" / "share" / "penstock" / "default"
    with EmbeddedNode(data, arguments=("--name", "default")) as node:
        run_page(page, node.url, named)


def test_every_promised_page_has_blocks_that_run():
    assert {page.stem for page in PAGES if run_blocks(page)} == {
        "README", "asyncio", "at-least-once", "at-most-once", "cluster", "columns", "coming-from",
        "exactly-once", "groups", "guarantees", "install", "metrics", "monitoring", "quickstart",
        "remote", "retention-and-disk", "security", "spark", "spark-jobs", "spark-writing",
        "testing", "job-options", "job-order", "replay", "retries", "work-queues", "outbox",
        "exactly-once-databases", "celery", "serializers", "taskiq", "faststream",
    }  # fmt: skip


# --- what pages refer to --------------------------------------------------------------------------
def anchors(page: Path) -> set[str]:
    """The names that headings get, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", head.strip().lower()) for head in heads)
    return {head.replace(" ", "-") for head in kept}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        assert leads_to.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(leads_to), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_named_files_and_commands_are_there(page):
    text = page.read_text()
    for path in re.findall(r"`((?:core|ipc|cluster|bench|src/penstock|tests|docs)/[\w/.]+)`", text):
        if not path.startswith("docs/benchmarks"):  # written by `make bench`
            assert (ROOT / path).exists(), f"{page.name} names {path}"
    app = make_app()
    known = {command.name for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for word in re.findall(r"(?:`|\$ |\| )penstock ([a-z]\w*)", text):
        assert word in known, f"{page.name} shows `penstock {word}`"


# --- messages and bounds --------------------------------------------------------------------------
@cache
def messages_of_the_code() -> list[str]:
    """Every string of the source, with a NUL where something is filled in."""
    found = []
    tops = ("core", "ipc", "cluster", "bench", "src")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0"
                         for part in node.values]  # fmt: skip
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-+0-9.]*[sdrgfx]", "\0", node.value))
    return found


def is_in_the_code(message: str) -> bool:
    """Whether one string of the source has the pieces between `...`, in this order."""
    pieces = [re.escape(piece.strip()) for piece in message.split("...") if piece.strip(" :;,")]
    pattern = re.compile(".*".join(pieces), re.DOTALL)
    return any(pattern.search(text) for text in messages_of_the_code())


@pytest.mark.parametrize(
    ("page", "heading"), [("troubleshooting.md", "message"), ("node-log.md", "line")]
)
def test_explained_messages_are_in_the_code(page, heading):
    explained = [cell for cell in first_cells(GUIDE / page, heading) if " " in cell]
    assert len(explained) > 15
    unknown = [message for message in explained if not is_in_the_code(message)]
    assert not unknown


def test_explained_errors_are_in_the_code():
    names = re.findall(r"`(\w+(?:Error|Timeout))`", (GUIDE / "troubleshooting.md").read_text())
    homes = (builtins, errors, spark_errors, positions)
    assert [name for name in names if not any(hasattr(home, name) for home in homes)] == []
    codes = set(first_cells(GUIDE / "troubleshooting.md", "`ProduceError.code`"))
    assert codes <= set(errors.ErrorCode.__members__)


def seconds_or_bytes(text: str) -> float | str:
    """`10 s` and `4 MiB` as numbers; other words as they are."""
    number, _, unit = text.replace(",", "").partition(" ")
    factor = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}.get(unit)
    return text if factor is None or not number[:1].isdigit() else float(number) * factor


def test_the_bounds_of_a_node_are_the_ones_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", LIMITS.read_text(), re.MULTILINE)
    shown = {name: default for name, default, _ in rows}
    for field in fields(NodeConfig):
        assert field.name in shown, field.name
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert seconds_or_bytes(shown[field.name]) == field.default, field.name


def test_the_page_on_clusters_has_the_settings_of_a_broker_with_their_defaults():
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (.+?) \|$", (GUIDE / "cluster.md").read_text(), re.MULTILINE)
    )
    assert {"node_id", *CLUSTER_ONLY} - set(rows) == {"advertise"}  # it stands beside `listen`
    for name in (
        "election_timeout", "broker_session_timeout", "replica_lag_time",
        "leader_balance_interval",
    ):  # fmt: skip
        (default,) = (field.default for field in fields(NodeConfig) if field.name == name)
        assert rows[name].startswith(f"{default:g} s "), name


def test_the_fixed_bounds_are_the_ones_of_the_code():
    pages = (LIMITS, LIMITS.with_name("limits-of-clusters.md"))
    rows = re.findall(
        r"^\| [^|]+ \| (\d+ [KM]iB|[\d,.]+)[^|]* \| `([\w/.]+)` \(`([A-Z_]+)`",
        "\n".join(page.read_text() for page in pages), re.MULTILINE,
    )  # fmt: skip
    assert len(rows) >= 50
    for value, path, name in rows:
        source = (ROOT / path).read_text()
        match = re.search(rf"^{name}(?:: Final)? = ([^#\n]+)", source, re.MULTILINE)
        assert match, f"{path} has no {name}"
        assert eval(match[1], {"lo": layout}) == seconds_or_bytes(value), name
