"""zstd beside lz4: the same batch comes back, hostile blocks stay within their claim, and where the
library is missing both sides say so."""

from __future__ import annotations

import random
import sys
import tracemalloc
from typing import Any

import golden_batches
import pytest
from batch_bytes import batch, body_of, int32s
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.producer.config import ProducerConfig
from penstock.core import codecs
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.errors import ConfigError, CorruptBatchError, UnsupportedVersionError

zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

FIELDS: dict[str, Any] = {"base_timestamp": 0, "identity": hd.BatchIdentity(bytes(16), 0)}
RAW = body_of([(1, 1, b""), (7, 0, int32s(0, 3, 3)), (8, 0, b"one")])


def values_of(image):
    view = memoryview(bytes(image))
    return decode(view, 0, hd.checked(view)).values.to_list()


def packed(raw, block=None, **fields):
    block = zstd.compress(raw) if block is None else block
    body = len(block).to_bytes(4, "little") + bytes(4) + block
    return batch(body, **{"record_count": 2, "codec": 2, "raw_body_length": len(raw), **fields})


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=50), st.integers(1, 200))
def test_what_was_compressed_comes_back(values, times):
    values = values * times
    encoded = encode_batch(values, codec=hd.CODEC_ZSTD, **FIELDS)
    assert values_of(encoded.image()) == values
    assert encoded.length <= encode_batch(values, **FIELDS).length


def test_zstd_makes_a_batch_smaller_or_is_not_used():
    small = encode_batch([b"0" * 100_000], codec=hd.CODEC_ZSTD, **FIELDS)
    assert (small.header[48], small.length < 2_000) == (hd.CODEC_ZSTD, True)
    noise = random.Random(1).randbytes(256)
    same = encode_batch([noise], codec=hd.CODEC_ZSTD, **FIELDS)
    assert same == encode_batch([noise], **FIELDS)


def test_golden_bytes_are_read():
    """Written once; the library may write other bytes one day, and must read these."""
    image = golden_batches.load("zstd", golden_batches.READ_ONLY)
    assert values_of(image) == [b"x" * 200, None, b"y" * 200]


def peak_of(image):
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            values_of(image)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_that_claims_less_than_it_holds_takes_no_more_than_its_claim():
    assert peak_of(packed(bytes(64 << 20), raw_body_length=4096)) < 1 << 18


def test_a_claim_above_the_bound_is_refused_before_it_is_expanded():
    assert peak_of(packed(RAW, raw_body_length=hd.RAW_BODY_MAX + 1)) < 1 << 18


@pytest.mark.parametrize("claim", [0, 1, len(RAW) - 1, len(RAW) + 1, len(RAW) + 8])
def test_a_claim_that_is_not_the_true_length_is_corrupt(claim):
    with pytest.raises(CorruptBatchError):
        values_of(packed(RAW, raw_body_length=claim))


def test_a_window_larger_than_any_body_is_refused():
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    block = wide.compress(RAW, mode=zstd.ZstdCompressor.FLUSH_BLOCK) + wide.flush()
    with pytest.raises(CorruptBatchError, match="zstd cannot expand"):
        values_of(packed(RAW, block))


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b + b, lambda b: b[:4] + b"\xff" * 4 + b[8:], bytes.upper],
)
def test_damaged_blocks_are_corrupt(damage):
    with pytest.raises(CorruptBatchError):
        values_of(packed(RAW, damage(zstd.compress(RAW))))


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=150), st.integers(0, 400))
def test_random_blocks_raise_nothing_but_named_errors(block, claim):
    with pytest.raises(CorruptBatchError):
        values_of(packed(RAW, block, raw_body_length=claim))


@pytest.fixture
def without_a_library(monkeypatch):
    codecs._zstd.cache_clear()
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    codecs._zstd.cache_clear()


def test_without_the_library_both_sides_name_the_extra(without_a_library):
    with pytest.raises(ConfigError, match=r"penstock\[zstd\]"):
        encode_batch([b"x" * 100], codec=hd.CODEC_ZSTD, **FIELDS)
    with pytest.raises(ConfigError, match=r"penstock\[zstd\]"):
        ProducerConfig(compression="zstd")
    with pytest.raises(UnsupportedVersionError, match=r"penstock\[zstd\]"):
        values_of(packed(RAW, b"whatever"))
