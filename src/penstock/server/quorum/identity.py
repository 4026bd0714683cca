"""The cluster of a data folder: `raft/cluster.json`, which goes with raft's files.

Written once the cluster has an id. From then on a missing raft log was lost. The broker would begin
again with votes that it gave already, so it does not start.

Where all of raft's files are gone, the folder may still be a broker's with records (`node.json`).
It begins no cluster: with that it would have no topics, and remove all that it has. It waits for a
broker that has the log, and gives no vote for `FORGOTTEN_PAUSE`. A broker that was away for a
moment, with the log that it promised to have, is not left out so.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import msgspec

from penstock.cluster.controller import Image
from penstock.core.errors import DataFolderError
from penstock.core.storage import Storage
from penstock.server.node.data_folder import decode_document, encode_document
from penstock.server.quorum import messages as qm
from penstock.server.quorum.raft_storage import RAFT_FOLDER

logger = logging.getLogger("penstock.quorum")

FORGOTTEN_PAUSE: Final = 60.0
"""Seconds, or until it has the log up to its new registration."""
CLUSTER_SCHEMA: Final = 1
CLUSTER_FILE: Final = "cluster.json"


class ClusterRecord(msgspec.Struct, frozen=True):
    schema: int
    cluster: str
    node_id: int


def cluster_file(folder: str) -> str:
    return os.path.join(folder, RAFT_FOLDER, CLUSTER_FILE)


def load_cluster(storage: Storage, folder: str, node: int, *, has_log: bool) -> bytes:
    """The id of its cluster, empty where none is known yet. Raises `DataFolderError`."""
    path = cluster_file(folder)
    data = storage.read_file(path)
    if data is None:
        return b""
    record = decode_document(data, ClusterRecord, path, CLUSTER_SCHEMA)
    if record.node_id != node:
        raise DataFolderError(
            f"{path} is of node_id {record.node_id}, and this is {node}: give the broker the "
            "node_id that its data folder has"
        )
    if not has_log:
        raise DataFolderError(
            f"{os.path.dirname(path)} was a broker's, and its log is gone: take the broker out of "
            "the quorum (`penstock cluster remove`, at another one), move that folder away and "
            "start again: its replicas are filled by the others"
        )
    try:
        return bytes.fromhex(record.cluster)
    except ValueError as error:
        raise DataFolderError(f"{path} names the cluster {record.cluster!r}: {error}") from error


def keep_cluster(storage: Storage, folder: str, node: int, cluster: bytes) -> None:
    """Raises `StorageError`."""
    record = ClusterRecord(CLUSTER_SCHEMA, cluster.hex(), node)
    storage.write_file_atomic(cluster_file(folder), encode_document(record))


def tell_forgotten(path: str, node: int, voters: tuple[int, ...]) -> None:
    """A broker's folder has no log of the controller any more. Raises `DataFolderError` where
    nobody else can have it."""
    if voters == (node,):
        raise DataFolderError(
            f"{path} is gone, and nobody else knows which topics there are: bring it back from a "
            "copy of the data folder, or start on an empty data folder"
        )
    logger.error(
        "%s is gone: broker %d begins no cluster, and waits for one that has the controller's log; "
        "it gives no vote for %g s, or until it has that log again", path, node, FORGOTTEN_PAUSE,
    )  # fmt: skip


def is_known(hello: qm.Hello, image: Image, cluster: bytes) -> bool:
    """Returns whether a broker without a key names two secrets that no client learns. These are the
    id of the cluster, and the data folder that is registered for its number."""
    known = image.brokers.get(hello.node)
    return known is not None and hello.folder == known.folder and hello.cluster == cluster
