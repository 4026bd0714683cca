"""The settings of a console, and which of them are safe together.

| listens at | needs |
|---|---|
| loopback | nothing: only this user's processes are let in; with a password, everybody who has it |
| other addresses | a password and TLS, or a proxy, named by its address, that does both |
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.core.errors import ConfigError

PORT: Final = 9642
LISTEN: Final = f"127.0.0.1:{PORT}"
PASSWORD_MIN: Final = 12
"""Characters of a password, at least."""
PASSWORD_BYTES_MAX: Final = 1024
NAMES_MAX: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Settings of a console.

    url: the node, as `penstock.connect` takes it.
    keys: the key file that the console acts by; None: `$PENSTOCK_KEY`, or none.
    host, port: where it listens; port 0 is any free one.
    names: further names by which browsers reach it, `HOST` or `HOST:PORT`; others are refused.
    password: everybody who has it may come in; None: no login.
    certificate, private_key: files for TLS.
    proxy: the address of a proxy, from which alone connections are taken; it does TLS and login.
    """

    url: str
    keys: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    names: tuple[str, ...] = ()
    password: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    proxy: str | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and not self.url.startswith("tcp://"):
            raise ConfigError(
                f"{self.url} is reached as the node's user, without a key: with --keys name the "
                "node by tcp://HOST:PORT"
            )
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("TLS takes both files: --certificate and --private-key")
        if self.password is not None and len(self.password) < PASSWORD_MIN:
            raise ConfigError(f"a console's password has at least {PASSWORD_MIN} characters")
        if self.proxy is not None:
            _address(self.proxy, "--proxy")
        if len(self.names) > NAMES_MAX:
            raise ConfigError(f"{len(self.names)} names of the console: {NAMES_MAX} at most")
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ConfigError(f"--name {name!r:.100} is no HOST or HOST:PORT")
        is_guarded = self.password is not None and self.has_tls
        if not (self.is_loopback or is_guarded or self.proxy is not None):
            raise ConfigError(
                f"other hosts reach {self.host}:{self.port}, and all who come act by the "
                "console's rights: give a password and TLS (--password-file, --certificate, "
                "--private-key), or the address of a proxy that does both (--proxy); or listen at "
                f"{LISTEN}"
            )

    @property
    def has_tls(self) -> bool:
        return self.certificate is not None

    @property
    def is_loopback(self) -> bool:
        return _address(self.host, "--listen").is_loopback

    def with_port(self, port: int) -> frozenset[str]:
        """The values of Host that are taken, once the port is known."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        own = {f"{each}:{port}" for each in (host, "localhost", "127.0.0.1", "[::1]")}
        default = 443 if self.has_tls else 80
        if port == default:
            own |= {each.rpartition(":")[0] for each in own}
        given = {name.lower() for name in self.names}
        with_ports = {f"{name}:{port}" for name in given if ":" not in name}
        return frozenset(own | given | with_ports)


def _address(text: str, option: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r:.100} is no IP address, such as 127.0.0.1") from None


def address_of(listen: str) -> tuple[str, int]:
    """Reads `HOST:PORT`; the host is an IP address or localhost. Raises `ConfigError`."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"--listen {listen!r:.100}: write ADDRESS:PORT, such as {LISTEN}")
    return ("127.0.0.1" if host == "localhost" else host), int(port)


def password_of(file: str) -> str:
    """Reads the first line of a file that only its owner may read. Raises `ConfigError`."""
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--password-file {file}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"--password-file {file}: others may read it; `chmod 600 {file}`")
    if len(text) > PASSWORD_BYTES_MAX:
        raise ConfigError(f"--password-file {file}: more than {PASSWORD_BYTES_MAX} bytes")
    try:
        return text.decode().partition("\n")[0].strip()
    except UnicodeDecodeError:
        raise ConfigError(f"--password-file {file} is no UTF-8 text") from None
