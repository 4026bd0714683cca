"""The disk whose power can be cut: what the tests on it rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from crash import block_device
from crash.block_device import Device

pytestmark = pytest.mark.skipif(
    block_device.why_not() is not None, reason=str(block_device.why_not())
)


def test_a_disk_is_free_though_a_mount_namespace_began_while_it_was_mounted(tmp_path: Path) -> None:
    """As `ip netns exec` makes one for each process of tests that run beside this one."""
    with Device(tmp_path) as disk:
        (disk.mounted_at / "synced").write_text("there")
        with subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-c", "echo begun; read -r _"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other:  # fmt: skip
            assert other.stdout is not None
            assert other.stdout.readline() == b"begun\n"
            disk.unmount()
            disk.mount()
            assert (disk.mounted_at / "synced").read_text() == "there"
            other.communicate(b"\n", timeout=45)
