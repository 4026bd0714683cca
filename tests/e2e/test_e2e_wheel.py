"""The wheel in an environment that has nothing but what it asks for, and pytest: no checkout and no
extra is near. Skipped where no package index answers: the wheel's dependencies come from one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guide_blocks import ROOT

from penstock import __version__
from penstock.testing import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local("the node is this host's"),
    pytest.mark.timeout(600),
]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
SAMPLE = """
from penstock.testing import assert_records, produce

def test_a_crash_loses_nothing(penstock_broker):
    topic = penstock_broker.create_topic()
    produce(penstock_broker, topic, [b"before"])
    penstock_broker.kill_writer(topic)
    produce(penstock_broker, topic, [b"after"])
    assert_records(penstock_broker, topic, [b"before", b"after"])
"""


class Bare:
    """The environment, and a home in which its programs run."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.bin = folder / "venv" / "bin"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
        )
        kept = ("PATH", "LANG", "TMPDIR")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home)}

    def run(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]], input=stdin, capture_output=True, text=True,
            cwd=self.home, env=self.environment, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def serve(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self.bin / "penstock"), "serve", "--format", "json", "-q"],
            stdout=subprocess.PIPE, cwd=self.home, env=self.environment,
        )  # fmt: skip


def build(folder: Path) -> Path:
    """The wheel, of a copy of the sources, beside which it leaves no `build/`."""
    source = folder / "source"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    subprocess.run([*PIP, "wheel", "--no-deps", "-w", str(folder), str(source)], check=True)
    assert not (source / "build").exists()
    [wheel] = folder.glob("penstock-*.whl")
    return wheel


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    folder = tmp_path_factory.mktemp("bare")
    index = [*PIP, "download", "--no-deps", "--retries", "0", "--timeout", "5", "-d", str(folder)]
    found = subprocess.run(
        [*index, "iniconfig"], capture_output=True, text=True, timeout=60, check=False
    )
    if found.returncode != 0:
        pytest.skip(f"no package index answers: {found.stderr.strip().splitlines()[-1:]}")
    made = Bare(folder)
    python = str(made.bin / "python")
    subprocess.run(
        [*PIP, "--python", python, "install", "--no-compile", str(build(folder)), "pytest"],
        check=True,
    )
    return made


def test_the_command_is_there_and_says_its_version(bare: Bare) -> None:
    assert bare.run("penstock", "--version") == f"penstock {__version__}\n"
    where = "import penstock, penstock.core; print(penstock.__file__, penstock.core.__file__)"
    assert bare.run("python", "-c", where).count(str(bare.bin.parent)) == 2


def test_its_fixture_is_there_for_tests(bare: Bare) -> None:
    (bare.home / "test_sample.py").write_text(SAMPLE)
    said = bare.run("pytest", "-q", "-p", "no:cacheprovider", "test_sample.py")
    assert "1 passed" in said


def test_a_node_takes_a_record_and_gives_it_back(bare: Bare) -> None:
    node = bare.serve()
    try:
        assert node.stdout is not None
        assert b'"event":"ready"' in node.stdout.readline()
        bare.run("penstock", "topic", "create", "orders")
        bare.run("penstock", "produce", "orders", stdin="4 apples\n")
        assert bare.run("penstock", "consume", "orders") == "4 apples\n"
        node.send_signal(signal.SIGTERM)
        assert node.wait(45) == 0
        wait_until(lambda: not list(bare.home.glob("**/attach.sock")), 10, "no socket is left")
    finally:
        node.kill()
        node.wait()
