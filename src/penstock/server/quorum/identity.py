"""Of which cluster a data folder is: `raft/cluster.json`, which goes with raft's files.

Written once the cluster has an id. From then on a raft log that is not there any more was lost: the
broker would begin anew with votes that it gave already, and does not start.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from penstock.core.errors import DataFolderError
from penstock.core.storage import Storage
from penstock.server.datafolder import decode_document, encode_document
from penstock.server.quorum.disk import RAFT_FOLDER

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
