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


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("orders", "name the BROKERS, or say how many"),
        ("orders 0 1,2 --replication-factor 2", "name the BROKERS, or say how many"),
        ("orders 0 1,x", "'1,x' are no brokers"),
        ("orders some 1,2", "'some' is no partition"),
        ("orders 1234567890 1,2", "'1234567890' is no partition"),
    ],
)
def test_a_reassignment_that_says_nothing_is_refused_before_anybody_is_asked(line, complaint):
    ran = call_cli("cluster", "reassign", *line.split())
    assert ran.code != 0
    assert complaint in ran.err


def test_an_option_of_kafkas_commands_is_answered_with_ours():
    ran = call_cli("consume", "orders", "--from-beginning")
    assert ran.code == 2
    assert "what Kafka calls --from-beginning is here -o start, where consume begins any" in ran.err
