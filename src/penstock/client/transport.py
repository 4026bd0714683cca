"""Which way a URL's node is reached by: chosen once, when a client connects (rule 25).

A cluster is always reached by tcp, also by clients on a broker's own host: a broker there says so,
and where. A node that is alone is reached through shared memory also where its URL says tcp, if
`transport` is "auto" and it is on this host: when the boot id that it tells is this one's, and when
the attach socket that it names is this user's and answers with the same node uuid.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, Literal

from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.session import Session, place_of
from penstock.client.validation import check_choice
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.remote")

Transport = Literal["auto", "tcp"]
Keys = str | os.PathLike[str] | None

TRANSPORT_VARIABLE: Final = "PENSTOCK_TRANSPORT"
"""Set to "tcp", "auto" means that: for tests and measurements on one host."""
LOCAL_WITHIN: Final = 1.0
"""Seconds that the node on this host, which answers over tcp, has for answering its own socket."""


def reaching(
    url: str, *, transport: Transport, keys: Keys, client_id: str, timeout: float | None
) -> Waits[Place]:
    """Finds out that a node is there, and by which way. `timeout` bounds the wait; None: 5 s, but
    less than one where nothing listens and no node is starting."""
    check_choice("transport", transport, ("auto", "tcp"))
    place = place_of(url, keys)
    if not isinstance(place, RemoteAddress):
        if transport == "tcp":
            raise er.ConfigError(f"transport='tcp' needs a tcp://HOST:PORT URL, not {url!r}")
        near = yield from _attaching(place, client_id, timeout)
        near.close()
        if not near.welcome.remote:
            return place
        place = _of_cluster(near.welcome.remote, url, keys)
    if os.environ.get(TRANSPORT_VARIABLE) == "tcp":
        transport = "tcp"
    try:
        session = yield from _attaching(place, client_id, timeout)
        try:
            local = _local_socket(place) if transport == "auto" else None
            if local is not None and (yield from _is_same(local, session.node_uuid, client_id)):
                place.close()
                return local
        finally:
            session.close()
    except BaseException:
        place.close()
        raise
    return place


def _of_cluster(remote: str, url: str, keys: Keys) -> RemoteAddress:
    """Where the broker at that local URL takes clients."""
    place = place_of(remote, keys)
    if not isinstance(place, RemoteAddress):
        raise er.NotConnectedError(
            f"the node at {url!r} is a broker of a cluster and says that clients reach it at "
            f"{remote!r}, which is no tcp://HOST:PORT: connect to a broker's address by tcp"
        )
    return place


def _attaching(place: Place, client_id: str, timeout: float | None) -> Waits[Session]:
    return Session.attaching(place, lo.KIND_ADMIN, client_id=client_id, timeout=timeout)


def _local_socket(place: RemoteAddress) -> Path | None:
    """The attach socket of a node on this host that this user may use."""
    welcome = place.welcome
    if welcome is None or welcome.cluster or not welcome.local:
        return None
    if welcome.boot_id != liveness.boot_id():
        return None
    try:
        if os.stat(welcome.local).st_uid != os.geteuid():
            return None
    except (OSError, ValueError):
        return None  # in another container, say
    return Path(welcome.local)


def _is_same(local: Path, node_uuid: bytes, client_id: str) -> Waits[bool]:
    try:
        near = yield from _attaching(local, client_id, LOCAL_WITHIN)
    except (er.PenstockError, OSError) as error:
        logger.info("the node at %s is on this host, but is reached by tcp: %s", local, error)
        return False
    near.close()
    return near.node_uuid == node_uuid
