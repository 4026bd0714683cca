"""Control batches: golden bytes, header and record agree, nothing else passes for one."""

from __future__ import annotations

import golden_batches
import pytest
from batch_bytes import put, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import header as hd
from penstock.core.control import (
    Control,
    ControlType,
    control_of,
    encode_control,
    is_control,
    read_control,
)
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.plain import encode_records

PRODUCER = 0x1122334455667788
COORDINATOR = 0x0A0B0C0D


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("control-begin", ControlType.BEGIN),
        ("control-commit", ControlType.COMMIT),
        ("control-abort", ControlType.ABORT),
    ],
)
def test_golden_control_batches_say_what_they_said(name, kind):
    image = bytes(golden_batches.load(name))
    head = hd.checked(image)
    assert is_control(head)
    assert head.last_offset_delta == 0
    assert read_control(image, 0, head) == Control(kind, PRODUCER, 3, COORDINATOR)


@settings(derandomize=True, max_examples=100)
@given(
    kind=st.sampled_from(ControlType),
    producer_id=st.integers(0, (1 << 64) - 1),
    epoch=st.integers(0, (1 << 32) - 2),
    coordinator_epoch=st.integers(0, (1 << 32) - 1),
)
def test_what_goes_in_comes_out(kind, producer_id, epoch, coordinator_epoch):
    image = encode_control(
        kind,
        producer_id=producer_id,
        producer_epoch=epoch + (kind is not ControlType.BEGIN),
        coordinator_epoch=coordinator_epoch,
        timestamp=1,
        topic_id=bytes(16),
        partition=0,
    )
    head = hd.checked(image)
    assert control_of(head) == Control(kind, producer_id, epoch, coordinator_epoch)
    assert read_control(image, 0, head) == control_of(head)


def test_a_type_of_the_future_is_named():
    image = bytearray(golden_batches.load("control-begin"))
    put(image, base_sequence=9)
    with pytest.raises(UnsupportedVersionError, match="type 9"):
        control_of(hd.checked(reseal(image)))


@pytest.mark.parametrize(
    "fields",
    [
        {"base_sequence": 2},  # COMMIT in the header, BEGIN in the record
        {"base_sequence": 5 << 32 | 1},  # of another coordinator
        {"attributes": hd.ATTR_CONTROL | hd.ATTR_HAS_KEYS},
        {"base_sequence": 2, "producer_epoch": 0},
        {"attributes": 3},  # without the keys, the record says nothing
    ],
)
def test_a_header_that_its_record_contradicts_is_refused(fields):
    image = bytearray(golden_batches.load("control-begin"))
    put(image, **fields)
    reseal(image)
    with pytest.raises(CorruptBatchError):
        read_control(image, 0, hd.checked(image))


def test_two_records_are_no_control_batch():
    image = encode_records(
        [(b"\1\0\1\0", bytes(8))] * 2,
        hd.BatchIdentity(bytes(16), 0, 1, 0, 1),
        base_timestamp=1,
        attributes=3,
    )
    with pytest.raises(CorruptBatchError, match="2 offsets"):
        read_control(image, 0, hd.checked(image))
