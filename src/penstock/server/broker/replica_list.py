"""The replicas of this broker that have had folders: `replicas.json` in the data folder.

A folder that was there and is gone took records with it that others count on. One that was never
made took nothing. Without this file both look the same to the broker that starts.

    folder made ─► noted ─► opened, records        no replica here any more ─► forgotten ─► removed

So what is noted had a folder, whenever the broker dies in between. Owns the file. Whether a replica
is to be trusted, the controller says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.cluster.controller import Place
from penstock.server.node.data_folder import (
    DataFolder,
    decode_document,
    encode_document,
    is_partition_folder,
)

KEPT_FILE: Final = "replicas.json"
KEPT_SCHEMA: Final = 1


class KeptRecord(msgspec.Struct, frozen=True):
    """replicas.json. `topics`: by topic id, the partitions whose folders were made."""

    schema: int
    topics: dict[str, list[int]]


class KeptReplicas:
    """The file of replicas. Reads it once when made: `lost` are the replicas whose folders had gone
    by then. Raises `DataFolderError` for a file that cannot be read."""

    def __init__(self, folder: DataFolder) -> None:
        self._folder = folder
        self._path = os.path.join(folder.path, KEPT_FILE)
        data = folder.storage.read_file(self._path)
        there = {_place(name) for name in filter(is_partition_folder, os.listdir(folder.path))}
        self._is_written = data is not None
        if data is None:  # the first life, or the first that keeps it
            self.places = there
        else:
            record = decode_document(data, KeptRecord, self._path, KEPT_SCHEMA)
            self.places = {
                (bytes.fromhex(topic_id), index)
                for topic_id, indexes in record.topics.items()
                for index in indexes
            }
        self.lost = tuple(sorted(self.places - there))

    def says(self, places: set[Place]) -> bool:
        """Whether the file says that these are kept here, and no others."""
        return self._is_written and self.places == places

    def note(self, places: Iterable[Place]) -> None:
        """Of these, those that have a folder by now are kept here."""
        self._write(self.places.union(filter(self._is_there, places)))

    def keep(self, places: Iterable[Place]) -> None:
        """Only of these are replicas here: the folders of others may go."""
        self._write(self.places.intersection(places))

    def _is_there(self, place: Place) -> bool:
        return os.path.isdir(os.path.join(self._folder.path, f"{place[0].hex()}-{place[1]}"))

    def _write(self, places: set[Place]) -> None:
        if places == self.places and self._is_written:
            return
        topics: dict[str, list[int]] = {}
        for topic_id, index in sorted(places):
            topics.setdefault(topic_id.hex(), []).append(index)
        document = encode_document(KeptRecord(KEPT_SCHEMA, topics))
        self._folder.storage.write_file_atomic(self._path, document)
        self.places, self._is_written = places, True


def _place(name: str) -> Place:
    topic_id, _, index = name.partition("-")
    return bytes.fromhex(topic_id), int(index)
