"""Folders of single modules lie in memory. A test that counts what was synced, or that cuts the
power, asks the storage what it was told: how long a device takes for it changes nothing. Whole
nodes, clusters and their crashes (`e2e`, `cluster`, `crash`) have theirs on a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cleanup_commands import Afterwards

MEMORY = Path("/dev/shm")
ROOM_MIN = 1 << 30


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder there, or on the disk where there is too little of it."""
    if shutil.disk_usage(MEMORY).free < ROOM_MIN:
        yield tmp_path_factory.mktemp("disk")
        return
    folder = Path(tempfile.mkdtemp(prefix="tests-", dir=MEMORY))
    afterwards = Afterwards(f"rm -rf {folder}")
    yield folder
    afterwards.now()


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
