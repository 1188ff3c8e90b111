"""The package's codecs by the codec number in the attribute bits, for small payloads."""

from __future__ import annotations

from compaction.formats import codecs
from tests.kafka.encode import CODECS

_LIMIT_BYTES = 1 << 28


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """As Kafka writes it."""
    return codecs.compress(codecs.Codec(codec), data, magic=magic) if codec else data


def named(codec: str, data: bytes, *, magic: int) -> bytes:
    """The same by the codec's name, in place of the codecs of ``tests.kafka.encode``."""
    return compress(CODECS.index(codec), data, magic=magic)


def decompress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """As Kafka reads it."""
    if not codec:
        return data
    return bytes(codecs.decompress(codecs.Codec(codec), data, limit_bytes=_LIMIT_BYTES, magic=magic))
