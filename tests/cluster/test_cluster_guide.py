"""The guide's page on clusters is true: three brokers that its lines start do what it shows."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from guide_blocks import GUIDE, run_page
from quorum_fixture import PORTS

HERE = "127.0.0.1:"


def free_tens() -> int:
    """A number behind which, and behind the next one, 1 to 3 make a port that nobody has."""
    for tens in {port // 10 for port in PORTS}:
        with ExitStack() as held:
            try:
                for port in (10 * each + digit for each in (tens, tens + 1) for digit in (1, 2, 3)):
                    sock = held.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return tens
    raise AssertionError(f"somebody has ports of {min(PORTS)} to {max(PORTS)}")


@pytest.mark.timeout(240)
def test_the_blocks_of_the_page_do_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    tens = free_tens()
    url = "tcp://" + ",".join(f"{HERE}{tens}{digit}" for digit in (1, 2, 3))
    named = {
        f"{HERE}964": f"{HERE}{tens}",
        f"{HERE}965": f"{HERE}{tens + 1}",
        "tcp://10.0.0.1:9640,10.0.0.2:9640,10.0.0.3:9640": url,
        "/tmp/broker-": f"{tmp_path}/broker-",
    }
    run_page(GUIDE / "cluster.md", url, named)
