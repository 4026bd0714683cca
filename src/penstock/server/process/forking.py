"""Forks a process that becomes a command, as a child of the one that asked for it.

Owns all that makes a forked process the same as one that was spawned: its parent,
command line, environment, descriptors, and the end of the interpreter. Knows no commands.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.ipc.channel import close_fds

_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_CHILD_SUBREAPER = 35, 14, 36


def adopt_orphans() -> None:
    """Have orphans among this process's descendants become its children. Raises OSError."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some begin, it hides ends
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def fork_for_adoption(become: Callable[[], int], tell: Callable[[int], None]) -> None:
    """Fork a process that does `become`, and ends with what that returns. It is an orphan, and so
    the child of the nearest ancestor that adopts them. `tell` says its pid to that one. It does
    nothing before both is done, nor where `tell` raises. Raises OSError."""
    go, say_go = os.pipe()
    number, say_number = os.pipe()
    try:
        between = os.fork()
        if not between:
            _fork_on(become, go, say_go, number, say_number)
        os.close(say_number)
        say_number = -1
        told = os.read(number, 32)
        os.waitpid(between, 0)
        if not told:
            raise BlockingIOError(0, "a second fork was refused")
        tell(int(told))
        os.write(say_go, b"!")
    finally:
        close_fds([fd for fd in (go, say_go, number, say_number) if fd >= 0])


def _fork_on(
    become: Callable[[], int], go: int, say_go: int, number: int, say_number: int
) -> NoReturn:
    status = 1
    try:
        if pid := os.fork():
            os.write(say_number, b"%d" % pid)
        else:
            close_fds([say_go, number, say_number])
            said = os.read(go, 1)
            os.close(go)
            status = become() if said else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def place(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give these descriptors those numbers, and no others."""
    moved, passing = [], []
    for fd in fds:
        while (copy := os.dup(fd)) in numbers:
            passing.append(copy)
        moved.append(copy)
    close_fds([*fds, *passing])
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
    close_fds(moved)


def status_of(main: Callable[[], object]) -> int:
    """Run it, and what an interpreter runs at its end; the exit status."""
    try:
        status = main()
    except SystemExit as leaving:
        status = leaving.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of the kernel."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "start_code", "end_code", "start_data", "end_data", "start_brk", "brk",
                "start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv",
            )
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


_shown: ctypes.Array[ctypes.c_char] | None = None
"""Shown by the kernel for as long as this process lives."""


def show(command: Sequence[str]) -> bool:
    """Have this process's command line be that, for `ps` and for who looks for a folder's
    processes, and its environment what it is now. False: this kernel cannot do that."""
    global _shown
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(b"%b=%b\0" % pair for pair in os.environb.items())
    shown = ctypes.create_string_buffer(words + variables, len(words) + len(variables))
    at = ctypes.addressof(shown)
    middle, end = at + len(words), at + len(shown)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb", buffering=0) as file:
        rest = file.read().rpartition(b")")[2].split()  # from the third field of proc(5) on
    code_data_brk = [int(rest[field - 3]) for field in (26, 27, 45, 46, 47)]
    stack = int(rest[28 - 3])
    found = _MemoryMap(
        *code_data_brk, libc.sbrk(0), stack, at, middle, middle, end, 0, 0, 0xFFFFFFFF
    )
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(found), ctypes.sizeof(found), 0):
        return False
    _shown = shown
    return True
