"""Share groups by script, as `tests/testdata/shares` has it: what each command leads to.

`PENSTOCK_REWRITE=1` writes the scripts as the machine behaves now; read the difference before it is
committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import share_script
from raft_script import check, scripts

SCRIPTS = scripts(Path(__file__).resolve().parents[2] / "testdata" / "shares")
SCRIPTS_MIN = 9


def test_all_scripts_are_there():
    assert len(SCRIPTS) >= SCRIPTS_MIN


@pytest.mark.parametrize("name", SCRIPTS)
def test_scenario(name):
    check(share_script.run, SCRIPTS[name])
