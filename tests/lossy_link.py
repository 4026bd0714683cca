"""A line between two hosts on which packets get lost, come twice, late and out of order: by seed.

    host  t0 ──frames──> a process that holds both ends, decides, waits ──frames──> t0  other host

Both ends are TAP devices, so this works in every kernel that has tun, where others would need
netem. The process speaks JSON lines: in, how rough the line is from here on; out, what became of
frames so far. It ends with its input, and the devices with it. Owns the devices and the decisions;
never decides when the line is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

TUNSETIFF: Final = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_MAX: Final = 65_536
BATCH: Final = 64
"""Frames of one end before it is the other's turn."""
WAITING_MAX: Final = 20_000
"""Frames that wait at one time; more are lost."""
READY_WITHIN: Final = 45.0


@dataclass(frozen=True, slots=True)
class Roughness:
    """What befalls packets of both directions. Shares are of packets, times in seconds."""

    lost: float = 0.0
    bursts: float = 0.0
    """At this share of packets a while begins in which all of them are lost."""
    burst_max: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    """This share is overtaken by those that are not late."""
    late_max: float = 0.0
    delay: float = 0.0
    """Of all."""

    def __str__(self) -> str:
        said = (f"{name} {value:.3f}" for name, value in asdict(self).items() if value)
        return ", ".join(said) or "smooth"


class Fate:
    """Decides for the packets of one direction."""

    def __init__(self, roughness: Roughness, rng: random.Random) -> None:
        self._rough = roughness
        self._rng = rng
        self._lost_until = 0.0

    def delays(self, now: float) -> list[float]:
        """Of each copy of a packet that arrives; none is lost."""
        rough, rng = self._rough, self._rng
        if now < self._lost_until or rng.random() < rough.lost:
            return []
        if rng.random() < rough.bursts:
            self._lost_until = now + rng.uniform(0.0, rough.burst_max)
            return []
        copies = 2 if rng.random() < rough.twice else 1
        return [
            rough.delay + (rng.uniform(0.0, rough.late_max) if rng.random() < rough.late else 0.0)
            for _ in range(copies)
        ]


class RoughLine:
    """The process, as its parent sees it. OSError where there can be none."""

    def __init__(self, before: Sequence[str], names: tuple[str, str]) -> None:
        """`before` goes before the command; the devices are made where that leads."""
        script = str(Path(__file__).resolve())
        self._process = subprocess.Popen(
            [*before, sys.executable, "-I", script, *names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def set(self, roughness: Roughness, seed: int) -> Counter[str]:
        """From here on. Gives what became of packets so far."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"seed": seed, **asdict(roughness)}).encode() + b"\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> Counter[str]:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        if not select.select([stdout], [], [], READY_WITHIN)[0]:
            raise OSError(f"the rough line says nothing for {READY_WITHIN:g} s")
        line = stdout.readline()
        if not line:
            last = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"the rough line ended: {last}")
        return Counter(json.loads(line))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(READY_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(READY_WITHIN)


# --- the process ---
class Relay:
    """Frames between two devices, each when it is due."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self._other = dict(zip(ends, reversed(ends), strict=True))
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._latest = dict.fromkeys(ends, 0)
        self._tally: Counter[str] = Counter()
        self.set(Roughness(), 0)

    def set(self, roughness: Roughness, seed: int) -> None:
        self._fates = {
            end: Fate(roughness, random.Random(f"{seed} {number}"))
            for number, end in enumerate(self._other)
        }

    def run(self, commands: int) -> None:
        """Until they end."""
        poller = select.poll()
        for fd in (commands, *self._other):
            poller.register(fd, select.POLLIN)
        self._tell()
        while True:
            for fd, _ in poller.poll(self._pause()):
                if fd != commands:
                    self._take(fd)
                elif not self._obey(os.read(commands, 1 << 16)):
                    return
            self._send_due()

    def _pause(self) -> float | None:
        """Milliseconds to the next frame that is due."""
        if not self._waiting:
            return None
        return max(0.0, self._waiting[0][0] - time.monotonic()) * 1000

    def _take(self, end: int) -> None:
        for _ in range(BATCH):
            try:
                frame = os.read(end, FRAME_MAX)
            except OSError:  # nothing more, or the device is down
                return
            now = time.monotonic()
            delays = self._fates[end].delays(now)
            if len(self._waiting) >= WAITING_MAX:
                delays = []
            self._tally["packets"] += 1
            self._tally["lost"] += not delays
            self._tally["twice"] += len(delays) > 1
            for delay in delays:
                entry = (now + delay, next(self._numbers), self._other[end], frame)
                heapq.heappush(self._waiting, entry)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, number, end, frame = heapq.heappop(self._waiting)
            self._tally["overtaken"] += number < self._latest[end]
            self._latest[end] = max(number, self._latest[end])
            with contextlib.suppress(OSError):  # the device is down
                os.write(end, frame)

    def _obey(self, said: bytes) -> bool:
        """One command is on its way at a time: its sender waits for the answer."""
        if not said:
            return False
        command = json.loads(said)
        self.set(Roughness(**{k: v for k, v in command.items() if k != "seed"}), command["seed"])
        self._tell()
        return True

    def _tell(self) -> None:
        os.write(1, json.dumps(self._tally).encode() + b"\n")


def tap(name: str) -> int:
    """A device of that name, which lasts as long as this is open."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


if __name__ == "__main__":
    Relay((tap(sys.argv[1]), tap(sys.argv[2]))).run(0)
