"""A writer and the cleaner load nothing that they do not need: what replaces one stands soon."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDLESS = {
    "asyncio", "email", "importlib.metadata", "multiprocessing", "numpy", "ssl", "zipfile", "zmq",
}  # fmt: skip


@pytest.mark.parametrize("process", ["writer", "cleaner"])
def test_a_process_of_the_data_path_loads_little(process: str) -> None:
    program = f"import sys, penstock.server.{process}.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "penstock.core.storage" in loaded
    assert loaded & NEEDLESS == set()
