"""A transport of kombu, by which Celery works on Penstock: `broker_url = "penstock://"`.

    import penstock.kombu

    app = Celery("shop", broker="penstock://")

The import makes the scheme known. `transport="penstock.kombu:Transport"` does without it. Each
queue is a topic with a share group of its own; fanout exchanges are plain topics.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from penstock.kombu.transport import KombuTransport as Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("penstock", "penstock.kombu:Transport")
