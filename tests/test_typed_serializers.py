"""Pyright sees the types of records as mypy does, which reads the sample in `make check`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("typed_serializers.py")


def test_pyright_refuses_the_lines_that_mypy_refuses(tmp_path):
    program = shutil.which("pyright") or shutil.which("basedpyright")
    if program is None:
        pytest.skip("pyright is not installed: pip install basedpyright")
    lines = SAMPLE.read_text().splitlines()
    refused = {number for number, line in enumerate(lines) if "# type: ignore" in line}
    copy = tmp_path / SAMPLE.name
    copy.write_text("\n".join(line.partition("# type: ignore")[0] for line in lines))
    source = json.dumps({"extraPaths": [str(SAMPLE.parents[1] / "src")]})
    (tmp_path / "pyrightconfig.json").write_text(source)
    done = subprocess.run(
        [program, "--level", "error", "--outputjson", "--pythonpath", sys.executable, str(copy)],
        capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {each["range"]["start"]["line"] for each in found} == refused, done.stdout
    assert refused
