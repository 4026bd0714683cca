"""Compresses and expands bodies: lz4 always, zstd where a library for it is installed.

zstd is part of the standard library from Python 3.14 on. Older versions use the same module from
`backports.zstd` (the extra `zstd`). The first use looks for it. Owns the libraries and their
bounds: expanding never makes more bytes than the caller allows. Knows nothing of the contents of a
body.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

import lz4.block

from penstock.core import header as hd
from penstock.core.errors import ConfigError, CorruptBatchError, UnsupportedVersionError

CODECS: Final = {"none": hd.CODEC_NONE, "lz4": hd.CODEC_LZ4, "zstd": hd.CODEC_ZSTD}
ZSTD_LEVEL: Final = 3
ZSTD_WINDOW_LOG_MAX: Final = 26
"""A frame that wants a larger window than the largest body is refused: 2**26 is `RAW_BODY_MAX`."""
_INSTALL: Final = "pip install 'penstock[zstd]'"


@cache
def _zstd() -> Any:
    """The module. Raises ImportError where there is none (which is not cached)."""
    try:
        return import_module("compression.zstd")
    except ModuleNotFoundError:
        return import_module("backports.zstd")


def require(codec: int) -> None:
    """Raise `ConfigError` for a codec that cannot be used here."""
    if codec == hd.CODEC_ZSTD:
        try:
            _zstd()
        except ImportError as error:
            raise ConfigError(f"compression='zstd' needs a library: {_INSTALL}") from error
    elif codec not in CODECS.values():
        raise ConfigError(f"codec {codec} is not known; choose one of {', '.join(CODECS)}")


def compress(codec: int, body: bytes) -> bytes:
    """A body as one block of a codec other than none. Raises `ConfigError` for one not there."""
    require(codec)
    packed: bytes
    if codec == hd.CODEC_ZSTD:
        packed = _zstd().compress(body, ZSTD_LEVEL)
    else:
        packed = lz4.block.compress(body, store_size=False)
    return packed


def expand(codec: int, packed: memoryview, raw_length: int) -> bytes:
    """A block back as `raw_length` bytes.

    Raises `CorruptBatchError` if it does not make exactly so many, without making more, and
    `UnsupportedVersionError` where the codec's library is missing.
    """
    raw = (
        _expand_zstd(packed, raw_length)
        if codec == hd.CODEC_ZSTD
        else _expand_lz4(packed, raw_length)
    )
    if len(raw) != raw_length:
        raise CorruptBatchError("a compressed body expands to another length than its header says")
    return raw


def _expand_lz4(packed: memoryview, raw_length: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(packed, uncompressed_size=raw_length)
    except lz4.block.LZ4BlockError as error:
        raise CorruptBatchError(f"lz4 cannot expand the batch: {error}") from error
    return raw


def _expand_zstd(packed: memoryview, raw_length: int) -> bytes:
    try:
        zstd = _zstd()
    except ImportError as error:
        raise UnsupportedVersionError(
            f"the batch is compressed with zstd, which needs a library to read: {_INSTALL}"
        ) from error
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
    decompressor = zstd.ZstdDecompressor(options=options)
    try:
        raw: bytes = decompressor.decompress(packed, max_length=raw_length + 1)
    except zstd.ZstdError as error:
        raise CorruptBatchError(f"zstd cannot expand the batch: {error}") from error
    if len(raw) == raw_length and not (decompressor.eof and not decompressor.unused_data):
        raise CorruptBatchError("a compressed body is not one whole zstd frame")
    return raw
