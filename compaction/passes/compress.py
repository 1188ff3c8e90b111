"""Compresses a batch that the rewrite kernel has built, and sets its length and checksum."""

from __future__ import annotations

import google_crc32c

from compaction.formats.compression.codecs import Codec, compress
from compaction.kernels.reading.batches import HEADER_SIZE, LOG_OVERHEAD

_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21


def seal_compressed(plain: memoryview) -> bytes:
    """The batch ``plain`` with its records compressed by the codec in its header's attributes."""
    codec = Codec.of(plain[_ATTRIBUTES_AT + 1])
    payload = compress(codec, plain[HEADER_SIZE:])
    batch = bytearray(plain[:HEADER_SIZE])
    batch[_LENGTH_AT : _LENGTH_AT + 4] = (HEADER_SIZE + len(payload) - LOG_OVERHEAD).to_bytes(4, "big")
    crc = google_crc32c.extend(google_crc32c.value(bytes(batch[_ATTRIBUTES_AT:])), payload)
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(batch) + payload
