"""A machine that is not x86-64: no node, no shared memory, and a remote client that works."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from crash.node_under_test import environment

from penstock.testing import Broker

OTHER = ["setarch", "i686"]
"""What this runs finds another machine in `uname`. The processor stays the same."""
RUNS = """
import sys
import penstock

with penstock.connect(sys.argv[1], transport=sys.argv[2], timeout=20) as client:
    with client.producer() as producer:
        print(producer.send_and_wait("t", b"from afar").offset)
    with client.consumer("t", follow=False) as consumer:
        print([record.value for record in consumer])
"""
pytestmark = pytest.mark.skipif(
    shutil.which("setarch") is None or subprocess.run([*OTHER, "true"]).returncode != 0,
    reason="no setarch here",
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OTHER, sys.executable, *command],
        capture_output=True, text=True, env=environment(), timeout=45,
    )  # fmt: skip


@pytest.mark.local("says how the client reaches its node")
def test_shared_memory_is_refused_and_tcp_works():
    with Broker(listen=True) as broker:
        broker.create_topic("t")
        refused = run("-c", RUNS, broker.url, "auto")
        assert refused.returncode == 1
        assert "AttachRefusedError: this machine is i686" in refused.stderr
        assert "tcp://HOST:PORT" in refused.stderr
        for way in ("tcp", "auto"):
            served = run("-c", RUNS, broker.tcp_url, way)
            assert served.returncode == 0, served.stderr
        assert served.stdout.splitlines() == ["1", "[b'from afar', b'from afar']"]


@pytest.mark.local("starts no node")
def test_no_node_starts(tmp_path):
    refused = run("-m", "penstock.cli", "serve", "--data", str(tmp_path / "data"))
    assert refused.returncode != 0
    assert "this machine is i686" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()
