"""The settings of a broker, checked: what has to be given together, and how places are written.

Owns the spelling of `controller_quorum`. Reads no file and opens nothing.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from penstock.core.errors import ConfigError
from penstock.server.security.exposure import is_loopback

NODE_ID_MAX: Final = 65_535
VOTERS_MAX: Final = 7
RACK_MAX: Final = 100
URL_MAX: Final = 100
_WILDCARDS: Final = ("0.0.0.0", "*", "::", "[::]")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")
"""A name, or an address: in brackets if it has colons."""
CLUSTER_ONLY: Final = (
    "cluster_listen", "controller_quorum", "advertise", "cluster_key", "rack", "replication_port",
)  # fmt: skip


class ClusterSettings(Protocol):
    """The settings of a `NodeConfig` that this module reads."""

    @property
    def node_id(self) -> int | None: ...
    @property
    def listen(self) -> str | None: ...
    @property
    def insecure(self) -> bool: ...
    @property
    def cluster_listen(self) -> str | None: ...
    @property
    def controller_quorum(self) -> str | None: ...
    @property
    def replication_port(self) -> int: ...
    @property
    def advertise(self) -> str | None: ...
    @property
    def rack(self) -> str: ...
    @property
    def cluster_key(self) -> str | None: ...


def check_clustered(config: ClusterSettings) -> None:
    """Raise ConfigError for settings that do not make a broker, nor a node that is alone."""
    if config.node_id is None:
        given = [name for name in CLUSTER_ONLY if getattr(config, name)]
        if given:
            raise ConfigError(
                f"{given[0]} is given and node_id is not: a broker of a cluster needs node_id (a "
                "number of its own), listen and controller_quorum; a node that is alone has none"
            )
        return
    check_whole("node_id", config.node_id, 1, NODE_ID_MAX)
    check_whole("replication_port", config.replication_port, 0, 65_535)
    if config.controller_quorum is None:
        raise ConfigError(
            f"node_id is {config.node_id} and controller_quorum is missing: name the brokers that "
            f"decide, such as {config.node_id}@127.0.0.1:9650"
        )
    if config.listen is None:
        raise ConfigError(
            f"node_id is {config.node_id} and listen is missing: clients of a cluster connect to "
            "each of its brokers by tcp://ADDRESS:PORT"
        )
    voters = parse_quorum(config.controller_quorum)
    if config.cluster_listen is None and config.node_id not in voters:
        raise ConfigError(
            f"cluster_listen is missing, and broker {config.node_id} is not in controller_quorum: "
            "say where the other brokers reach it, tcp://ADDRESS:PORT"
        )
    own = config.cluster_listen or voters[config.node_id]
    host, port = place_of("cluster_listen", own)
    if not port:
        raise ConfigError(f"cluster_listen is {own!r}: it needs a port that others can know")
    if host in _WILDCARDS and config.node_id not in voters:
        raise ConfigError(
            f"cluster_listen is {own!r}: a broker outside controller_quorum names one address, "
            "under which the others reach it"
        )
    if config.cluster_key is None and not config.insecure and not is_loopback(host):
        raise ConfigError(
            f"cluster_listen is {own!r} and cluster_key is missing: a process that reaches the "
            "port could speak as a broker. Give all brokers the same key file, or say insecure "
            "where the network itself is safe"
        )
    if config.cluster_key == "":
        raise ConfigError("cluster_key is empty: name the key file that all brokers have")
    if config.listen == own:
        raise ConfigError(
            f"listen and cluster_listen are both {own!r}: clients and brokers come in at two ports"
        )
    if config.advertise is not None:
        place_of("advertise", config.advertise)
    elif place_of("listen", config.listen)[0] in _WILDCARDS:
        raise ConfigError(
            f"listen is {config.listen!r}, which is no place to connect to: say by advertise where "
            "clients find this broker, tcp://HOST:PORT"
        )
    rack = config.rack
    if not isinstance(rack, str) or len(rack) > RACK_MAX or not rack.isascii():
        raise ConfigError(f"rack is {rack!r:.120}: write up to {RACK_MAX} ASCII characters")


def parse_quorum(text: str) -> dict[int, str]:
    """`1@HOST:PORT,2@HOST:PORT` as URLs by number. Raises `ConfigError`."""
    voters: dict[int, str] = {}
    for word in text.split(","):
        number, at, place = word.strip().partition("@")
        if not at or not number.isascii() or not number.isdigit():
            raise _no_place(word)
        url = f"tcp://{place.removeprefix('tcp://')}"
        try:
            host, port = place_of("controller_quorum", url)
        except ConfigError:
            raise _no_place(word) from None
        if not _HOST.fullmatch(host):
            raise _no_place(word)
        if host in _WILDCARDS:
            raise ConfigError(
                f"controller_quorum has {word.strip()!r}, which is no place to connect to: name "
                "the address under which the others reach that broker; cluster_listen may be "
                "another one"
            )
        broker = int(number)
        check_whole("a number in controller_quorum", broker, 1, NODE_ID_MAX)
        if not port or broker in voters or url in voters.values():
            raise ConfigError(
                f"controller_quorum has {word.strip()!r}: each broker and each place is there "
                "once, with its port"
            )
        voters[broker] = url
    if len(voters) > VOTERS_MAX:
        raise ConfigError(
            f"controller_quorum has {len(voters)} brokers: up to {VOTERS_MAX} decide for a "
            "cluster (3 or 5 are usual), all others only hear of it"
        )
    return voters


def _no_place(word: str) -> ConfigError:
    return ConfigError(
        f"controller_quorum has {word.strip()!r:.120}: write NODE_ID@HOST:PORT for each broker of "
        "it, with commas between them"
    )


def place_of(field: str, url: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`. Raises `ConfigError`."""
    scheme, _, place = url.partition("://") if isinstance(url, str) else ("", "", "")
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{field} is {url!r}: write tcp://HOST:PORT, such as tcp://10.0.0.5:9650")
    if len(url) > URL_MAX or not url.isascii():
        raise ConfigError(f"{field} is {url!r:.120}: write up to {URL_MAX} ASCII characters")
    return host, int(port)


def check_whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{field} is {value!r}: allowed are whole numbers {low}..{high}")
