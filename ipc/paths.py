"""Where things lie on this host, and what a URL means: runtime folder, data folder, node names.

Owns the environment variables for places, and the check that a folder holding a socket is ours
alone. Never opens a socket or a data folder.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import ConfigError

DEFAULT_NODE = "default"
ATTACH_SOCKET = "attach.sock"
HOSTS_MAX = 64

_NODE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-zA-Z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?")
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_ALLOWED = (
    "allowed are shm:// (the default node), shm://NAME, shm:///ABSOLUTE/DATA/FOLDER and "
    "tcp://HOST:PORT[,HOST:PORT...] with IPv6 addresses in brackets"
)


class Target(NamedTuple):
    """The parts of a URL. `shm` has either a node `name` or a data `folder`, `tcp` has `hosts`."""

    scheme: str
    name: str | None = None
    folder: Path | None = None
    hosts: tuple[tuple[str, int], ...] = ()

    def attach_socket(self) -> Path:
        """The attach socket of a `shm` target."""
        if self.folder is not None:
            return socket_in(self.folder)
        if self.name is not None:
            return socket_path(self.name)
        raise ConfigError(f"a {self.scheme}:// target has no attach socket")


def parse_url(url: str) -> Target:
    """Read a URL, or raise ConfigError naming what was given and what is allowed."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("shm", "tcp"):
        raise ConfigError(f"cannot connect to {url!r}: {_ALLOWED}")
    if scheme == "tcp":
        return Target("tcp", hosts=_parse_hosts(url, rest))
    if rest.startswith("/"):
        folder = os.path.normpath(rest)
        if "\0" in rest or not folder.strip("/"):
            raise ConfigError(f"{url!r} names no data folder: {_ALLOWED}")
        return Target("shm", folder=Path(folder))
    try:
        return Target("shm", name=check_node_name(rest or DEFAULT_NODE))
    except ConfigError as error:
        raise ConfigError(f"cannot connect to {url!r}: {error}; {_ALLOWED}") from error


def _parse_hosts(url: str, rest: str) -> tuple[tuple[str, int], ...]:
    entries = rest.split(",")
    if len(entries) > HOSTS_MAX:
        raise ConfigError(f"{len(entries)} hosts in a URL is over the bound hosts_max={HOSTS_MAX}")
    hosts = []
    for entry in entries:
        if "://" in entry:
            raise ConfigError(f"{url!r}: say tcp:// once, and then its hosts: {_ALLOWED}")
        match = _HOST_PORT.fullmatch(entry)
        if match is None or not 1 <= int(match["port"]) <= 65535:
            raise ConfigError(f"{entry!r} in {url!r} is not HOST:PORT (1-65535): {_ALLOWED}")
        v6 = match["v6"]
        host = match["name"] if v6 is None else v6
        if not (_HOST_NAME.fullmatch(host) if v6 is None else _is_ipv6(host)):
            raise ConfigError(f"{host!r} in {url!r} is not a host name or address: {_ALLOWED}")
        hosts.append((host, int(match["port"])))
    return tuple(hosts)


def _is_ipv6(host: str) -> bool:
    from ipaddress import AddressValueError, IPv6Address  # seldom needed, slow to import

    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True


def check_node_name(name: str) -> str:
    """The name itself, when it can be one of a node."""
    if not _NODE_NAME.fullmatch(name):
        raise ConfigError(
            f"node name {name!r} is not allowed: 1 to 64 characters of [a-zA-Z0-9._-], "
            "the first a letter or digit"
        )
    return name


def runtime_folder() -> Path:
    """The folder of the attach sockets of this user's nodes, made (0700) if need be, and checked.

    $PENSTOCK_RUNTIME_DIR, else $XDG_RUNTIME_DIR/penstock where that folder is ours (`su` and `sudo`
    keep the variable of the user before), else /tmp/penstock-<uid>.
    """
    chosen = os.environ.get("PENSTOCK_RUNTIME_DIR")
    if chosen:
        return Path(private_folder(_absolute("PENSTOCK_RUNTIME_DIR", chosen)))
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session):
        try:
            if os.stat(session).st_uid == os.geteuid():
                return Path(private_folder(os.path.join(session, "penstock")))
        except FileNotFoundError:
            pass
    return Path(private_folder(f"/tmp/penstock-{os.geteuid()}"))


def socket_path(name: str) -> Path:
    """The attach socket of the node `name`."""
    return runtime_folder() / f"{check_node_name(name)}.sock"


def remember_folder(name: str, data_folder: str) -> None:
    """Note beside its socket which data folder the node `name` serves."""
    link = _folder_link(name)
    fresh = f"{link}.{os.getpid()}"
    try:
        os.symlink(data_folder, fresh)
        os.replace(fresh, link)
    except OSError as error:
        raise ConfigError(f"cannot note the data folder of node {name!r}: {error}") from error


def folder_of(name: str) -> Path | None:
    """The data folder that the node `name` serves, or served last; None: there was none."""
    try:
        return Path(os.readlink(_folder_link(name)))
    except OSError:
        return None


def folder_served_at(socket: Path) -> Path | None:
    """The data folder of the node of this attach socket, if one is known."""
    if socket.name == ATTACH_SOCKET:
        return socket.parent
    return folder_of(socket.name.removesuffix(".sock"))


def _folder_link(name: str) -> Path:
    return runtime_folder() / f"{check_node_name(name)}.data"


def socket_in(data_folder: str | os.PathLike[str]) -> Path:
    """The attach socket of the node that serves `data_folder`."""
    return Path(data_folder) / ATTACH_SOCKET


def serve_command(socket: str) -> str:
    """Returns the command that starts a node with this attach socket."""
    from shlex import quote  # seldom needed

    folder, name = os.path.split(socket)
    if name == ATTACH_SOCKET:
        return f"penstock serve --data {quote(folder)}"
    node = name.removesuffix(".sock")
    return "penstock serve" if node == DEFAULT_NODE else f"penstock serve --name {node}"


def default_data_folder(name: str) -> Path:
    """Returns $PENSTOCK_DATA_DIR unchanged, else ~/.local/share/penstock/<name>. Does not make
    it."""
    check_node_name(name)
    chosen = os.environ.get("PENSTOCK_DATA_DIR")
    if chosen:
        return Path(_absolute("PENSTOCK_DATA_DIR", chosen))
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise ConfigError("there is no home folder to keep data in: set PENSTOCK_DATA_DIR")
    return Path(home, ".local", "share", "penstock", name)


def _absolute(variable: str, value: str) -> str:
    if not os.path.isabs(value):
        raise ConfigError(f"${variable} is {value!r}: it must be an absolute path")
    return value


def private_folder(folder: str | os.PathLike[str]) -> str:
    """Make `folder` (0700) unless it is there, and refuse one that others could put files into.

    They could put a socket of their own in the node's place. Parents are made as well.
    """
    path = os.fspath(folder)
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        # A symbolic link counts by its owner as well: in /tmp anybody can leave one.
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(f"folder {path} for the attach socket cannot be used: {error}") from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is not a folder, so it cannot hold the attach socket")
    if owners != {os.geteuid()}:
        strangers = sorted(owners - {os.geteuid()})
        raise ConfigError(
            f"folder {path} belongs to uid {strangers[0]}, not to this user (uid {os.geteuid()}): "
            "set PENSTOCK_RUNTIME_DIR or choose a folder of your own"
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"folder {path} can be written by others (mode {stat.S_IMODE(mode):04o}), who could "
            f"put a socket of their own there: `chmod go-w {path}`"
        )
    return path
