"""Whether listening somewhere lets strangers in."""

from __future__ import annotations

import ipaddress

from penstock.core.errors import ConfigError


def check_exposure(host: str, *, keys: bool, insecure: bool) -> None:
    """Raise ConfigError for listening beyond this host without keys."""
    if keys or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"listening at {host} without keys would let everybody on the network in: make keys first "
        "(`penstock keys create NAME --out FILE`), or listen on 127.0.0.1, or say --insecure where "
        "the network itself is safe"
    )


def check_brokers(*, keys: bool) -> None:
    """Raises ConfigError for a broker without `cluster_key` whose clients need keys. A process that
    reaches its ports for brokers, also from its own host, would bypass all keys."""
    if keys:
        raise ConfigError(
            "clients of this broker need keys, and cluster_key is missing: a process that reaches "
            "the ports between brokers could speak as one and read everything. Make a key "
            "(`penstock keys create-cluster --out FILE`) for all brokers, or say insecure where "
            "only brokers reach these ports"
        )


def is_loopback(host: str) -> bool:
    """Whether that address is of this host alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
