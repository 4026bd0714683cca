"""Calls to ZeroMQ's sockets, as they are made for each message.

pyzmq has flags as enums, which are slow to combine, and asks the socket again after each part of a
message. Plain numbers, and the parts' own sign that more follow, take half of that time.
"""

from __future__ import annotations

from typing import Final

import zmq

NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


def has_messages(socket: zmq.Socket[bytes]) -> bool:
    """Returns whether there is something to receive. From then on the socket's descriptor tells of
    what comes."""
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def received(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """Returns the parts of the next message, None if there is none now."""
    try:
        frame = socket.recv(NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more:
        frame = socket.recv(NOBLOCK, copy=False)
        frames.append(frame)
    return frames
