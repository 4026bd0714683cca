"""A folder of a run's own, where there is room for it, removed in the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.errors import BenchError


@contextmanager
def scratch_folder(parent: Path | None, bytes_needed: int) -> Iterator[Path]:
    """Makes a folder below `parent` (None: the system's folder for temporary files). Raises
    `BenchError`."""
    if parent is not None and not parent.is_dir():
        raise BenchError(f"--data {parent}: there is no such folder")
    where = parent if parent is not None else Path(tempfile.gettempdir())
    check_room(where, bytes_needed)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_room(folder: Path, bytes_needed: int) -> None:
    """Raises `BenchError` if the file system of `folder` has less free than the run will write."""
    free = shutil.disk_usage(folder).free
    if free < bytes_needed:
        raise BenchError(
            f"this run writes about {bytes_needed / 1e9:.1f} GB below {folder}, where "
            f"{free / 1e9:.1f} GB are free: name another folder by --data, or make the run smaller"
        )
