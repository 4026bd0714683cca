"""Puts a cleaned segment in place of its sources, safe against death at every step.

    cleaner   <base>.log.cleaned, .index.cleaned, .time.cleaned, all on the device
    writer    <base>-<end>.swap, a second name of the cleaned log, is the mark: from when the folder
              is fsynced it happens
              indexes renamed, then the log: it now holds all up to <end>
              what the others note of aborts gathered in the first one's .txn
              the other segments below <end> removed, fsync of the folder
              the mark removed

Readers list names and never see a hole. Until the segments behind the first are gone, readers read
them as they were: a segment ends where the next existing one begins. Without a mark an open drops
the prepared files. With one it repeats the second half, and makes the indexes again.

Owns these names and steps. Never judges whether a swap may happen (`cleanup` does) and never looks
into a batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.aborted import decode_aborted, encode_aborted, txn_path
from penstock.core.errors import StorageError
from penstock.core.index import index_paths
from penstock.core.logstart import decode_start, encode_start
from penstock.core.segment import list_segments, remove_segment, segment_path
from penstock.core.storage import TEMPORARY_SUFFIX, Storage

CLEANED_SUFFIX: Final = ".cleaned"
CLEANED_TO_FILE: Final = "cleaned-to"
CLEANED_TO_MAGIC: Final = b"PSCT"
"""A file as `log-start` is one; the cleaner's own, and only a hint."""
_MARK: Final = re.compile(r"(\d{20})-(\d{20})\.swap")
SOURCES_MAX: Final = 1000
"""Segments that one cleaned segment may take the place of."""


@dataclass(frozen=True, slots=True)
class CleanedSource:
    """A segment that was cleaned: the position of its last batch, and that batch's header checksum.
    They tell it from another segment of the same name."""

    base: int
    position: int
    header_crc: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cleaned segment on the device, to take the place of `sources`: all segments from `base` up
    to `end`, where the next one begins."""

    base: int
    end: int
    length: int
    sources: tuple[CleanedSource, ...]


def cleaned_paths(folder: str, base: int) -> tuple[str, str, str]:
    """Where the cleaner writes: log, index, time index."""
    index, times = index_paths(folder, base)
    log = segment_path(folder, base)
    return log + CLEANED_SUFFIX, index + CLEANED_SUFFIX, times + CLEANED_SUFFIX


def drop_prepared(storage: Storage, folder: str, base: int) -> None:
    """Removes prepared files that are not wanted."""
    for path in cleaned_paths(folder, base):
        storage.unlink(path)


def mark_path(folder: str, base: int, end: int) -> str:
    return f"{folder}/{base:020d}-{end:020d}.swap"


def mark_swap(storage: Storage, folder: str, base: int, end: int) -> None:
    """From when this returned the swap will be finished, whatever happens."""
    mark = mark_path(folder, base, end)
    storage.link(cleaned_paths(folder, base)[0], mark)
    try:
        storage.fsync_folder(folder)
    except StorageError:
        storage.unlink(mark)  # it must not outlive what comes instead
        raise


def finish_swap(
    storage: Storage, folder: str, sources: Sequence[int], end: int, *, again: bool
) -> None:
    """The second half of a marked swap, of these segments up to `end`. `again`: somebody died or
    failed in it before, and the indexes may be of either log: without them they are made again."""
    base = sources[0]
    mark = mark_path(folder, base, end)
    cleaned, *indexes = cleaned_paths(folder, base)
    for source, target in zip(indexes, index_paths(folder, base), strict=True):
        if again:
            storage.unlink(target)
        elif storage.exists(source):
            storage.rename(source, target)
    if again:
        storage.unlink(cleaned)
        storage.link(mark, cleaned)
    storage.rename(cleaned, segment_path(folder, base))
    storage.unlink(cleaned)  # a rename to another name of the same file does nothing
    _gather_aborted(storage, folder, sources)
    for other in sources[1:]:
        remove_segment(storage, folder, other)
    storage.fsync_folder(folder)
    storage.unlink(mark)


def _gather_aborted(storage: Storage, folder: str, bases: Sequence[int]) -> None:
    """Gathers the `.txn` entries of all segments in the first one's file. Its own entries stay in
    front, so that readers continue at their places."""
    files = [storage.read_file(txn_path(folder, each)) for each in bases]
    entries = [each for data in files for each in decode_aborted(data or b"")]
    merged = encode_aborted({each.last_offset: each for each in entries}.values())
    if files[1:] and any(data is not None for data in files) and merged != files[0]:
        storage.write_file(txn_path(folder, bases[0]), merged, durable=True)


def is_half_written(name: str) -> bool:
    """Whether a file is what a cleaner that died in the middle of writing one left."""
    whole = name.removesuffix(TEMPORARY_SUFFIX)
    return whole != name and (whole.endswith(CLEANED_SUFFIX) or whole == CLEANED_TO_FILE)


@dataclass(slots=True)
class SwapJob:
    """A swap that is decided. `run` may be called once, in any thread: it makes system calls only,
    on closed segments that nobody writes to."""

    storage: Storage
    folder: str
    prepared: Prepared
    is_marked: bool
    error: StorageError | None = None
    ran: bool = False

    def run(self) -> None:
        """Never raises a `StorageError`: it is kept for the writer that finishes the swap."""
        storage, folder, again = self.storage, self.folder, self.is_marked
        base, end = self.prepared.base, self.prepared.end
        try:
            if not again:
                mark_swap(storage, folder, base, end)
                self.is_marked = True
            sources = [source.base for source in self.prepared.sources]
            finish_swap(storage, folder, sources, end, again=again)
        except StorageError as error:
            self.error = error
        self.ran = True


def load_cleaned_to(storage: Storage, folder: str) -> int:
    """The offset below which the log was cleaned as a whole; 0 if that is not known."""
    data = storage.read_file(f"{folder}/{CLEANED_TO_FILE}") or b""
    return decode_start(data, CLEANED_TO_MAGIC) or 0


def save_cleaned_to(storage: Storage, folder: str, offset: int) -> None:
    """Only after all swaps below. An old value costs the next cleaning time and nothing else."""
    data = encode_start(offset, CLEANED_TO_MAGIC)
    storage.write_file(f"{folder}/{CLEANED_TO_FILE}", data, durable=False)


def forget_cleaned_to(storage: Storage, folder: str) -> None:
    """Before a truncation: what comes in the place of what goes was never cleaned."""
    storage.unlink(f"{folder}/{CLEANED_TO_FILE}")


def finish_swaps(storage: Storage, folder: str) -> None:
    """Finishes the marked swaps at open. The caller removes the files that are only prepared."""
    found = (_MARK.fullmatch(name) for name in storage.listdir(folder))
    marks = sorted((int(match[1]), int(match[2])) for match in found if match)
    if marks:
        storage.fsync_folder(folder)  # a dead process may have made only the mark's name
    for base, end in marks:
        others = [each for each in list_segments(storage, folder) if base < each < end]
        finish_swap(storage, folder, [base, *others], end, again=True)
