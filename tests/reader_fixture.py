"""Logs for tests of the reader: real ones that grow and roll, and segment files made by hand."""

from __future__ import annotations

import os

from batch_bytes import identified, put, reseal

from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.log import Log, LogConfig
from penstock.core.reader import Limit, LogReader
from penstock.core.segment import list_segments, segment_path
from penstock.core.storage import Storage

TOPIC = bytes(range(16))
BOOT = "0d9a4f5e-boot"
ALL = 1 << 40
TIME = 1_700_000_000_000_000


class World:
    """A real log in a real folder, and what was appended to it, in order."""

    def __init__(self, folder, **config):
        self.folder = str(folder)
        self.storage = Storage()
        self.log, _ = Log.open(
            self.storage,
            self.folder,
            LogConfig(**{"preallocate_bytes": 1 << 16, "index_interval_bytes": 512, **config}),
            topic_id=TOPIC,
            partition=0,
            generation=1,
            now_us=TIME,
            boot_id=BOOT,
            node_clean=True,
        )
        self.values = []
        self.ends = [0]  # where batches end, in offsets

    def append(self, *batches, timestamps=None, codec=hd.CODEC_NONE, claimed=None):
        """`claimed`: the newest time that the header says, where it is not the records'."""
        images = []
        for values in batches:
            stamps = None if timestamps is None else [next(timestamps) for _ in values]
            encoded = encode_batch(
                values,
                hd.BatchIdentity(TOPIC, 0, 1, base_sequence=len(self.values)),
                base_timestamp=TIME,
                timestamps=stamps,
                codec=codec,
            )
            image = bytearray(encoded.image())
            if claimed is not None:
                put(image, max_timestamp=claimed)
                reseal(image)
            self.values += values
            self.ends.append(len(self.values))
            images.append(memoryview(image))
        results = self.log.append(images, TIME)
        assert not any(result.error for result in results)

    @property
    def limit(self):
        return Limit(self.log.log_end, self.log.segment_base, self.log.valid_bytes)

    def reader(self, offset=0):
        return LogReader(self.storage, self.folder, offset)


def rolling(tmp_path, batches=80, **config):
    """A log of several segments."""
    made = World(tmp_path / "log", segment_bytes=4096, **config)
    for number in range(batches):
        made.append([b"%d/%d" % (number, index) * 9 for index in range(number % 5 + 1)])
    assert len(list_segments(made.storage, made.folder)) > 5
    return made


def values_of(found, offset=0):
    """The records of fetched batches from `offset` on, each as (offset, value)."""
    records: list[tuple[int, bytes | None]] = []
    for head, view, position in found:
        columns = decode(view, position, head)
        start = columns.first_at(offset)
        records += zip(
            columns.offsets[start:].tolist(), columns.values[start:].to_list(), strict=True
        )
    return records


def read_to(reader, limit, bytes_max=ALL):
    """Everything up to the limit, fetched piece by piece."""
    records, wanted = [], reader.offset
    while found := reader.fetch(limit, bytes_max):
        records += values_of(found, wanted)
        wanted = reader.offset
    return records


def expected(world, start=0, stop=None):
    return list(enumerate(world.values))[start:stop]


def images_of(*shapes, base=0, **fields):
    """Stamped batches of hand-made offsets: (base offset, count, options) -> bytes."""
    images = []
    for base_offset, count, options in shapes:
        options = {**fields, **options}
        flags = options.pop("flags", 0)
        encoded = encode_batch(
            [b"%d" % (base_offset + index) for index in range(count)],
            **identified(base_timestamp=TIME, topic_id=TOPIC, partition=0, **options),
        )
        hd.stamp(encoded.header, base_offset=base_offset, leader_epoch=0, generation=1,
                 append_timestamp=TIME, flags=flags)  # fmt: skip
        images.append(encoded.image())
    return images


def write_segment(folder, base, data, tail=4096):
    os.makedirs(folder, exist_ok=True)
    with open(segment_path(str(folder), base), "wb") as file:
        file.write(data + bytes(tail))
