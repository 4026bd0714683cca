"""Whoever starts the tests in the background, or by `nohup`, gets the same from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal, subprocess, ignored_signals
ignored_signals.catch_ignored()
signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGHUP)
for name in ("INT", "HUP"):
    print(subprocess.run(["sh", "-c", f"kill -{name} $$"]).returncode)
"""


def test_programs_end_by_signals_that_the_run_ignores() -> None:
    done = subprocess.run(
        ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["-2", "-1"]
