"""Names: which node a broker URL means, and which topics queues and exchanges have.

    queue "celery@host"        kombu.queue.celery..40host
    exchange "celery.pidbox"   kombu.exchange.celery.pidbox

What a topic's name does not take is two dots and the byte in hex, and so is the first of two dots:
two names never share a topic. Long names end with a hash.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from penstock.client.session import default_url
from penstock.core.errors import ConfigError

NAME_MAX: Final = 120
"""Characters of a queue or exchange in the name of its topic; beyond it comes a hash."""
_PLAIN: Final = re.compile(r"(?!\.\.)[a-zA-Z0-9._-]")
_PORT: Final = re.compile(r":\d+/*$")


def url_of_parts(host: str | None, port: int | None, path: str | None) -> str:
    """A broker URL as it was: kombu takes those apart that it fails over to."""
    if port:
        return f"penstock://{host}:{port}"
    folder = (path or "").strip("/")
    return f"penstock:///{folder}" if folder else f"penstock://{host or ''}"


def node_url(given: str | None) -> str:
    """The URL of `penstock.connect` for a broker URL: "penstock://" is the default node, a name or
    path after it a node of this host, HOST:PORT (more after commas) one that is reached by tcp."""
    scheme, separator, rest = (given or "").partition("://")
    if not separator:
        return default_url()
    if scheme in ("shm", "tcp"):
        return str(given)
    if "@" in rest:
        raise ConfigError(
            "a broker URL of Penstock has no user and password: name a key file, "
            'broker_transport_options={"keys": "/path/of/key"}, or set $PENSTOCK_KEY'
        )
    if _PORT.search(rest):
        return f"tcp://{rest.rstrip('/')}"
    return f"shm://{rest}" if rest.strip("/") else default_url()


def queue_topic(prefix: str, queue: str) -> str:
    """The topic of a queue; its share group has the same name."""
    return f"{prefix}queue.{_escaped(queue)}"


def exchange_topic(prefix: str, exchange: str) -> str:
    """The topic that has what was sent to an exchange, for queues that end with their consumer."""
    return f"{prefix}exchange.{_escaped(exchange)}"


def _escaped(name: str) -> str:
    parts = [
        character
        if _PLAIN.match(name, at)
        else "".join(f"..{byte:02x}" for byte in _bytes(name[at]))
        for at, character in enumerate(name)
    ]
    whole = "".join(parts)
    if len(whole) <= NAME_MAX:
        return whole
    return f"{whole[:NAME_MAX]}..{sha256(_bytes(name)).hexdigest()[:16]}"


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
