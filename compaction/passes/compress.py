"""Closes a batch that the rewrite kernel left uncompressed: codec, length and checksum."""

from __future__ import annotations

import google_crc32c

from compaction.formats.compression.codecs import Codec, compress
from compaction.kernels.reading.batches import HEADER_SIZE, LOG_OVERHEAD

_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21


def seal_compressed(plain: memoryview) -> bytes:
    """The batch ``plain`` (a header with its codec's bits, then plain records) with its records compressed, as bytes."""
    codec = Codec.of(plain[_ATTRIBUTES_AT + 1])
    payload = compress(codec, plain[HEADER_SIZE:])
    batch = bytearray(plain[:HEADER_SIZE])
    batch[_LENGTH_AT : _LENGTH_AT + 4] = (HEADER_SIZE + len(payload) - LOG_OVERHEAD).to_bytes(4, "big")
    crc = google_crc32c.extend(google_crc32c.value(bytes(batch[_ATTRIBUTES_AT:])), payload)
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(batch) + payload
