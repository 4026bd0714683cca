"""Who is alive: reused pids, zombies, stopped processes, and looks that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.core.errors import AttachRefusedError
from penstock.ipc import liveness

WAIT = 45.0


@pytest.fixture
def child():
    """A process that waits for ever, killed and reaped in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


@pytest.fixture
def pidfd(child):
    fd = liveness.open_pidfd(child.pid, liveness.start_time(child.pid))
    yield fd
    os.close(fd)


def start_of(process):
    start = liveness.start_time(process.pid)
    assert start is not None
    return start


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def become_zombie(process):
    """Kill it and wait for its end without reaping it."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def python(code, *args):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.rule(7)
def test_rule_7_a_reused_pid_is_not_the_process_that_had_it(child):
    start = start_of(child)
    os.close(liveness.open_pidfd(child.pid, start))
    before = descriptors()
    for other in (start - 1, start + 1):
        with pytest.raises(ProcessLookupError, match="another process"):
            liveness.open_pidfd(child.pid, other)
    assert descriptors() == before


@pytest.mark.rule(7)
def test_rule_7_a_zombie_is_dead(child, pidfd):
    start = start_of(child)
    assert not liveness.is_dead(pidfd)
    become_zombie(child)
    os.kill(child.pid, 0)  # this is what would call it alive
    assert liveness.state(child.pid) == "Z"
    assert liveness.start_time(child.pid) == start
    assert liveness.is_dead(pidfd)
    before = descriptors()
    with pytest.raises(ProcessLookupError, match="dead"):
        liveness.open_pidfd(child.pid, start)
    assert descriptors() == before


@pytest.mark.rule(7)
def test_rule_7_a_reaped_process_is_dead_for_good(child, pidfd):
    start = start_of(child)
    child.kill()
    child.wait()
    assert liveness.is_dead(pidfd)
    assert liveness.start_time(child.pid) is None
    assert liveness.state(child.pid) is None
    with pytest.raises(ProcessLookupError):
        liveness.open_pidfd(child.pid, start)


@pytest.mark.rule(7)
def test_rule_7_an_invisible_process_is_refused_and_not_called_dead():
    with pytest.raises(AttachRefusedError, match="tcp://"):
        liveness.open_pidfd(0)
    with pytest.raises(AttachRefusedError, match="namespace"):
        liveness.open_pidfd(0, 1)


@pytest.mark.rule(7)
def test_rule_7_a_thread_is_no_process():
    ids: list[int] = []
    done = threading.Event()
    known = threading.Event()

    def run():
        ids.append(threading.get_native_id())
        known.set()
        done.wait(WAIT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert known.wait(WAIT)
        with pytest.raises(ProcessLookupError):
            liveness.open_pidfd(ids[0])
    finally:
        done.set()
        thread.join()


@pytest.mark.rule(8)
def test_rule_8_stopped_is_not_dead(child, pidfd):
    start = start_of(child)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert liveness.state(child.pid) == "T"
    assert not liveness.is_dead(pidfd)
    assert not liveness.wait_dead(pidfd, 0.05)
    os.close(liveness.open_pidfd(child.pid, start))


@pytest.mark.rule(8)
def test_rule_8_a_stopped_process_is_killed_and_only_then_dead(child, pidfd):
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert liveness.wait_dead(pidfd, WAIT)
    assert liveness.is_dead(pidfd)
    assert child.wait() == -signal.SIGKILL


def test_a_wait_for_a_death_ends_with_it_or_at_its_bound(child, pidfd):
    began = time.monotonic()
    assert liveness.wait_dead(pidfd, 0.0308) is False
    assert time.monotonic() - began >= 0.0308
    child.stdin.close()  # it reads the end and leaves
    assert liveness.wait_dead(pidfd, WAIT) is True
    assert liveness.wait_dead(pidfd, None) is True


def test_a_closed_pidfd_is_an_error_and_not_a_death(child):
    fd = liveness.open_pidfd(child.pid)
    os.close(fd)
    with pytest.raises(OSError, match="not open"):
        liveness.is_dead(fd)


def test_a_pidfd_is_not_inherited(pidfd):
    assert not os.get_inheritable(pidfd)


def test_a_command_with_parentheses_and_spaces_does_not_shift_the_fields(child):
    code = """
import sys
open("/proc/self/comm", "w").write(sys.argv[1])
print("renamed", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, ") Z 1 (2) 3 ("]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as renamed:
        assert renamed.stdout is not None
        assert renamed.stdout.readline() == b"renamed\n"
        assert b") Z 1 (2) 3 (" in Path(f"/proc/{renamed.pid}/stat").read_bytes()
        assert liveness.state(renamed.pid) in ("R", "S")
        # Both began within this test, the child first.
        assert 0 <= start_of(renamed) - start_of(child) <= WAIT * os.sysconf("SC_CLK_TCK")
        renamed.kill()


def test_the_start_time_is_in_clock_ticks_since_boot(child):
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    age = uptime - start_of(child) / os.sysconf("SC_CLK_TCK")
    assert -1 < age < WAIT


def test_the_boot_id_is_the_kernels():
    assert liveness.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_running_out_of_descriptors_is_an_error_and_not_a_death(child):
    code = """
import os, resource, sys
from penstock.core.errors import ResourceLimitError
from penstock.ipc import liveness
pid, start = map(int, sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
highest = os.open("/dev/null", os.O_RDONLY)
for room in (0, 1):  # none for the pidfd; one for it and none to read /proc
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + room, hard))
    try:
        liveness.open_pidfd(pid, start)
    except ResourceLimitError as error:
        print(f"RLIMIT_NOFILE is {highest + 1 + room} " in str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
print(liveness.open_pidfd(pid, start) > highest)  # and nothing leaked on the way
"""
    assert python(code, child.pid, start_of(child)).splitlines() == ["True"] * 3


@pytest.mark.rule(12)
def test_rule_12_the_soft_descriptor_limit_is_raised_to_the_hard_one():
    code = """
import resource
from penstock.ipc import liveness
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
print(liveness.raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
print(liveness.raise_descriptor_limit())
"""
    assert python(code).split() == ["256", "256", "256", "256"]


def test_who_ends_with_its_parent_learns_whether_that_is_there_still():
    program = (
        "import os, signal\n"
        "from penstock.ipc.liveness import end_with_parent\n"
        "parent = os.getppid()\n"
        "print([end_with_parent(pid, signal.SIGKILL) for pid in (parent, os.getpid())])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, check=True
    )
    assert (said.stdout, said.stderr) == ("[True, False]\n", "")
