"""Liveness of processes: pidfds, start times, boot ids, and this process's descriptor limit.

Owns the one answer to "is that process dead?". A pidfd tells of death (rule 7): a pid alone is
a number that the kernel gives away again, `kill(pid, 0)` calls zombies alive, and a stopped process
is not dead (rule 8). Never decides what follows from a death, never takes a failed look for one.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import select
import signal
from functools import cache
from typing import Final

from penstock.core.errors import AttachRefusedError, PenstockError, ResourceLimitError

logger = logging.getLogger("penstock.liveness")

PR_SET_PDEATHSIG: Final = 1
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def descriptor_limit_error(doing: str) -> ResourceLimitError:
    """Returns the error that every module of this floor raises on EMFILE and ENFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ResourceLimitError(
        f"out of file descriptors while {doing}: RLIMIT_NOFILE is {soft} (hard limit {hard}). "
        "Raise it with `ulimit -n`, `LimitNOFILE=` in a systemd unit or `--ulimit nofile=` for a "
        "container; if that limit is far away, the whole system's `fs.file-max` is reached"
    )


def raise_descriptor_limit() -> int:
    """Lift the soft RLIMIT_NOFILE to the hard one (rule 12); returns the soft limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (
            ValueError,
            OSError,
        ):  # a hard limit above fs.nr_open, or a sandbox: keep what we have
            return soft
    return hard


def end_with_parent(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send this signal to this process when `parent` dies, however it does. Whether
    that is its parent still: if not, no signal comes."""
    import ctypes  # few processes need it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0):
        logger.warning("prctl: %s", os.strerror(ctypes.get_errno()))
    return os.getppid() == parent


@cache
def boot_id() -> str:
    """This boot of the kernel. A pid and a start time mean nothing under another one."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat from the third (state) on; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise descriptor_limit_error(f"looking at process {pid}") from error
        raise
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of `pid` (field 22); None: there is no such process.

    With the pid and the boot id it names a process for good; a zombie still has one.
    """
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def state(pid: int) -> str | None:
    """R, S, D, T (stopped), t (traced), Z (zombie)...; None when there is no such process."""
    fields = _stat_fields(pid)
    return None if fields is None else fields[0].decode("ascii")


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a process that can be seen from here holds a lock on that file."""
    try:
        found = os.stat(path)
        with open("/proc/locks") as locks:
            fields = [line.split() for line in locks]
    except OSError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any(device in line for line in fields)


def open_pidfd(pid: int, expected_start: int | None = None) -> int:
    """A close-on-exec pidfd of the living process `pid`, checked after opening to be the expected.

    Raises ProcessLookupError when that process is gone (a zombie is gone) or the pid is another
    process's by now, and AttachRefusedError when the process cannot be seen from here, which is not
    the same as dead.
    """
    if pid <= 0:
        raise _invisible(pid)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise descriptor_limit_error(f"opening a pidfd of process {pid}") from error
        if error.errno == errno.ENOSYS:
            raise PenstockError(
                "this kernel has no pidfd_open: Linux 5.3 or newer is needed"
            ) from error
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):  # the last two: a thread's id
            raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from error
        raise
    try:
        # Reading it only now is what makes the check sound: had the pid been given away before the
        # open, the start time read here is the other process's or the pidfd says dead.
        found = start_time(pid)
        if is_dead(pidfd):
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is dead")
        if found is None:
            raise _invisible(pid)
        if expected_start is not None and found != expected_start:
            raise ProcessLookupError(
                errno.ESRCH,
                f"pid {pid} is another process now (started at tick {found}, not {expected_start})",
            )
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def _invisible(pid: int) -> AttachRefusedError:
    return AttachRefusedError(
        f"the peer process (pid {pid}) cannot be seen from here, so its death would go unnoticed: "
        "it runs in another pid namespace (a container) or /proc hides it. Connect by tcp://, or "
        "share the pid namespace (`docker run --pid=...`, `shareProcessNamespace: true`)"
    )


def is_dead(pidfd: int) -> bool:
    """Whether that process has ended. A zombie is dead; a stopped process is not."""
    return wait_dead(pidfd, 0.0)


def wait_dead(pidfd: int, timeout: float | None) -> bool:
    """Waits up to `timeout` seconds (None: without bound) for the end of that process."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for _, events in poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
        if events & select.POLLNVAL:  # a closed descriptor must never read as a death
            raise OSError(errno.EBADF, f"descriptor {pidfd} is not open")
        return True
    return False
