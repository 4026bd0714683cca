"""Two hosts on one machine: network namespaces, a cable between them, and what may befall it.

    "node"  10.93.0.1 ──── veth ──── 10.93.0.2  "client"

They share everything but the network: files, processes, shared memory. Made with `ip` alone, as
root; packets of one direction are lost without a word by sending them to nobody's hardware address.
Owns the namespaces and heals or removes what it did.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from typing import Final

import pytest

NODE: Final = "node"
CLIENT: Final = "client"
ADDRESSES: Final = {NODE: "10.93.0.1", CLIENT: "10.93.0.2"}
_HARDWARE: Final = {NODE: "02:00:00:00:93:01", CLIENT: "02:00:00:00:93:02"}
_NOBODY: Final = "02:00:00:00:93:99"
_OTHER: Final = {NODE: CLIENT, CLIENT: NODE}
_NUMBERS: Final = itertools.count()


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)


class Hosts:
    """See the module. Skips the test where this user, or this kernel, has no namespaces."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        stem = f"penstock-{os.getpid()}-{next(_NUMBERS)}"
        self.names = {NODE: f"{stem}-n", CLIENT: f"{stem}-c"}
        self._slow_with: tuple[str, ...] | None = None
        try:
            self._make()
        except (OSError, subprocess.TimeoutExpired) as error:
            self.close()
            pytest.skip(f"no network namespaces here: {error}")

    def _make(self) -> None:
        for name in self.names.values():
            self._must("ip", "netns", "add", name)
        ends = [(host, self.names[host]) for host in (NODE, CLIENT)]
        (_, node), (_, client) = ends
        self._must(
            "ip", "link", "add", "v0", "netns", node, "address", _HARDWARE[NODE], "type", "veth",
            "peer", "name", "v0", "netns", client, "address", _HARDWARE[CLIENT],
        )  # fmt: skip
        for host, name in ends:
            self._must("ip", "-n", name, "addr", "add", f"{ADDRESSES[host]}/24", "dev", "v0")
            for device in ("lo", "v0"):
                self._must("ip", "-n", name, "link", "set", device, "up")
            self.restore(host)

    def _must(self, *words: str) -> None:
        done = _run(*words)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")

    def on(self, host: str) -> list[str]:
        """What goes before a command that is to run on that host; it keeps its pid."""
        return ["ip", "netns", "exec", self.names[host]]

    # --- faults ---
    def silence(self, host: str) -> None:
        """Nothing that this host sends arrives any more, and nobody is told."""
        self._neighbour(host, _NOBODY)

    def restore(self, host: str) -> None:
        self._neighbour(host, _HARDWARE[_OTHER[host]])

    def _neighbour(self, host: str, hardware: str) -> None:
        self._must(
            "ip", "-n", self.names[host], "neigh", "replace", ADDRESSES[_OTHER[host]],
            "lladdr", hardware, "dev", "v0", "nud", "permanent",
        )  # fmt: skip

    def unplug(self) -> None:
        """The cable: both hosts see no carrier, and open connections are not told."""
        self._must("ip", "-n", self.names[CLIENT], "link", "set", "v0", "down")

    def plug(self) -> None:
        self._must("ip", "-n", self.names[CLIENT], "link", "set", "v0", "up")
        self.restore(CLIENT)  # entries go with the link

    def slow(self) -> bool:
        """A narrow cable with a long queue, which delays, and loses what finds no room in it; or
        real delay and loss, where the kernel has them. False: this kernel has neither."""
        kinds = [
            ("netem", "delay", "40ms", "20ms", "loss", "10%"),
            ("tbf", "rate", "4mbit", "burst", "16kb", "latency", "150ms"),
        ]
        for kind in [self._slow_with] if self._slow_with else kinds:
            done = [
                _run("tc", "-n", name, "qdisc", "replace", "dev", "v0", "root", *kind)
                for name in self.names.values()
            ]
            if not any(each.returncode for each in done):
                self._slow_with = kind
                return True
        return False

    def fast(self) -> None:
        for name in self.names.values():
            _run("tc", "-n", name, "qdisc", "del", "dev", "v0", "root")

    def heal(self) -> None:
        """All of it is over."""
        self.plug()
        self.fast()
        for host in self.names:
            self.restore(host)

    def close(self) -> None:
        for name in self.names.values():
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _run("ip", "netns", "del", name)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
