"""The package's codecs by their attribute bits, without a limit, because payloads of tests are small."""

from __future__ import annotations

from compaction.formats.compression import codecs

_LIMIT_BYTES = 1 << 28


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """Compresses as Kafka does."""
    return bytes(codecs.compress(codecs.Codec(codec), data, magic=magic)) if codec else data


def decompress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """Decompresses as Kafka does."""
    if not codec:
        return data
    return bytes(codecs.decompress(codecs.Codec(codec), data, limit_bytes=_LIMIT_BYTES, magic=magic))
