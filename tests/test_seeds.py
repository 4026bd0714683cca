"""Random tests derive from the seed of the day, and a run says which that is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from seeds import seed_of, seed_of_day

TESTS = Path(__file__).resolve().parent
UNSEEDED = {"quorum_fixture.py": "which free ports brokers get"}
"""Files that may draw without a seed, and what they draw."""

PROGRAM = """
from hypothesis import core
from seeds import seed_of

def test_seeded():
    print("hypothesis draws by", core.global_force_seed)
    seed_of("raft")
"""


def test_a_test_has_a_seed_of_its_own_by_the_day(monkeypatch):
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)
    drawn = {}
    for day in ("20260731", "20260801"):
        monkeypatch.setenv("PENSTOCK_DAY", day)
        assert seed_of_day() == int(day)
        drawn[day] = [seed_of("raft"), seed_of("cluster"), seed_of("raft")]
        assert drawn[day][0] == drawn[day][2] != drawn[day][1]
    assert not set(drawn["20260731"]) & set(drawn["20260801"])
    monkeypatch.setenv("PENSTOCK_SEED", "4711")
    assert seed_of("raft") == 4711


def test_a_run_tells_the_seed_of_the_day_and_draws_by_it(tmp_path, monkeypatch):
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_program.py").write_text(PROGRAM)
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PENSTOCK_DAY", "20260731")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]))
    done = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"],
            *["--rootdir", str(tmp_path), str(tmp_path)],
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed of the day: PENSTOCK_DAY=20260731 " in done.stdout
    assert f"raft: PENSTOCK_SEED={seed_of('raft')}" in done.stdout
    assert "hypothesis draws by 20260731\n" in done.stdout


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("random.SystemRandom().random()", True),
        ("random.Random()", True),
        ("random.choice([1])", True),
        ("random.Random(1).choice([1])", False),
        ("sim.random.choice([1])", False),
    ],
)
def test_a_draw_without_a_seed_is_seen(line, is_found):
    assert bool(unseeded(line)) == is_found


def unseeded(text: str) -> list[int]:
    """The lines that draw from the module's own generator, or make one without a seed."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            is_module = isinstance(of, ast.Name) and of.id == "random"
            if is_module and (node.func.attr != "Random" or not node.args):
                found.append(node.lineno)
    return found


def test_no_test_draws_without_a_seed():
    texts = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    assert len(texts) > 300
    drawing = {p.name for p, text in texts.items() if "import random\n" in text and unseeded(text)}
    assert drawing == set(UNSEEDED)
