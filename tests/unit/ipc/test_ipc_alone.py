"""A partition's role between its log and its page: what is shown, and when, while syncs fail."""

from __future__ import annotations

import errno
import os

import pytest
from dying import memory
from unit.core.log_helpers import FOLDER, TOPIC, MemoryStorage, numbered, refuse

from penstock.core.errors import StorageError
from penstock.ipc import layout as lo
from penstock.ipc.alone import AloneRole
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.state import StatePage, format_table

SECOND = 1_000_000


@pytest.fixture
def page():
    fd, region = memory(lo.state_table_bytes(4))
    os.close(fd)
    format_table(region, bytes(16), 4)
    return StatePage(region, 2)


def opened(storage: MemoryStorage, page: StatePage, generation: int = 1, **settings) -> AloneRole:
    order = OpenPartition(2, "t", TOPIC, 0, FOLDER, TopicSettings(**settings), False, "boot-1")
    role, _ = AloneRole.open(
        storage, order, page, generation=generation, batch_bytes_max=1 << 16, now_us=1
    )
    return role


def no_folder_sync(call):
    if call.name == "fsync_folder":
        refuse(call, errno.EMFILE)


def test_an_open_whose_sync_finds_no_descriptor_keeps_no_file_open(page):
    storage = MemoryStorage()
    role = opened(storage, page, segment_age=10.0)
    role.append(numbered(1), 1 * SECOND)
    role.append(numbered(1, 1), 20 * SECOND)  # in another segment, whose name is not synced
    after = storage.killed()
    after.fault = no_folder_sync
    for generation in (2, 3):
        with pytest.raises(StorageError) as caught:
            opened(after, page, generation, durability="fsync")
        assert caught.value.retriable
        assert not after.open_files
    after.fault = None
    opened(after, page, 4, durability="fsync")
    assert (page.high_watermark, page.durable) == (2, 2)
