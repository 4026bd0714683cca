"""Reports a node's state to systemd, or to another service manager of its protocol (sd_notify).

Reports nothing without `$NOTIFY_SOCKET`. Nothing depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final

logger = logging.getLogger("penstock.node")

SEND_TIMEOUT: Final = 1.0
"""Seconds for which a manager is waited for that takes nothing in; then it does not hear it."""


class ServiceManager:
    """The node's reports to its service manager. Takes the variables for this process out of the
    environment, so that its children do not report for it."""

    def __init__(self) -> None:
        place = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + place[1:] if place.startswith("@") else place
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        is_meant = usec.isdecimal() and pid in ("", str(os.getpid()))
        self._sign_every = int(usec) / 2e6 if is_meant else 0.0

    def tell(self, status: str, *states: str) -> None:
        """Such as `tell("in words", "READY=1")`."""
        words = " ".join(status.split())
        self._send("\n".join([*states, f"STATUS={words}"]), SEND_TIMEOUT)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the signs of life that are asked for, for as long as this loop runs."""
        if self._sign_every:
            self._send("WATCHDOG=1", 0.0)
            loop.call_later(self._sign_every, self.watch, loop)

    def _send(self, text: str, timeout: float) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.settimeout(timeout)
                end.sendto(text.encode(), self._address)
        except BlockingIOError:
            pass  # it has not heard the last signs of life either
        except OSError as error:
            logger.warning("nobody hears at $NOTIFY_SOCKET %r: %s", self._address, error)
