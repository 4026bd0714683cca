"""What a node can be told, by its configuration and its lean command line."""

from __future__ import annotations

import os

import pytest

from penstock.core.errors import ConfigError
from penstock.server.__main__ import parse
from penstock.server.config import NodeConfig
from penstock.server.node.main import Starter


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data_folder", ""),
        ("data_folder", "a\0b"),
        ("name", "no spaces"),
        ("writers_max", 0),
        ("writers_max", 65),
        ("lane_capacity", 1024),
        ("lane_capacity", (64 << 10) + 64),
        ("lanes_max", 0),
        ("clients_max", 1025),
        ("partitions_max", 4097),
        ("topics_max", True),
        ("writer_stall_timeout", 0.5),
        ("writer_stall_timeout", float("nan")),
        ("restart_backoff", "soon"),
        ("restart_backoff_max", 0.01),
        ("drain_timeout", -1),
        ("lock_timeout", float("inf")),
    ],
)
def test_a_refused_value_is_named(field, value):
    with pytest.raises(ConfigError, match=field if field != "name" else "node name"):
        NodeConfig(**{"data_folder": "/data", field: value})


def test_a_relative_folder_is_fixed_at_the_start(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = NodeConfig("here")
    monkeypatch.chdir("/")
    assert config.data_folder == str(tmp_path / "here")


@pytest.mark.parametrize(("cores", "writers"), [(1, 2), (2, 2), (4, 2), (8, 4), (512, 64)])
def test_writers_are_half_the_cores_but_at_least_two(monkeypatch, cores, writers):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert NodeConfig("/data").writers == writers
    assert NodeConfig("/data", writers_max=1).writers == 1


def test_a_command_line():
    config, starter, verbosity = parse(
        [
            "--data",
            "/d",
            "--writers",
            "3",
            "--ready-fd",
            "7",
            "--owner",
            "1",
            "--clock-fd",
            "8",
            "-vq",
            "-q",
            "--lanes-max",
            "9",
        ]
    )
    assert (config.data_folder, config.name, config.writers) == ("/d", None, 3)
    assert (config.lanes_max, starter, verbosity) == (9, Starter(7, 1, 8), -1)


def test_without_a_folder_it_is_the_default_node(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
    config, _, _ = parse([])
    assert (config.data_folder, config.name) == (str(tmp_path), "default")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--writers", "0"], "writers_max is 0"), (["--lanes-max", "x"], "--lanes-max")],
)
def test_a_wrong_command_line_exits_2_and_says_why(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--data", "/d", *arguments])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
