"""A backup's folder: what lies in it, its checksums, and its writing and reading.

    DIR/lock                                 held by the process that works on it
    DIR/backup.json                          {"sha256": of the rest, "manifest": {...}}
    DIR/<topic id>-<partition>/<offset>.records

    records file:  MAGIC | block | block | ...
    block:         length u32 | crc32c u32 | raw length u32 | payload (lz4 block of msgpack)

The manifest names every file with its length and sha256, and is replaced by a rename once those
files are on the device. So a backup that was killed is the one before it, and files that no
manifest names are rests, which the next run removes.

Owns these formats and their bounds. Never talks to a node.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Self

import lz4.block
import msgspec

from penstock.client.validation import HEADERS_MAX
from penstock.core.columns import HeaderList
from penstock.core.crc import crc32c
from penstock.core.errors import PenstockError
from penstock.core.storage import Storage

SCHEMA: Final = 1
MANIFEST: Final = "backup.json"
LOCK: Final = "lock"
SUFFIX: Final = ".records"
MAGIC: Final = b"PSTKBAK1"
HEAD: Final = struct.Struct("<III")
BLOCK_BYTES_MAX: Final = 1 << 28
"""A block that claims more is damaged."""
RECORDS_MAX: Final = 1 << 20
"""Records of a block, far above what `create` puts into one: a few bytes could else claim lists of
gigabytes."""
FILE_BYTES_MAX: Final = 1 << 30
"""A file that has grown so far is ended, and another one begun."""
MANIFEST_BYTES_MAX: Final = 1 << 30


class BackupError(PenstockError):
    """A backup is damaged, or does not fit what it is to be made of or restored to."""


_Items = msgspec.Meta(max_length=RECORDS_MAX)
_HEADERS: Final = msgspec.msgpack.Decoder(
    Annotated[HeaderList, msgspec.Meta(max_length=HEADERS_MAX)]
)


def pack_headers(headers: HeaderList) -> msgspec.Raw:
    """Headers of a record as a block has them."""
    return msgspec.Raw(msgspec.msgpack.encode(headers))


class RecordBlock(msgspec.Struct, array_like=True):
    """Records as columns; `headers` and `work` are None where no record has any. Headers are packed
    until somebody asks for those of a record: a byte in a file would else claim a list in memory.
    """

    offsets: Annotated[list[int], _Items]
    timestamps: Annotated[list[int], _Items]
    keys: Annotated[list[bytes | None], _Items]
    values: Annotated[list[bytes | None], _Items]
    headers: Annotated[list[msgspec.Raw], _Items] | None
    work: (
        Annotated[list[tuple[int | None, int | None, int | None, bytes | None] | None], _Items]
        | None
    )

    def is_whole(self) -> bool:
        """Whether all columns have as many items."""
        columns = (self.timestamps, self.keys, self.values, self.headers, self.work)
        return all(len(one) == len(self.offsets) for one in columns if one is not None)

    def headers_of(self, row: int) -> HeaderList | None:
        """Of the record in that row; None where it has none. Raises `BackupError`."""
        if self.headers is None:
            return None
        try:
            return _HEADERS.decode(self.headers[row]) or None
        except msgspec.MsgspecError as error:
            raise BackupError(
                f"the headers of the record at offset {self.offsets[row]} are damaged: {error}"
            ) from error


class BackupFile(msgspec.Struct):
    """A records file: offsets from `first` to before `next`."""

    name: str
    first: int
    next: int
    records: int
    length: int
    sha256: str
    earliest: int | None
    latest: int | None


class BackupPartition(msgspec.Struct):
    """`next`: where the next run goes on. `gaps`: offsets that were deleted before a run came."""

    next: int = 0
    gaps: list[tuple[int, int]] = []
    files: list[BackupFile] = []

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


class BackupTopic(msgspec.Struct):
    topic_id: str
    settings: dict[str, Any]
    partitions: list[BackupPartition]


class BackupManifest(msgspec.Struct):
    """`groups`: what each had committed when the last run began, as exported offsets in JSON."""

    schema: int = SCHEMA
    runs: list[float] = []
    topics: dict[str, BackupTopic] = {}
    groups: dict[str, msgspec.Raw] = {}


class _Sealed(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


class BackupFolder:
    """A folder with its lock, for one process at a time. Raises `BackupError`."""

    def __init__(self, path: str | os.PathLike[str], *, make: bool = False) -> None:
        self.path = Path(path)
        if make:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            others = [name for name in os.listdir(self.path) if name not in (LOCK, MANIFEST)]
            if others and not (self.path / MANIFEST).exists() and not (self.path / LOCK).exists():
                raise BackupError(f"{self.path} has other files: name an empty folder, or a backup")
        elif not (self.path / MANIFEST).is_file():
            raise BackupError(f"{self.path} is no backup: there is no {MANIFEST}")
        self._refuse_links()
        self._storage = Storage()
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise BackupError(f"{self.path} is in use by another backup or restore") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _refuse_links(self) -> None:
        """A link would have files elsewhere read, written over or removed."""
        for folder, folders, names in os.walk(self.path):
            for place in (os.path.join(folder, name) for name in (*folders, *names)):
                if os.path.islink(place):
                    raise BackupError(
                        f"{place} is a symbolic link, and a backup has none: put its files there"
                    )

    def load(self) -> BackupManifest:
        """The manifest; an empty one where there is none yet."""
        data = self._storage.read_file(str(self.path / MANIFEST))
        if data is None:
            return BackupManifest()
        try:
            sealed = msgspec.json.decode(data, type=_Sealed)
            if hashlib.sha256(bytes(sealed.manifest)).hexdigest() != sealed.sha256:
                raise BackupError(f"{self.path / MANIFEST} is damaged: its checksum is wrong")
            found = msgspec.json.decode(bytes(sealed.manifest), type=BackupManifest)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BackupError(f"{self.path / MANIFEST} is damaged: {error}") from error
        if found.schema != SCHEMA:
            raise BackupError(
                f"{self.path} is a backup of schema {found.schema}: this version reads {SCHEMA}"
            )
        return found

    def save(self, manifest: BackupManifest) -> None:
        """Once all files that it names are on the device."""
        body = msgspec.json.encode(manifest)
        sealed = _Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
        self._storage.write_file_atomic(str(self.path / MANIFEST), msgspec.json.encode(sealed))

    def remove_rests(self, manifest: BackupManifest) -> None:
        """Removes files of a run that was killed."""
        named = {file.name for _, _, file in files_of(manifest)}
        for path in self.path.glob(f"*-*/*{SUFFIX}"):
            if str(path.relative_to(self.path)) not in named:
                path.unlink()

    def writer(self, topic_id: str, partition: int, first: int) -> RecordsWriter:
        folder = self.path / f"{topic_id}-{partition}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return RecordsWriter(self.path, f"{folder.name}/{first:020d}{SUFFIX}", first)

    # --- reading ---
    def check(self, file: BackupFile) -> None:
        """Reads a file to its end. Raises `BackupError` where it is another than was written."""
        path = self._path_of(file)
        try:
            with open(path, "rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
                length = opened.tell()
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {error.strerror}") from error
        if length != file.length:
            raise BackupError(f"{path} is damaged: it has {length} bytes, not {file.length}")
        if digest != file.sha256:
            raise BackupError(f"{path} is damaged: its sha256 is wrong")

    def blocks(self, file: BackupFile) -> Iterator[RecordBlock]:
        """Its records, block by block. Raises `BackupError`."""
        path = self._path_of(file)
        try:
            with open(path, "rb") as opened:
                if opened.read(len(MAGIC)) != MAGIC:
                    raise BackupError(f"{path} is damaged: it does not begin like a records file")
                while head := opened.read(HEAD.size):
                    yield _read_block(path, opened, head)
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {error.strerror}") from error

    def _path_of(self, file: BackupFile) -> Path:
        folder, _, name = file.name.partition("/")
        if not folder or "/" in name or not name.endswith(SUFFIX) or folder.startswith("."):
            raise BackupError(f"{self.path / MANIFEST} is damaged: it names a file {file.name!r}")
        return self.path / folder / name


def files_of(manifest: BackupManifest) -> Iterator[tuple[str, int, BackupFile]]:
    """Topic, partition and file of all."""
    for name, topic in manifest.topics.items():
        for number, partition in enumerate(topic.partitions):
            for file in partition.files:
                yield name, number, file


def _read_block(path: Path, opened: BinaryIO, head: bytes) -> RecordBlock:
    where = f"{path} is damaged at byte {opened.tell() - len(head)}"
    if len(head) < HEAD.size:
        raise BackupError(f"{where}: a block is cut off")
    length, crc, raw = HEAD.unpack(head)
    if max(length, raw) > BLOCK_BYTES_MAX:
        raise BackupError(f"{where}: a block of {max(length, raw)} bytes")
    payload = opened.read(length)
    if len(payload) != length or crc32c(payload) != crc:
        raise BackupError(f"{where}: a checksum is wrong")
    try:
        block = msgspec.msgpack.decode(
            lz4.block.decompress(payload, uncompressed_size=raw), type=RecordBlock
        )
    except (msgspec.MsgspecError, lz4.block.LZ4BlockError, RecursionError) as error:
        raise BackupError(f"{where}: {error}") from error
    if not block.is_whole():
        raise BackupError(f"{where}: its columns have different lengths")
    return block


class RecordsWriter:
    """One records file, until `finish`."""

    def __init__(self, root: Path, name: str, first: int) -> None:
        self._path = root / name
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "wb")
        self._digest = hashlib.sha256()
        self.told = BackupFile(name, first, first, 0, 0, "", None, None)
        self._put(MAGIC)

    def add(self, block: RecordBlock, next_offset: int) -> None:
        """Appends records; `next_offset`: behind the last of them."""
        encoded = msgspec.msgpack.encode(block)
        payload = lz4.block.compress(encoded, store_size=False)
        if max(len(payload), len(encoded)) > BLOCK_BYTES_MAX:
            raise BackupError(f"a batch of {len(encoded)} bytes is over {BLOCK_BYTES_MAX}")
        self._put(HEAD.pack(len(payload), crc32c(payload), len(encoded)))
        self._put(payload)
        told = self.told
        told.next, told.records = next_offset, told.records + len(block.offsets)
        first, last = min(block.timestamps), max(block.timestamps)
        told.earliest = first if told.earliest is None else min(told.earliest, first)
        told.latest = last if told.latest is None else max(told.latest, last)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.told.length += len(data)

    def finish(self) -> BackupFile:
        """Its entry, once it is on the device."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        Storage().fsync_folder(str(self._path.parent))
        self.told.sha256 = self._digest.hexdigest()
        return self.told

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self._path.unlink()
