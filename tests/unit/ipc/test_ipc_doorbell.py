"""Doorbells: rings, waits, watched descriptors, the wait and wake protocol, backoff, imports."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import threading
import time
import uuid

import pytest

from penstock.core.errors import ClosedError, ResourceLimitError
from penstock.ipc import doorbell as doorbell_module
from penstock.ipc import shm
from penstock.ipc.doorbell import Backoff, Doorbell, fence

WAIT = 45.0
ROUNDS = 20_000

# One side of a ping-pong by the protocol that doorbell.py documents. Prints rounds, misses, sleeps.
PLAYER = """
import sys
from penstock.ipc import shm
from penstock.ipc.doorbell import Doorbell, fence

name, own_fd, other_fd, side, rounds, bound = sys.argv[1], *map(int, sys.argv[2:])
q = shm.Region.of_fd(shm.open_existing(name, writable=True)).q
own, other = Doorbell.from_fd(own_fd), Doorbell.from_fd(other_fd)
my_data, its_data = (0, 8) if side == 0 else (8, 0)  # words in cache lines of their own
my_ticket, its_ticket = (16, 24) if side == 0 else (24, 16)
ticket = rung = missed = sleeps = 0

def publish(number):
    global rung
    q[my_data] = number
    fence()
    seen = q[its_ticket]
    if seen and seen != rung:
        other.ring()
        rung = seen

for number in range(1, rounds + 1):
    if side == 0:
        publish(number)
    for _ in range(number % 40):  # meet the other side in every phase of its falling asleep
        if q[its_data] >= number:
            break
    while q[its_data] < number and not missed:
        ticket += 1
        q[my_ticket] = ticket
        fence()
        if q[its_data] < number:
            sleeps += 1
            if not own.wait(bound):
                missed += 1
        q[my_ticket] = 0
    if missed:
        break
    if side == 1:
        publish(number)
print(number, missed, sleeps)
"""

# Both sides store and then look at the other's store at the same moment, again and again. With no
# call to `fence` between the two lines, hundreds of 100,000 rounds are missed by both.
STORE_AND_LOOK = """
import os, sys, time
from penstock.ipc import shm
from penstock.ipc.doorbell import fence

def play(q, side, rounds, bound):
    deadline = time.monotonic() + bound
    my_start, its_start, mine, its = (0, 8, 16, 24) if side == 0 else (8, 0, 24, 16)
    seen = bytearray(rounds)
    for number in range(1, rounds + 1):
        delay = number % 8 if side == 0 else (number >> 3) % 8  # every phase against every phase
        spins = 0
        if side == 0 and time.monotonic() > deadline:  # a busy machine: this round is the last
            q[32] = number
        q[my_start] = number
        while q[its_start] < number:
            spins += 1
            if spins > 1000:  # the other side may need this core
                os.sched_yield()
        for _ in range(delay):
            pass
        q[mine] = number
        fence()
        seen[number - 1] = q[its] >= number
        if q[32] == number:
            break
    sys.stdout.buffer.write(seen[:number])

name, _, _, side, rounds, bound = sys.argv[1], *map(int, sys.argv[2:])
play(shm.Region.of_fd(shm.open_existing(name, writable=True)).q, side, rounds, bound)
"""


@pytest.fixture
def bell():
    bell = Doorbell()
    yield bell
    bell.close()


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def two_players(code, rounds, bound):
    """Run both sides of `code` to their end; what each of them printed."""
    name = shm.object_name(uuid.uuid4().hex, "hammer")
    os.close(shm.create(name, 4096))
    bells = [Doorbell(), Doorbell()]
    try:
        players = [
            subprocess.Popen(
                [sys.executable, "-c", code, name, str(bells[side].fileno()),
                 str(bells[1 - side].fileno()), str(side), str(rounds), str(bound)],
                env=environment(), pass_fds=[bell.fileno() for bell in bells],
                stdout=subprocess.PIPE,
            )
            for side in (0, 1)
        ]  # fmt: skip
        try:
            results = [player.communicate(timeout=60)[0] for player in players]
        finally:
            for player in players:
                player.kill()
                player.wait()
    finally:
        shm.unlink(name)
        for bell in bells:
            bell.close()
    assert [player.returncode for player in players] == [0, 0]
    return results


@pytest.mark.rule(13)
def test_rule_13_a_fence_lets_at_least_one_side_see_the_other():
    seen = two_players(STORE_AND_LOOK, 5 * ROUNDS, 3)
    assert len(seen[0]) > 1000
    assert sum(1 for first, second in zip(*seen, strict=True) if not first and not second) == 0


@pytest.mark.rule(13)
def test_rule_13_no_wake_is_missed_in_20000_rounds():
    # A miss costs the whole bound, so it cannot hide.
    for result in two_players(PLAYER, ROUNDS, 10):
        rounds, missed, sleeps = map(int, result.split())
        assert (rounds, missed) == (ROUNDS, 0)
        assert sleeps > 0, "nobody ever slept, so nothing was tested"


def test_a_ring_ends_a_wait_once_however_often_it_was_rung(bell):
    for _ in range(5):
        bell.ring()
    assert bell.wait(WAIT) is True
    assert bell.wait(0) is False


def test_a_ring_of_another_process_ends_an_unbounded_wait(bell):
    code = """
