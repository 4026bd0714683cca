"""How the suite is spread when its processes die: a small suite with the scheduler of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import serial_scheduler

CONFTEST = """
import os, time
from pathlib import Path
import serial_scheduler

HERE = Path(__file__).parent

def wait_for(name):
    deadline = time.monotonic() + 60
    while not (HERE / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.01)

def die_once(name):
    if not (HERE / name).exists():
        (HERE / name).touch()
        os._exit(1)

def pytest_collection_modifyitems():
    me = os.environ.get("PYTEST_XDIST_WORKER", "")
    (HERE / me).touch()
    if me == "gw2":
        wait_for("gw3")  # it has not collected when the next one dies, nor when that is replaced

def pytest_xdist_make_scheduler(config, log):
    return serial_scheduler.TwoStages(config, log)
"""
FIRST = "from conftest import die_once\ndef test_first(): die_once('first')\n"
SECOND = (
    "from conftest import die_once, wait_for\n"
    "def test_second(): wait_for('gw2'); die_once('second')\n"
)


def test_two_processes_that_die_one_after_the_other_are_replaced(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_a.py": FIRST, "test_b.py": SECOND}
    files |= {f"test_{letter}.py": f"def test_{letter}(): pass\n" for letter in "cdef"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tests = Path(serial_scheduler.__file__).parent
    done = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider"],
            *["-o", f"pythonpath={tests}", "--rootdir", str(tmp_path), str(tmp_path)],
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    # Who died is told, and what they left is run by others.
    assert "2 failed, 6 passed" in done.stdout, done.stdout
