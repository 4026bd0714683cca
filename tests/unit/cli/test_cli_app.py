"""Which commands are loaded for a command line, and that `--help` knows all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_runner import call_cli, environment

from penstock.cli.app import COMMANDS, GROUPS, wanted


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("produce orders", {"produce"}),
        ("-b shm://x topic list", {"topic"}),
        ("consume topic", {"consume", "topic"}),
        ("topic --help", {"topic"}),
        ("version", {"version"}),
        ("--help", None),
        ("-h topic", None),
        ("", None),
        ("nosuch", None),
    ],
)
def test_only_what_the_line_names_is_loaded(line, names):
    assert wanted(line.split()) == names


def test_help_shows_every_command():
    for line in (["--help"], ["-h", "topic"]):
        shown = call_cli(*line)
        assert shown.code == 0
        words = {text.split()[0] for text in shown.lines if text.startswith("  ") and text.strip()}
        assert {*COMMANDS, *GROUPS, "version", "bench"} <= words


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS, "version"])
def test_every_command_has_help_of_its_own(name):
    shown = call_cli(name, "--help")
    assert shown.code == 0
    assert shown.out.decode().strip().startswith(f"Usage: penstock {name}")


@pytest.mark.parametrize("line", [["version"], ["topic", "--help"]])
def test_a_command_loads_neither_its_neighbours_nor_numpy(line):
    program = f"import sys; from penstock.cli import main; main({line!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True
    )
    loaded = set(done.stdout.decode().splitlines()[-1].split())
    assert "penstock.cli.command" in loaded
    assert not loaded & {"numpy", "penstock.cli.produce", "penstock.cli.demo", "penstock.cli.logs"}
