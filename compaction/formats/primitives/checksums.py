"""The checksums of Kafka's formats over any contiguous buffer, without a copy."""

from __future__ import annotations

import zlib

import google_crc32c
import numpy as np

from compaction.formats.primitives.fields import Buffer


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli), unsigned: batches of magic 2 and producer snapshots."""
    # the package refuses memoryviews but takes arrays over them
    return int(google_crc32c.value(np.frombuffer(data, dtype=np.uint8) if len(data) else b""))


def crc32(data: Buffer) -> int:
    """CRC-32, unsigned: messages of magic 0 and 1."""
    return zlib.crc32(data)
