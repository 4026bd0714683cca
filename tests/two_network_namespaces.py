"""Two hosts on one machine: network namespaces, a cable between them, and what may befall it.

    "node"  10.93.0.1 ──── v0: veth ──────── 10.93.0.2  "client"
                      ──── t0: rough line ──

They share everything but the network: files, processes, shared memory. Made with `ip`, as root;
packets of one direction are lost without a word by sending them to nobody's hardware address. While
the line is rough, routes lead over other devices, between which a process loses packets at random
(`lossy_link`). Owns the namespaces and heals or removes what it did.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from cleanup_commands import Afterwards
from lossy_link import RoughLine, Roughness

NODE: Final = "node"
CLIENT: Final = "client"
ADDRESSES: Final = {NODE: "10.93.0.1", CLIENT: "10.93.0.2"}
_HARDWARE: Final = {NODE: "02:00:00:00:93:01", CLIENT: "02:00:00:00:93:02"}
_NOBODY: Final = "02:00:00:00:93:99"
_OTHER: Final = {NODE: CLIENT, CLIENT: NODE}
_NUMBERS: Final = itertools.count()
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET: Final = 0x40000000
_SO_RCVBUFFORCE: Final = 33
RECEIVED_MAX: Final = 4 << 20
"""Bytes that wait for a busy receiver: by default there is room for some 200 small datagrams."""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)


class Hosts:
    """See the module. Skips the test where this user, or this kernel, has no namespaces."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        stem = f"penstock-{os.getpid()}-{next(_NUMBERS)}"
        self.names = {NODE: f"{stem}-n", CLIENT: f"{stem}-c"}
        self.line: RoughLine | None = None
        self.why_no_line = ""
        """The reason where no line can be rough here."""
        self._is_rough = False
        self._is_plugged = True
        self._end = Afterwards("; ".join(f"ip netns del {name}" for name in self.names.values()))
        try:
            self._make()
            self._make_line()
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

    def _make_line(self) -> None:
        node, client = self.names[NODE], self.names[CLIENT]
        try:
            self.line = RoughLine(self.on(NODE), ("t0", "t1"))
        except OSError as error:
            self.why_no_line = str(error)
            return
        self._must("ip", "-n", node, "link", "set", "t1", "netns", client, "name", "t0")
        for host, name in self.names.items():
            self._must("ip", "-n", name, "link", "set", "t0", "address", _HARDWARE[host], "up")
            self.restore(host)

    def _must(self, *words: str) -> None:
        done = _run(*words)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")

    def on(self, host: str) -> list[str]:
        """What goes before a command that is to run on that host; it keeps its pid."""
        return ["ip", "netns", "exec", self.names[host]]

    def datagrams(self, host: str) -> socket.socket:
        """A socket of this process that stands on that host."""

        def make() -> socket.socket:
            with open(f"/var/run/netns/{self.names[host]}") as namespace:
                if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with contextlib.suppress(OSError):  # only what a host gives to root
                found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVED_MAX)
            found.bind((ADDRESSES[host], 0))
            return found

        with ThreadPoolExecutor(1) as pool:  # only this thread goes there, and it ends
            return pool.submit(make).result()

    # --- faults ---
    def silence(self, host: str) -> None:
        """Nothing that this host sends arrives any more, and nobody is told."""
        self._neighbour(host, _NOBODY)

    def restore(self, host: str) -> None:
        self._neighbour(host, _HARDWARE[_OTHER[host]])

    def _neighbour(self, host: str, hardware: str) -> None:
        for device in ("v0", "t0") if self.line else ("v0",):
            self._must(
                "ip", "-n", self.names[host], "neigh", "replace", ADDRESSES[_OTHER[host]],
                "lladdr", hardware, "dev", device, "nud", "permanent",
            )  # fmt: skip

    def unplug(self) -> None:
        """The cable: both hosts see no carrier, and open connections are not told."""
        self._is_plugged = False
        self._lead_over_line(False)
        self._must("ip", "-n", self.names[CLIENT], "link", "set", "v0", "down")

    def plug(self) -> None:
        self._must("ip", "-n", self.names[CLIENT], "link", "set", "v0", "up")
        self.restore(CLIENT)  # entries go with the link
        self._is_plugged = True
        if self._is_rough:
            self._lead_over_line(True)

    def rough(self, roughness: Roughness, seed: int) -> Counter[str]:
        """Packets are lost, late, doubled, both ways. Gives what became of those before."""
        assert self.line, self.why_no_line
        tally = self.line.set(roughness, seed)
        self._is_rough = True
        if self._is_plugged:
            self._lead_over_line(True)
        return tally

    def smooth(self) -> Counter[str]:
        """Nothing more befalls packets. Gives what became of those before."""
        if not self.line:
            return Counter()
        self._is_rough = False
        self._lead_over_line(False)
        return self.line.set(Roughness(), 0)

    def _lead_over_line(self, is_led: bool) -> None:
        for host, name in self.names.items() if self.line else ():
            route = (f"{ADDRESSES[_OTHER[host]]}/32", "dev", "t0", "src", ADDRESSES[host])
            if is_led:
                self._must("ip", "-n", name, "route", "replace", *route)
            else:
                _run("ip", "-n", name, "route", "del", *route)

    def slow(self) -> bool:
        """A narrow cable with a long queue, which delays, and loses what finds no room in it.
        False: this kernel has none."""
        kind = ("tbf", "rate", "4mbit", "burst", "16kb", "latency", "150ms")
        done = [
            _run("tc", "-n", name, "qdisc", "replace", "dev", "v0", "root", *kind)
            for name in self.names.values()
        ]
        return not any(each.returncode for each in done)

    def fast(self) -> None:
        for name in self.names.values():
            _run("tc", "-n", name, "qdisc", "del", "dev", "v0", "root")

    def heal(self) -> None:
        """All of it is over."""
        self.smooth()
        self.plug()
        self.fast()
        for host in self.names:
            self.restore(host)

    def close(self) -> None:
        if self.line:
            self.line.close()
        self._end.now()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
