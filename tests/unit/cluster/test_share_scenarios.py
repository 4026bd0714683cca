"""Share groups by script, as `tests/testdata/shares` has it: what each command leads to.

`PENSTOCK_REWRITE=1` writes the scripts as the machine behaves now; read the difference before it is
committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import share_script
from raft_script import scripts

SCRIPTS = scripts(Path(__file__).resolve().parents[2] / "testdata" / "shares")
SCRIPTS_MIN = 9


def test_all_scripts_are_there():
    assert len(SCRIPTS) >= SCRIPTS_MIN


@pytest.mark.parametrize("name", SCRIPTS)
def test_scenario(name):
    text = SCRIPTS[name].read_text()
    found = share_script.run(text)
    if os.environ.get("PENSTOCK_REWRITE"):
        SCRIPTS[name].write_text(found)
    else:
        assert found.splitlines() == text.splitlines()
