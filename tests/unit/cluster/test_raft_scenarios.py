"""Raft by script, as `tests/testdata/raft` has it: what each command leads to, word by word.

`PENSTOCK_REWRITE=1` writes the scripts as the nodes behave now; read the difference before it is
committed. Figures are those of Ongaro and Ousterhout, In Search of an Understandable Consensus
Algorithm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import raft_script
from sim.raft_mutants import CommitsOlderTerms, ForgetsItsVote

SCRIPTS = raft_script.scripts(Path(__file__).resolve().parents[2] / "testdata" / "raft")
SCRIPTS_MIN = 30


def test_all_scripts_are_there():
    assert len(SCRIPTS) >= SCRIPTS_MIN


@pytest.mark.parametrize("name", SCRIPTS)
def test_scenario(name):
    raft_script.check(raft_script.run, SCRIPTS[name])


@pytest.mark.parametrize(
    ("name", "machine", "tells"),
    [
        ("figure-8", CommitsOlderTerms, '1 commits 1/1 "1", 2/2 "2"'),
        (
            "a-node-that-comes-back-does-not-vote-twice",
            ForgetsItsVote,
            "2 > 3 VoteReply term=1 granted",
        ),
    ],
)
def test_a_fault_that_needs_a_script_is_found(name, machine, tells):
    """The seeds of `tests/sim/test_sim_raft.py` meet it too rarely."""
    text = SCRIPTS[name].read_text()
    found = raft_script.run(text, machine)
    assert tells in found.splitlines()
    assert found != text