import sys
from penstock.ipc.doorbell import Doorbell
Doorbell.from_fd(int(sys.argv[1])).ring()
"""
    command = [sys.executable, "-c", code, str(bell.fileno())]
    with subprocess.Popen(command, env=environment(), pass_fds=[bell.fileno()]):
        assert bell.wait(None) is True


def test_a_wait_lasts_at_least_its_bound(bell):
    began = time.monotonic()
    assert bell.wait(0.0304) is False
    assert time.monotonic() - began >= 0.0304


def test_the_fence_takes_a_lock_which_is_the_one_full_barrier_of_plain_python(monkeypatch):
    taken = []

    class Lock:
        def acquire(self) -> bool:
            taken.append(lock.acquire())
            return True

    lock = threading.Lock()
    monkeypatch.setattr(doorbell_module, "allocate_lock", Lock)
    fence()
    assert taken == [True]


def test_a_full_counter_rings_as_well(bell):
    os.eventfd_write(bell.fileno(), 2**64 - 2)
    bell.ring()
    assert bell.wait(0) is True
    assert bell.clear() is False


def test_an_event_loop_sees_it_readable_until_it_is_cleared(bell):
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    assert poll.poll(0) == []
    bell.ring()
    assert poll.poll(0) == [(bell.fileno(), select.POLLIN)]
    assert bell.clear() is True
    assert poll.poll(0) == []


def test_watched_descriptors_end_a_wait_and_are_named(bell):
    reader, writer = os.pipe()
    try:
        bell.watch(reader)
        assert bell.wait(0) is False
        assert bell.ready == []
        os.write(writer, b"x")
        assert bell.wait(WAIT) is True
        assert bell.ready == [reader]
        bell.ring()
        assert bell.wait(0) is True
        assert bell.ready == [reader]
        assert bell.clear() is False, "the ring was consumed by the wait beside it"
        os.read(reader, 1)
        assert bell.wait(0) is False
        assert bell.ready == []
        os.close(writer)
        writer = -1
        assert bell.wait(WAIT) is True, "the other end's death is an event too"
        bell.unwatch(reader)
        assert bell.wait(0) is False
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def test_a_closed_doorbell_refuses_and_leaks_nothing():
    before = descriptors()
    bell = Doorbell()
    assert not os.get_inheritable(bell.fileno())
    bell.close()
    bell.close()
    assert bell.fileno() == -1
    for use in (bell.ring, bell.clear, lambda: bell.wait(0)):
        with pytest.raises(ClosedError):
            use()
    assert descriptors() == before


def test_closing_it_in_another_thread_ends_a_wait_as_closed_and_not_as_broken():
    """A producer finds its node again and closes the old attachment while a caller waits on it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change in the middle of `wait`
    try:
        for _ in range(300):
            bell = Doorbell()
            closer = threading.Thread(target=bell.close)
            with pytest.raises(ClosedError):  # noqa: PT012 - whichever call meets it
                closer.start()
                while True:
                    bell.wait(0.001)
            closer.join()
    finally:
        sys.setswitchinterval(interval)


def test_a_descriptor_closed_behind_its_back_is_no_ring(bell):
    other = Doorbell.from_fd(os.dup(bell.fileno()))
    os.close(other.fileno())
    with pytest.raises(OSError, match="closed by somebody else"):
        other.wait(0)


def test_running_out_of_descriptors_names_the_limit(bell):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (bell.fileno() + 1, hard))
    try:
        with pytest.raises(ResourceLimitError, match="RLIMIT_NOFILE"):
            Doorbell()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.rule(13)
def test_rule_13_waits_grow_from_20_to_500_ms_while_idle_and_shrink_on_progress():
    backoff = Backoff()
    assert [round(backoff.bound() * 1000) for _ in range(7)] == [20, 40, 80, 160, 320, 500, 500]
    backoff.reset()
    assert backoff.bound() == 0.020


def test_the_plumbing_imports_nothing_slow():
    code = (
        "import sys; from penstock.ipc import shm, liveness, doorbell, channel, paths;"
        "print([m for m in ('asyncio', 'numpy', 'multiprocessing') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True,
                          text=True, check=True, timeout=30)  # fmt: skip
    assert done.stdout.strip() == "[]"
