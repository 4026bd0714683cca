"""What the fork server starts is as if it were spawned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "forking_program.py"


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ, "DROPPED": "a secret", "KEPT": "1", "PYTHONPATH": str(PROGRAM.parent),
    }  # fmt: skip
    source = os.environ.get("PYTHONPATH")
    if source:
        variables["PYTHONPATH"] += os.pathsep + source
    return subprocess.run(
        ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", sys.executable, PROGRAM],
        env=variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_helper_is_a_child_in_a_session_with_its_own_command_line(results):
    *_, text = results["returns"]
    seen = json.loads(text)
    assert seen["parent"] == results["me"]
    assert seen["session"]
    assert seen["words"][:4] == [sys.executable, "-m", "forking_program", "returns"]
    assert "KEPT=1" in seen["variables"]
    assert not any(name.startswith("DROPPED") for name in seen["variables"])


def test_a_helper_has_the_descriptors_that_it_was_given_and_no_others(results):
    *_, text = results["returns"]
    seen = json.loads(text)
    given = {int(word) for word in seen["words"][4:6]}
    assert seen["stdin"] == os.devnull
    listing = 1
    assert len(set(seen["open"]) - {0, 1, 2} - given) == listing
    assert given < set(seen["open"])


def test_a_helper_may_have_numbers_over_the_limit_that_the_node_began_with(results, done):
    assert results["has a high number"] == 0, done.stderr


def test_a_helper_ends_as_an_interpreter_does(results, done):
    assert results["returns"][:2] == [7, 7]
    assert results["leaves"][:2] == [1, 1]
    assert "a last word" in done.stderr
    assert results["fails"][:2] == [1, 1]
    assert "ValueError: a fault" in done.stderr
    assert results["joins"] == [0, 0, "joined"], "threads are waited for"
    assert results["is killed"][0] == -9


def test_what_it_cannot_fork_is_spawned(results, done):
    assert results["beside a thread"] == 0
    assert results["other"] == 3
    assert results["spawned"] == [1, 1, ""]
    assert "so helper processes start slower" in done.stderr
