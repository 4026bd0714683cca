"""Python in a mount namespace of its own, where a test may mount what is too small."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from crash.node_under_test import environment


def run_behind(prepare: str, script: str, argument: object, timeout: float) -> str:
    """What `script` (code, with one argument) prints after the shell commands of `prepare`.

    Skips the test where this user may make no such namespace; AssertionError if anything fails.
    """
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no mount namespace")
    command = f'{prepare} && exec {sys.executable} -c "$SCRIPT" {argument}'
    done = subprocess.run(
        [*unshare, "sh", "-c", command],
        env={**environment(), "SCRIPT": script}, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
