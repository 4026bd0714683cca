"""Several hosts on one machine: a network namespace for each broker, on a bridge of this one.

    broker 1  10.94.x.1 ──┐
    broker 2  10.94.x.2 ──┼── bridge 10.94.x.254: the test and its clients
    broker 3  10.94.x.3 ──┘

They share everything but the network. Made with `ip`, as root. What one host sends to another is
lost without a word where it is sent to nobody's hardware address, so each direction of each pair
can be cut alone. Owns the namespaces and takes away what it made.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable
from typing import Final

import pytest
from cleanup_commands import Afterwards

OUTSIDE: Final = 254
"""The number of this machine's own end, where the clients are."""
_NOBODY: Final = "02:00:00:00:94:99"
_NUMBERS: Final = itertools.count()


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)


def _must(*words: str) -> None:
    done = _run(*words)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class ManyHosts:
    """See the module. Skips the test where this user, or this kernel, has no namespaces."""

    def __init__(self, hosts: int = 3) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        turn = next(_NUMBERS)
        self._net = f"10.94.{(os.getpid() + turn) % 250}"
        stem = f"penstock-{os.getpid()}-{turn}"
        self._bridge = f"ps{os.getpid() % 10**7}b{turn}"
        self.names = {number: f"{stem}-h{number}" for number in range(1, hosts + 1)}
        ends = [f"ip netns del {name}" for name in self.names.values()]
        self._end = Afterwards("; ".join([*ends, f"ip link del {self._bridge}"]))
        try:
            self._make()
        except (OSError, subprocess.TimeoutExpired) as error:
            self.close()
            pytest.skip(f"no bridge of network namespaces here: {error}")

    def _make(self) -> None:
        outer = self._hardware(OUTSIDE)
        _must("ip", "link", "add", self._bridge, "address", outer, "type", "bridge")
        _must("ip", "addr", "add", f"{self.address(OUTSIDE)}/24", "dev", self._bridge)
        _must("ip", "link", "set", self._bridge, "up")
        for number, name in self.names.items():
            near = f"{self._bridge}n{number}"
            _must("ip", "netns", "add", name)
            _must(
                "ip", "link", "add", near, "type", "veth", "peer", "name", "v0", "netns", name,
                "address", self._hardware(number),
            )  # fmt: skip
            _must("ip", "link", "set", near, "master", self._bridge, "up")
            _must("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "v0")
            for device in ("lo", "v0"):
                _must("ip", "-n", name, "link", "set", device, "up")
        for source, target in itertools.permutations([*self.names, OUTSIDE], 2):
            self.mend(source, target)

    @staticmethod
    def _hardware(number: int) -> str:
        return f"02:00:00:00:94:{number:02x}"

    def address(self, number: int) -> str:
        return f"{self._net}.{number}"

    @property
    def addresses(self) -> list[str]:
        """Of all hosts but this machine's own end."""
        return [self.address(number) for number in self.names]

    def on(self, number: int) -> list[str]:
        """What goes before a command that is to run on that host; it keeps its pid."""
        return ["ip", "netns", "exec", self.names[number]]

    # --- faults ---
    def cut(self, source: int, target: int) -> None:
        """Nothing that `source` sends to `target` arrives any more, and nobody is told."""
        self._neighbour(source, target, _NOBODY)

    def mend(self, source: int, target: int) -> None:
        self._neighbour(source, target, self._hardware(target))

    def isolate(self, number: int, others: Iterable[int] = ()) -> None:
        """Cut both ways from these hosts (none given: from all brokers, not from the clients)."""
        for other in others or [each for each in self.names if each != number]:
            self.cut(number, other)
            self.cut(other, number)

    def heal(self) -> None:
        for source, target in itertools.permutations([*self.names, OUTSIDE], 2):
            self.mend(source, target)

    def _neighbour(self, source: int, target: int, hardware: str) -> None:
        place = ("ip",) if source == OUTSIDE else ("ip", "-n", self.names[source])
        device = self._bridge if source == OUTSIDE else "v0"
        _must(
            *place, "neigh", "replace", self.address(target), "lladdr", hardware, "dev", device,
            "nud", "permanent",
        )  # fmt: skip

    def close(self) -> None:
        self._end.now()

    def __enter__(self) -> ManyHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
