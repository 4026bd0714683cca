"""A wire of a certain length between clients and a broker, which can be cut: a relay of TCP that
holds every byte back for a while, and on demand for ever, in one direction or both."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque

CHUNK = 1 << 18
UNSENT_MAX = 1 << 20


class SlowWire:
    """`delay`: seconds each way. While `cut` nothing passes and no connection ends: as a half-open
    connection has it. `deaf` cuts only what the broker says."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self.delay = delay
        self.cut = self.deaf = False
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._stopping = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while not self._stopping:
            if not select.select([self._listening], [], [], 0.05)[0]:
                continue
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to), timeout=1.0)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            relay = threading.Thread(target=self._relay, args=(near, far), daemon=True)
            self._threads.append(relay)
            relay.start()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        ends = {near: far, far: near}
        waiting: dict[socket.socket, deque[tuple[float, bytes]]] = {near: deque(), far: deque()}
        over = False
        while not self._stopping and not over:
            now = time.monotonic()
            for end, other in ends.items():
                queue = waiting[other]  # on its way to `other`
                stuck = self.cut or (self.deaf and end is far)
                if not stuck and sum(len(data) for _, data in queue) < UNSENT_MAX:
                    try:
                        data = end.recv(CHUNK)
                        if not data and not queue:
                            over = True
                        elif data:
                            queue.append((now + self.delay, data))
                    except BlockingIOError:
                        pass
                    except OSError:
                        over = True
                while not stuck and queue and queue[0][0] <= now:
                    due, data = queue.popleft()
                    try:
                        sent = other.send(data)
                    except BlockingIOError:
                        sent = 0
                    except OSError:
                        over = True
                        break
                    if sent < len(data):
                        queue.appendleft((due, data[sent:]))
                        break
            if not any(waiting.values()):
                with contextlib.suppress(OSError, ValueError):
                    select.select([near, far], [], [], 0.02)
            else:
                time.sleep(0.001)
        near.close()
        far.close()

    def close(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(45)
        self._listening.close()

    def __enter__(self) -> SlowWire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
