"""Serves the application until it is told to stop: a port, a thread, and a clean end."""

from __future__ import annotations

import socket
import threading
from typing import Final

import uvicorn

from penstock.console import peer
from penstock.console.app import make_app
from penstock.console.config import ConsoleConfig
from penstock.console.connection import protocol_of
from penstock.core.errors import ConfigError, PenstockError

CONNECTIONS_MAX: Final = 256
KEEP_ALIVE: Final = 5
STOP_SECONDS: Final = 3
START_SECONDS: Final = 15.0
BACKLOG: Final = 128


class ConsoleServer:
    """A console that runs in a thread of its own. `url`: where browsers find it."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._socket = _listening(config.host, config.port)
        port = self._socket.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"{'https' if config.has_tls else 'http'}://{host}:{port}"
        is_told_apart = config.is_loopback
        self.app = make_app(config, port, peer.is_own if is_told_apart else None)
        self._server = uvicorn.Server(uvicorn.Config(
            # One line for each refusal would let strangers fill the log.
            self.app, log_config=None, log_level="error", access_log=False, server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE, ws="none",
            timeout_graceful_shutdown=STOP_SECONDS, lifespan="on", loop="asyncio",
            http=protocol_of(config.proxy),
            ssl_certfile=config.certificate, ssl_keyfile=config.private_key,
        ))  # fmt: skip
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def start(self) -> None:
        """Serves from here on. Raises `PenstockError` where it cannot."""
        self._thread.start()
        waited = 0.0
        while not self._server.started and not self._ended.wait(0.02):
            waited += 0.02
            if waited > START_SECONDS:
                break
        if not self._server.started:
            reason = self._failure or "see what was logged"
            self.stop()
            raise PenstockError(f"the console at {self.url} did not start: {reason}")

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def stop(self) -> None:
        """Ends streams and connections, and waits for the end within a bound."""
        self.app.state.shell.live.end()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS + START_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._failure = error
        finally:
            self._ended.set()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"the console cannot listen at {host}:{port}: {error.strerror}; name another place by "
            "--listen"
        ) from error
    return found
