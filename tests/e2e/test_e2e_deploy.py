"""What runs Penstock in containers: what it says is what this version takes, and its keys fit.

No container runs here. docs/guide/containers.md says how the image was tried.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_runner import cli_process
from documented_commands import LISTED, shown_in
from guide_blocks import ROOT
from node_helpers import eventually
from quorum_fixture import free_port

DEPLOY = ROOT / "deploy"
FILES = ["Dockerfile", "compose.yaml", "compose-cluster.yaml"]


def make_keys(*folders: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [DEPLOY / "make-keys", *folders], env={**os.environ, "PATH": programs}, check=True,
        capture_output=True, timeout=45,
    )  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_image_has_the_version_of_this_package(name: str) -> None:
    assert set(re.findall(r"penstock:([\d.]+)", (DEPLOY / name).read_text())) == {
        version("penstock")
    }


def test_every_broker_is_started_by_a_command_that_is_read() -> None:
    assert [len(list(shown_in(DEPLOY / name))) for name in FILES] == [1, 1, 3]


def test_what_the_image_is_built_of_is_there() -> None:
    listed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    wanted = [line.removeprefix("!") for line in listed if line.startswith("!")]
    assert wanted
    assert [name for name in wanted if not (ROOT / name).exists()] == []


def test_brokers_of_a_cluster_get_the_same_keys_once(tmp_path: Path) -> None:
    out, *data = (tmp_path / name for name in ("keys", "1", "2", "3"))
    for folder in (out, *data):
        folder.mkdir(mode=0o700)
    make_keys(out, *data)
    key = (out / "app.key").read_bytes()
    make_keys(out, *data)
    assert (out / "app.key").read_bytes() == key
    names = ["cluster.key", "keys/server.json", "keys/authorized/app.json"]
    for other in data[1:]:
        assert filecmp.cmpfiles(data[0], other, names, shallow=False)[0] == names
        assert {(other / name).stat().st_mode & 0o777 for name in names} == {0o600}


def test_the_node_of_the_image_is_healthy_by_its_own_check(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    [told] = (found[1] for line in text.splitlines() if (found := LISTED.match(line)))
    [check] = re.findall(r'CMD \["python3", "-c", (".*")\]', text)
    data, port = tmp_path / "data", f"127.0.0.1:{free_port()}"
    make_keys(tmp_path, data)
    words = json.loads(told.replace("127.0.0.1:9641", port).replace(":9640", ":0"))
    words[words.index("/var/lib/penstock")] = str(data)

    def is_healthy() -> bool:
        code = json.loads(check).replace("127.0.0.1:9641", port)
        return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0

    assert not is_healthy()
    with cli_process(*words) as process:
        eventually(is_healthy, "health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(45) == 0
