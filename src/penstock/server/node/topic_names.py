"""Topics by id, for processes without the catalogue: read from topics.json when it changes."""

from __future__ import annotations

import os
import time
from typing import Final

from penstock.core.errors import PenstockError
from penstock.core.storage import Storage
from penstock.server.node.data_folder import TOPICS_FILE, decode_document
from penstock.server.node.topic_catalog import CATALOG_SCHEMA, CatalogDocument
from penstock.server.security.authorized_keys import signature

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at the file, at least. An unknown id may be of a topic that was made
this moment. Then the file is always checked, which costs a stat where nothing changed."""


class TopicNames:
    """`of(topic_id)`: its name, None for a topic that is not there (any more)."""

    def __init__(self, data_folder: str) -> None:
        self._path = os.path.join(data_folder, TOPICS_FILE)
        self._looked_at = float("-inf")
        self._signature: object = None
        self._names: dict[bytes, str] = {}

    def of(self, topic_id: bytes) -> str | None:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_INTERVAL:
            self._look(now)
        name = self._names.get(topic_id)
        if name is None and now > self._looked_at:
            self._look(now)
            name = self._names.get(topic_id)
        return name

    def _look(self, now: float) -> None:
        self._looked_at = now
        found = signature(self._path)
        if found == self._signature:
            return
        try:
            data = Storage().read_file(self._path)
            document = (
                CatalogDocument()
                if data is None
                else decode_document(data, CatalogDocument, self._path, CATALOG_SCHEMA)
            )
        except PenstockError:
            return  # the node says so; what was known goes on
        self._signature = found
        self._names = {bytes.fromhex(topic.topic_id): topic.name for topic in document.topics}
