"""Where health and metrics are served: `HOST:PORT`, and whether that is this host alone."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.core.errors import ConfigError

_LOCALHOST: Final = "localhost"
BACKLOG: Final = 16


class HttpAddress(NamedTuple):
    """A host, as a number or a name, and a port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_http_address(text: str) -> HttpAddress:
    """`127.0.0.1:9641`, `[::1]:9641`, `localhost:9641`. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # a bare IPv6 address: nobody can tell where its port begins
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"metrics is {text!r}: say HOST:PORT, such as 127.0.0.1:9641 or [::1]:0")
    return HttpAddress(host, int(port))


def is_loopback(address: HttpAddress) -> bool:
    """Whether only processes of this host reach it. A name but `localhost` is not looked up."""
    if address.host == _LOCALHOST:
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def check_http_address(text: str, *, public: bool) -> HttpAddress:
    """Returns the address, if it may be served: any client that reaches it reads names of topics
    and groups."""
    address = parse_http_address(text)
    if not public and not is_loopback(address):
        raise ConfigError(
            f"metrics is {text!r}, which other hosts reach, and each of them reads the names of "
            "topics, groups and clients there without a password: use 127.0.0.1, or say so by "
            "metrics_public = true (--metrics-public)"
        )
    return address


def allowed_hosts(address: HttpAddress) -> Callable[[str], bool] | None:
    """Which `Host` a request may name: none but this host's own, where only this host is to read.
    A page of the web has a browser here follow a name of its own (DNS rebinding). None: any."""
    if not is_loopback(address):
        return None

    def is_allowed(host: str) -> bool:
        name, _, port = host.rpartition(":")
        name = name if port.isdigit() and name else host
        return is_loopback(HttpAddress(name.strip("[]").lower(), 0))

    return is_allowed


def listen(address: HttpAddress) -> socket.socket:
    """A listening socket. Raises `ConfigError` when the address cannot be had."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, kind, where)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served at {address}: {error}") from error


def _bound(family: int, kind: int, where: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
