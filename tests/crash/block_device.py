"""A disk whose power can be cut: an ext4 file system in a file, mounted over a loop device.

`cut` asks ext4 to stop at once, its journal not written: what was not synced before is gone, as
after a power cut of a disk without a battery. Needs root and loop devices.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from cleanup_commands import Afterwards

from penstock.testing import wait_until

IMAGE_BYTES = 256 << 20
_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_LOOP_SET_STATUS64, _LOOP_GET_STATUS64 = 0x4C04, 0x4C05
_LOOP_INFO_BYTES, _LOOP_SIZE_LIMIT_AT = 232, 32
LOOPS = Path("/sys/block")
BACKING = "loop*/loop/backing_file"
_REMOVE = "import sys; from penstock.testing import remains; remains.remove(sys.argv[1])"
"""A node on the disk and its shared memory, while the disk still tells of it."""


def why_not() -> str | None:
    """What this machine lacks; None if it has all."""
    if os.geteuid():
        return "mounting needs root"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    return f"no {', '.join(missing)} here" if missing else None


class Device:
    """Mounted from the start, in `folder` or over the folder `at`, with what is in that; use as a
    context manager."""

    def __init__(self, folder: Path, at: Path | None = None) -> None:
        self._image = folder / "disk.img"
        self.mounted_at = folder / "disk" if at is None else at
        self.mounted_at.mkdir(exist_ok=at is not None)
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        place = shlex.quote(str(self.mounted_at))
        nodes = f"{sys.executable} -c '{_REMOVE}' {place}"
        # A process that begins in a namespace of its own (`ip netns exec`) gets a copy of every
        # mount, and would keep the file system and its loop device: below a shared mount what
        # becomes unmounted here becomes so there.
        _run("mount", "--bind", str(self.mounted_at), str(self.mounted_at))
        self._end = Afterwards(f"umount -l {place}; umount -l {place}", killed=nodes)
        _run("mount", "--make-shared", str(self.mounted_at))
        before = {each.name: each.read_bytes() for each in self.mounted_at.iterdir()}
        self.mount()
        (self.mounted_at / "lost+found").rmdir()
        for name, data in before.items():
            (self.mounted_at / name).write_bytes(data)

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mounted_at))

    def cut(self) -> None:
        """The power is gone; every call to the disk fails from now on."""
        fd = os.open(self.mounted_at, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def fail(self) -> None:
        """All but its first MiB is an error (EIO) from now on, where it is not in memory."""
        (name,) = (path.parts[3] for path in LOOPS.glob(BACKING)
                   if _backing(path) == str(self._image))  # fmt: skip
        status = bytearray(_LOOP_INFO_BYTES)
        fd = os.open(f"/dev/{name}", os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _LOOP_GET_STATUS64, status)
            struct.pack_into("=Q", status, _LOOP_SIZE_LIMIT_AT, 1 << 20)
            fcntl.ioctl(fd, _LOOP_SET_STATUS64, status)
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Once nobody has a file of it open any more, and the kernel has let go of it: a mount that
        came before would find the old file system, which is shut down, on the old loop device."""
        wait_until(self._try_unmount, 20.0, "the disk to be free")
        wait_until(self._is_released, 20.0, "the loop device to be released")

    def _try_unmount(self) -> bool:
        return subprocess.run(["umount", self.mounted_at], capture_output=True).returncode == 0

    def _is_released(self) -> bool:
        return not any(_backing(path) == str(self._image) for path in LOOPS.glob(BACKING))

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.now()


def _backing(path: Path) -> str:
    """The file behind a loop device; empty where there is none any more."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
