"""What a transaction commits beside its records."""

from __future__ import annotations

import pytest

from penstock.client.consumer.group.consumed import (
    GrantedPartitions,
    GroupBatch,
    consumed_offsets,
    rewind,
)
from penstock.client.consumer.records import Chunk, RecordBatch
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.errors import ConfigError
from penstock.core.header import BatchIdentity, checked
from penstock.ipc.coordination import GroupOffsets, OffsetCommit, Owned

OWNED = {
    ("orders", 0): Owned("orders", b"o" * 16, 0, 3, 7, revoked=False),
    ("orders", 1): Owned("orders", b"o" * 16, 1, 4, 9, revoked=False),
}
OWNERSHIP = GrantedPartitions("billing", "member-1", OWNED)


def chunk(partition, count=3):
    image = memoryview(
        encode_batch([b"x"] * count, BatchIdentity(b"o" * 16, partition), base_timestamp=0).image()
    )
    return Chunk("orders", partition, decode(image, 0, checked(image, 0)))


def _but_grant(owned, grant):
    return owned.topic, owned.topic_id, owned.partition, owned.page, grant, owned.revoked


class Source:
    def __init__(self):
        self.rewound = []

    def offsets_of(self, batch=None):
        if batch is not None:
            return batch.consumed
        return GroupOffsets("audit", "member-2", [OffsetCommit(b"c" * 16, 0, 1, 5, 0)])

    def rewind(self, batch=None):
        self.rewound.append(batch)


def test_a_batch_commits_the_end_of_each_partition_under_the_grants_it_was_read_under():
    first, second = chunk(0).cut(0, 2), chunk(1)
    [offsets] = consumed_offsets(GroupBatch([first, chunk(0).cut(0, 3), second], OWNERSHIP))
    assert offsets == GroupOffsets(
        "billing",
        "member-1",
        [OffsetCommit(b"o" * 16, 0, 7, 3, 0), OffsetCommit(b"o" * 16, 1, 9, 3, 0)],
    )


def test_several_groups_commit_in_one_transaction_and_nothing_consumed_commits_nothing():
    source = Source()
    batch = GroupBatch([chunk(0)], OWNERSHIP, source)
    assert [found.group for found in consumed_offsets([batch, source])] == ["billing", "audit"]
    assert consumed_offsets(None) == []
    assert consumed_offsets(GroupBatch([], OWNERSHIP)) == []


def test_of_several_batches_of_a_partition_the_furthest_is_committed():
    early, late = chunk(0).cut(0, 1), chunk(0).cut(1, 3)
    batches = [GroupBatch([each], OWNERSHIP) for each in (late, chunk(1), early)]
    [offsets] = consumed_offsets(batches)
    assert [(each.partition, each.offset) for each in offsets.offsets] == [(0, 3), (1, 3)]


def test_what_was_read_under_an_older_grant_is_named_beside_the_newer_and_refuses_both():
    newer = {name: Owned(*_but_grant(owned, 11)) for name, owned in OWNED.items()}
    batches = [
        GroupBatch([chunk(0)], OWNERSHIP),
        GroupBatch([chunk(0)], GrantedPartitions("billing", "member-1", newer)),
    ]
    [offsets] = consumed_offsets(batches)
    assert [each.grant for each in offsets.offsets] == [7, 11]


def test_what_was_rewound_since_is_named_under_no_grant_and_what_stands_before_it_is_not():
    early, late = (GroupBatch([chunk(0).cut(*rows)], OWNERSHIP) for rows in ((0, 1), (1, 3)))
    now = OWNERSHIP.rewound({("orders", 0): 1})
    again = GroupBatch(late.chunks, now)
    grants = [batch.consumed_under(now).offsets[0].grant for batch in (early, late, again)]
    assert grants == [7, 0, 7]
    later = now.rewound({("orders", 0): 9})
    assert again.consumed_under(later).offsets[0].grant == 0  # nobody knows better: it comes again


def test_rewind_reaches_the_consumer_that_brought_it():
    source = Source()
    batch = GroupBatch([chunk(0)], OWNERSHIP, source)
    rewind([batch, source])
    assert source.rewound == [batch, None]


def test_what_no_group_brought_is_refused():
    with pytest.raises(ConfigError, match="consumer of a group"):
        consumed_offsets(RecordBatch([chunk(0)]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="consumer of a group"):
        consumed_offsets(7)  # type: ignore[arg-type]
