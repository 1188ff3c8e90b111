"""The checksums of Kafka's formats, over any contiguous buffer without a copy."""

from __future__ import annotations

import zlib

import google_crc32c
import numpy as np

from compaction.formats.primitives.fields import Buffer


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli), unsigned: v2 batches and producer snapshots."""
    # the package accepts arrays but not memoryviews
    return int(google_crc32c.value(np.frombuffer(data, dtype=np.uint8) if len(data) else b""))


def crc32(data: Buffer) -> int:
    """CRC-32, unsigned: v0 and v1 messages."""
    return zlib.crc32(data)
