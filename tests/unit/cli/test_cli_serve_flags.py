"""Each flag of a node's two command lines reaches its setting; a flag without a row fails.

The node itself is not run here: what it is given is looked at. That the settings take effect is
held by the tests that are marked with them.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call_cli

from penstock.cli import serve as cli
from penstock.server import __main__ as lean
from penstock.server.config import NodeConfig
from penstock.server.node import main as node

DEFAULTS = {field.name: field.default for field in fields(NodeConfig)}
BROKER = ("--node-id", "2", "--listen", "tcp://127.0.0.1:1", "--controller-quorum",
          "2@127.0.0.1:9651")  # fmt: skip
"""What makes a broker, beside the flags that only a broker may have."""

# Flag, words behind it, setting, its value then, what else has to be said.
ROWS: list[tuple[str, str | None, str, Any, tuple[str, ...]]] = [
    ("--data", "/d/f", "data_folder", "/d/f", ()),
    ("--name", "river", "name", "river", ()),
    ("--writers", "3", "writers_max", 3, ()),
    ("--lane-capacity", "1048576", "lane_capacity", 1 << 20, ()),
    ("--listen", "tcp://127.0.0.1:7", "listen", "tcp://127.0.0.1:7", ()),
    ("--insecure", None, "insecure", True, ()),
    ("--node-id", "2", "node_id", 2, BROKER[2:]),
    ("--controller-quorum", "2@127.0.0.1:9", "controller_quorum", "2@127.0.0.1:9", BROKER[:4]),
    ("--cluster-listen", "tcp://127.0.0.1:8", "cluster_listen", "tcp://127.0.0.1:8", BROKER),
    ("--advertise", "tcp://one:4711", "advertise", "tcp://one:4711", BROKER),
    ("--rack", "row-7", "rack", "row-7", BROKER),
    ("--cluster-key", "/d/key", "cluster_key", "/d/key", BROKER),
    ("--metrics", "127.0.0.1:9641", "metrics", "127.0.0.1:9641", ()),
    ("--metrics-public", None, "metrics_public", True, ()),
    ("--log-format", "json", "log_format", "json", ()),
]
LEAN_ONLY: dict[str, Any] = {"replication_port": 4712}
"""Settings whose default says nothing of another value."""
NO_SETTING = {"--config", "--ready-fd", "--owner", "--verbose", "--quiet"}
"""Flags that say nothing of the node."""


def of(row: tuple[str, str | None, str, Any, tuple[str, ...]]) -> list[str]:
    flag, words, _, _, more = row
    return [*more, flag, *([] if words is None else [words])]


def own_flags() -> set[str]:
    """Of `penstock serve`."""
    names = list(inspect.signature(cli.serve).parameters)[1:]
    return {f"--{name.replace('_', '-')}" for name in names} - NO_SETTING


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """The configurations that nodes were started with."""
    found: list[NodeConfig] = []

    def serve(config: NodeConfig, starter: node.Starter) -> int:
        if starter.ready_fd is not None:
            os.close(starter.ready_fd)
        found.append(config)
        return 0

    monkeypatch.setattr(node, "serve", serve)
    monkeypatch.setattr(node, "configure_logging", lambda *_: None)
    return found


def test_every_flag_of_serve_has_its_row() -> None:
    assert {row[0] for row in ROWS} == own_flags()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_flag_of_serve_reaches_its_setting(row: Any, served: list[NodeConfig]) -> None:
    ran = call_cli("serve", *of(row))
    assert ran.code == 0, ran.err
    [config] = served
    assert getattr(config, row[2]) == row[3] != DEFAULTS[row[2]]


def test_every_setting_reaches_the_node_from_a_file(
    tmp_path: Path, served: list[NodeConfig]
) -> None:
    """One after another, in the form that people write."""
    file = tmp_path / "node.toml"
    for name, default in DEFAULTS.items():
        given = {row[2]: row for row in ROWS}.get(name)
        value = given[3] if given is not None else another(name, default)
        needs = dict(zip(BROKER[::2], BROKER[1::2], strict=True)) if name in BROKERS else {}
        lines = {word[2:].replace("-", "_"): text for word, text in needs.items()} | {name: value}
        lines["node_id"] = int(lines["node_id"]) if "node_id" in lines else None
        file.write_text("".join(f"{key} = {toml(it)}\n" for key, it in lines.items() if it))
        ran = call_cli("serve", "--config", file)
        assert ran.code == 0, (name, ran.err)
        assert getattr(served[-1], name) == value != default, name


BROKERS = {row[2] for row in ROWS if set(BROKER[:2]) & set(row[4]) or row[0] == "--node-id"} | {
    "replication_port"
}


def another(name: str, default: Any) -> Any:
    """A value that is allowed and is not the default."""
    if name in LEAN_ONLY:
        return LEAN_ONLY[name]
    return 2 * default or 0.05


def toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize("flag", sorted(lean._OPTIONS))
def test_a_flag_of_the_lean_command_line_reaches_its_setting(flag: str) -> None:
    name = flag[2:].replace("-", "_")
    rows = {row[0]: row for row in ROWS}
    if flag in rows:
        words, value = of(rows[flag]), rows[flag][3]
    else:
        value = another(name, DEFAULTS[name])
        words = [*(BROKER if name in BROKERS else ()), flag, str(value)]
    config, *_ = lean.parse(["--data", "/d/f", *words])
    assert getattr(config, name) == value != DEFAULTS[name]


@pytest.mark.parametrize("flag", ["--data", "--name", "--writers", "--log-format", "--insecure"])
def test_a_flag_of_the_lean_command_line_that_is_spelt_as_of_serve(flag: str) -> None:
    row = next(row for row in ROWS if row[0] == flag)
    config, *_ = lean.parse(of(row))
    assert getattr(config, row[2]) == row[3] != DEFAULTS[row[2]]
