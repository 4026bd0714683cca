"""The data folder: its lock, and node.json with the state that must outlive the node.

Owns the folder's identity, the clean mark and the number blocks. Each block is reserved on stable
storage before its first number is used (rule 3). Knows nothing of topics or processes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.errors import DataFolderError, NotConnectedError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.ownership import LOCK_FILE, is_same_place, place_of
from penstock.ipc.paths import private_folder
from penstock.server.node.clock import NodeClock

NODE_SCHEMA: Final = 1
GENERATION_BLOCK: Final = 1000
GENERATIONS_MAX: Final = (1 << 32) - 1
PRODUCER_BLOCK: Final = 10_000
COORDINATOR_BLOCK: Final = 100
EPOCHS_MAX: Final = (1 << 32) - 1
NODE_FILE: Final = "node.json"
TOPICS_FILE: Final = "topics.json"

_Document = TypeVar("_Document", bound=msgspec.Struct)


class NodeRecord(msgspec.Struct, frozen=True):
    """node.json. `generations`, `producers` and `coordinators` (epochs of the coordinator) are the
    first numbers beyond the reserved blocks. `listen`: where remote clients were admitted last.
    `node_id`: of the broker whose folder it is, 0 of a node that is alone. `losses_told`: the
    cluster knows of every end after which records may be missing here. `broker_epoch`: of its last
    life in that cluster, by which an older copy of the folder is known. `id_block`: the block that
    the producer ids of a broker are of, which its controller gave. `cluster`: the id of the cluster
    whose records are here. `shm`: what the names of its objects in /dev/shm begin with; `place`:
    where the folder was in its last run (both: `penstock.ipc.ownership`)."""

    schema: int
    uuid: str
    boot_id: str
    clean: bool
    writers: int
    generations: int
    producers: int
    coordinators: int = 1
    listen: str = ""
    node_id: int = 0
    losses_told: bool = True
    broker_epoch: int = 0
    id_block: int = 0
    cluster: str = ""
    shm: str = ""
    place: str = ""


class FolderLock:
    """The exclusive lock of a data folder.

    Writer processes inherit its open file, so it is free only when the node and all its writers are
    gone (rule 9).
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, LOCK_FILE)
        try:
            self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderError(
                f"cannot open {self._path}: {error.strerror}. Give uid {os.geteuid()} the folder, "
                "or choose another"
            ) from error

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def refusal(self, waited: float) -> DataFolderError:
        """Returns the error for a start that waited for the lock in vain."""
        holder = os.pread(self.fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        folder = os.path.dirname(self._path)
        gone = holder.isdigit() and not os.path.exists(f"/proc/{holder}")
        who = f"the writers of its dead node {holder}" if gone else f"the node of pid {holder}"
        return DataFolderError(
            f"data folder {folder} is held by {who}, and was not free within {waited:g} s "
            f"(lock_timeout): {'try again' if gone else 'stop that node or use another folder'}"
        )

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class DataFolder:
    """An opened data folder. `record` is what node.json holds at any time."""

    def __init__(self, path: str, storage: Storage, record: NodeRecord, boot_id: str) -> None:
        self.path = path
        self.storage = storage
        self.record = record
        self.was_clean = record.clean
        """Whether the run before ended with every log closed."""
        self.was_copied = bool(record.place) and not is_same_place(
            record.place, place_of(path), same_boot=record.boot_id == boot_id
        )
        """Whether it is another folder than the one of its last run: a copy, or moved to another
        file system."""
        lived_on = record.boot_id == boot_id and not self.was_copied
        self.lost_nothing = record.losses_told and (record.clean or lived_on)
        """Whether all that was ever in its logs still is: the death of processes loses nothing. An
        end of the system without a clean one before may, and what was copied then may lack more."""
        self._generation = record.generations
        self._producer = record.producers
        self._coordinator = record.coordinators
        self.clock = NodeClock(path, storage, boot_id)
        self._may_give_ids = False
        """Whether the controller said in this run which block its producer ids are of."""

    @classmethod
    def open(cls, path: str, boot_id: str, storage: Storage | None = None) -> DataFolder:
        """Read node.json, or make a new identity for an empty folder. The caller holds the lock."""
        storage = storage or Storage()
        data = storage.read_file(os.path.join(path, NODE_FILE))
        if data is None:
            left = [name for name in storage.listdir(path) if _is_of_a_node(name)]
            if left:
                raise DataFolderError(
                    f"{path} has {sorted(left)[0]} but no {NODE_FILE}: bring {NODE_FILE} back from "
                    "a copy of the folder, or start on an empty folder"
                )
            record = NodeRecord(NODE_SCHEMA, os.urandom(16).hex(), boot_id, True, 0, 1, 1)
        else:
            record = decode_document(data, NodeRecord, os.path.join(path, NODE_FILE), NODE_SCHEMA)
            if len(record.uuid) != 32 or not set(record.uuid) <= set("0123456789abcdef"):
                raise DataFolderError(
                    f"{path}/{NODE_FILE} has the uuid {record.uuid!r}, which is none: bring the "
                    "file back from a copy of the folder"
                )
        return cls(path, storage, record, boot_id)

    def check_broker(self, node_id: int, *, has_topics: bool) -> None:
        """Raise DataFolderError unless this folder may be that broker's (0: of a node alone)."""
        known = self.record.node_id
        if known == node_id:
            return
        if known:
            who = f"broker {node_id}" if node_id else "a node that is alone"
            raise DataFolderError(
                f"{self.path} is the folder of broker {known} and not of {who}: start it with "
                f"--node-id {known}, or use another folder"
            )
        if has_topics:
            raise DataFolderError(
                f"{self.path} has topics of a node that was alone, which no cluster knows: start "
                f"broker {node_id} on an empty folder, and copy what is to be kept"
            )

    def owns_objects_of(self, owner: str) -> None:
        """Have it on the device before anything is made in shared memory under that name."""
        if owner != self.record.shm:
            self._write(shm=owner, place=place_of(self.path))

    def becomes(self, uuid: str) -> None:
        """Have an identity that no other folder has, with nothing of the one before."""
        self._write(uuid=uuid, shm="", place="", listen="")

    def begin(self, boot_id: str, writers: int, node_id: int = 0) -> None:
        """Start a run: the clean mark is gone, and the run's first number blocks are reserved."""
        self._write(
            place=place_of(self.path),
            boot_id=boot_id,
            clean=False,
            node_id=node_id,
            losses_told=self.lost_nothing,
            writers=writers,
            generations=self._generation + GENERATION_BLOCK,
            producers=self._producer + PRODUCER_BLOCK,
            coordinators=self._coordinator + COORDINATOR_BLOCK,
        )

    def listens_at(self, url: str) -> None:
        """Records the URL at which remote clients are admitted, for local readers of node.json."""
        if url != self.record.listen:
            self._write(listen=url)

    def registered_as(self, broker_epoch: int, id_block: int) -> None:
        """It is this life of a broker from now on, and gives producer ids of that block."""
        if broker_epoch > self.record.broker_epoch or id_block != self.record.id_block:
            self._write(broker_epoch=broker_epoch, id_block=id_block)
        self._may_give_ids = id_block > 0

    @property
    def was_registered(self) -> bool:
        """Whether it was a broker's whom a controller knew, and may have records."""
        return self.record.broker_epoch > 0

    def belongs_to(self, cluster: bytes) -> None:
        """It has records of that cluster from now on. Raises `DataFolderError` where it has those
        of another one, which that one would have removed."""
        known = self.record.cluster
        if known and known != cluster.hex():
            raise DataFolderError(
                f"{self.path} has records of cluster {known}, and the brokers of controller_quorum "
                f"are cluster {cluster.hex()}: find out which of them lost the folder raft in its "
                "data folder, and bring that back; or start this broker on an empty data folder"
            )
        if not known:
            self._write(cluster=cluster.hex())

    def losses_are_told(self) -> None:
        """The controller knows what may be missing here."""
        if not self.record.losses_told:
            self._write(losses_told=True)

    def mark_clean(self) -> None:
        """Every log was synced and closed; unused numbers go back."""
        self._write(
            clean=True,
            generations=self._generation,
            producers=self._producer,
            coordinators=self._coordinator,
        )

    def make_folders(self, paths: Iterable[str]) -> None:
        """Have these folders in it, on the device. Any one of them that a killed node left unsynced
        is there for certain once the next has begun."""
        missing = [path for path in paths if not self.storage.exists(path)]
        for path in missing:
            self.storage.makedirs(path)
        if missing:
            self.storage.fsync_folder(self.path)

    def next_generation(self) -> int:
        """A writer generation that no run has used before."""
        if self._generation >= self.record.generations:
            self._write(generations=self._generation + GENERATION_BLOCK)
        if self._generation > GENERATIONS_MAX:
            raise DataFolderError("the 2**32 writer generations of this data folder are used up")
        self._generation += 1
        return self._generation - 1

    def next_producer_id(self) -> int:
        """A producer id that nobody used before: 24 bits of the node's uuid, or a broker's block,
        and 40 of a counter. Raises `NotConnectedError`."""
        if self.record.node_id and not self._may_give_ids:
            raise NotConnectedError(
                f"broker {self.record.node_id} has no producer ids to give: the controller has not "
                "told it in this run which ones are its own. Ask again when it is registered"
            )
        if self._producer >= self.record.producers:
            self._write(producers=self._producer + PRODUCER_BLOCK)
        self._producer += 1
        block = self.record.id_block << lo.PRODUCER_COUNTER_BITS
        return (block if self.record.node_id else self._prefix) | (self._producer - 1)

    def next_coordinator_epoch(self) -> int:
        """An epoch that no coordinator of this folder has used before (rule 17)."""
        if self._coordinator >= self.record.coordinators:
            self._write(coordinators=self._coordinator + COORDINATOR_BLOCK)
        if self._coordinator > EPOCHS_MAX:
            raise DataFolderError("the 2**32 coordinator epochs of this data folder are used up")
        self._coordinator += 1
        return self._coordinator - 1

    @property
    def coordinator_id(self) -> int:
        """The producer id that the coordinator writes under: the one whose counter is 0."""
        return self._prefix

    @property
    def replicator_id(self) -> int:
        """The producer id of the replicator's lanes."""
        return lo.replicators_id(self._prefix)

    def may_be_ours(self, producer_id: int) -> bool:
        """Whether this folder can have given out that producer id. In a cluster any broker may
        have, or this one from the block that it had before: who holds an id keeps it."""
        if self.record.node_id:
            return 0 < producer_id < 1 << 64 and not (
                lo.is_coordinators(producer_id) or lo.is_replicators(producer_id)
            )
        counter = producer_id - self._prefix
        return 0 < counter < self.record.producers

    @property
    def uuid(self) -> bytes:
        return bytes.fromhex(self.record.uuid)

    @property
    def _prefix(self) -> int:
        """Of the ids of its own processes; and of its clients', where it is alone."""
        return int(self.record.uuid[:6], 16) << lo.PRODUCER_COUNTER_BITS

    def _write(self, **changes: object) -> None:
        record = msgspec.structs.replace(self.record, **changes)
        path = os.path.join(self.path, NODE_FILE)
        self.storage.write_file_atomic(path, encode_document(record))
        self.record = record


def make_folder(path: str) -> str:
    """The data folder, made if need be, and ours alone."""
    return private_folder(path)


def encode_document(document: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_document(data: bytes, kind: type[_Document], path: str, schema: int) -> _Document:
    """One of the folder's JSON files, or DataFolderError that says what to do."""
    try:
        found = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
        if isinstance(found, int) and found > schema:
            raise DataFolderError(
                f"{path} has schema {found}, this build reads up to {schema}: use the Penstock "
                "version that wrote it, or a newer one"
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise DataFolderError(
            f"{path} cannot be read ({error}): it is written whole or not at all, so it was "
            "damaged later. Bring it back from a copy of the folder; the logs are not touched"
        ) from error


def is_partition_folder(name: str) -> bool:
    """Whether a name in the data folder is `<topic id>-<partition>`."""
    topic, _, partition = name.partition("-")
    return len(topic) == 32 and set(topic) <= set("0123456789abcdef") and partition.isdigit()


def _is_of_a_node(name: str) -> bool:
    return name == TOPICS_FILE or is_partition_folder(name)
