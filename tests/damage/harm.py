"""Ways to damage the bytes of a log, as hypothesis strategies, so that failures are shrunk.

Checksums and lengths may be corrected after the damage, so that the code behind these checks is reached.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import google_crc32c
from hypothesis import strategies as st

from compaction.formats.codecs import Codec, CodecError, compress, decompress
from compaction.formats.message_set import HEADER_V1, EntryHeaderV1
from compaction.formats.record_batch import HEADER, BatchHeader

Draw = Callable[[st.SearchStrategy[int]], int]
_PLAIN_BYTES = 1 << 20
#: offset and size of each field of a header
_V2_FIELDS = {name: (HEADER.offset(name), HEADER.dtype[name].itemsize) for name in BatchHeader._fields}
_OLD_FIELDS = {name: (HEADER_V1.offset(name), HEADER_V1.dtype[name].itemsize) for name in EntryHeaderV1._fields}
#: -1, 0, the largest, the smallest, and values near some bounds
_EXTREMES = (-1, 0, 1, 2**7 - 1, -(2**7), 2**15 - 1, 2**31 - 1, -(2**31), 2**31 - 13, 2**61, 2**62, 2**63 - 1, -(2**63))
_RUNS = (b"\x00", b"\xff", b"\x80", b"\x02", b"\x7f")


def batches_of(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each batch, as far as the lengths are valid."""
    found, at = [], 0
    while at + 17 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + 12
        if size < 26 or at + size > len(data):
            break
        found.append((at, at + size))
        at += size
    return found


def reseal(data: bytes) -> bytes:
    """The bytes with a correct checksum in every batch that the lengths lead to."""
    out = bytearray(data)
    for start, end in batches_of(data):
        if out[start + 16] == 2 and end - start >= HEADER.size:
            out[start + 17 : start + 21] = struct.pack(">I", google_crc32c.value(bytes(out[start + 21 : end])))
        elif out[start + 16] < 2:
            out[start + 12 : start + 16] = struct.pack(">I", zlib.crc32(bytes(out[start + 16 : end])))
    return bytes(out)


def flipped(data: bytes, at: int, bit: int = 4) -> bytes:
    """The bytes with another bit in the byte at ``at``."""
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@st.composite
def harmed(draw: Draw, data: bytes) -> bytes:
    """``data`` (batches back to back) with one to three kinds of damage, resealed or not."""
    for _ in range(draw(st.integers(1, 3))):
        way = WAYS[draw(st.integers(0, len(WAYS) - 1))]
        data = way(draw, data)
    return reseal(data) if draw(st.integers(0, 3)) else data


@st.composite
def harmed_bytes(draw: Draw, data: bytes) -> bytes:
    """Damage to a file other than a log."""
    for _ in range(draw(st.integers(1, 3))):
        way = _PLAIN_WAYS[draw(st.integers(0, len(_PLAIN_WAYS) - 1))]
        data = way(draw, data)
    return data


def _at(draw: Draw, data: bytes) -> int:
    return draw(st.integers(0, max(0, len(data) - 1)))


def _flip(draw: Draw, data: bytes) -> bytes:
    return flipped(data, _at(draw, data), draw(st.integers(0, 7))) if data else data


def _truncate(draw: Draw, data: bytes) -> bytes:
    return data[: _at(draw, data)]


def _overwrite(draw: Draw, data: bytes) -> bytes:
    """A run of one byte: zeros, endless varints, …"""
    at, size = _at(draw, data), draw(st.integers(1, 64))
    run = _RUNS[draw(st.integers(0, len(_RUNS) - 1))] * size
    return (data[:at] + run + data[at + size :])[: len(data)]


def _garble(draw: Draw, data: bytes) -> bytes:
    """Random bytes, of which one may be all."""
    at, size = _at(draw, data), draw(st.integers(1, 40))
    noise = draw(st.integers(0, 2 ** (8 * size) - 1)).to_bytes(size, "big")
    return (data[:at] + noise + data[at + size :])[: len(data)]


def _remove(draw: Draw, data: bytes) -> bytes:
    at = _at(draw, data)
    return data[:at] + data[at + draw(st.integers(1, 40)) :]


def _insert(draw: Draw, data: bytes) -> bytes:
    at, size = _at(draw, data), draw(st.integers(1, 20))
    return data[:at] + _RUNS[draw(st.integers(0, len(_RUNS) - 1))] * size + data[at:]


def _swap(draw: Draw, data: bytes) -> bytes:
    """Exchange two batches, so that offsets decrease."""
    spans = batches_of(data)
    if len(spans) < 2:
        return data
    i = draw(st.integers(0, len(spans) - 2))
    (a, b), (_, c) = spans[i], spans[i + 1]
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def _repeat(draw: Draw, data: bytes) -> bytes:
    spans = batches_of(data)
    if not spans:
        return data
    start, end = spans[draw(st.integers(0, len(spans) - 1))]
    return data[:end] + data[start:end] + data[end:]


def _field(draw: Draw, data: bytes) -> bytes:
    """Change a header field of one batch."""
    spans = batches_of(data)
    if not spans:
        return data
    start, end = spans[draw(st.integers(0, len(spans) - 1))]
    fields = _V2_FIELDS if data[start + 16] == 2 else _OLD_FIELDS
    offset, width = fields[sorted(fields)[draw(st.integers(0, len(fields) - 1))]]
    at = start + offset
    if at + width > end:
        return data
    old = int.from_bytes(data[at : at + width], "big")
    choice = draw(st.integers(0, len(_EXTREMES) + 2))
    if choice < len(_EXTREMES):
        value = _EXTREMES[choice]
    elif choice == len(_EXTREMES):
        value = old + draw(st.integers(-40, 40))
    else:
        value = old ^ (1 << draw(st.integers(0, 8 * width - 1)))
    return data[:at] + (value % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]


def _within(draw: Draw, data: bytes) -> bytes:
    """Damage to the records of a batch, below the compression; the sizes of the payload are updated."""
    spans = batches_of(data)
    if not spans:
        return data
    start, end = spans[draw(st.integers(0, len(spans) - 1))]
    magic = data[start + 16]
    if magic == 2 and end - start >= HEADER.size:
        records_at, codec = start + HEADER.size, data[start + 22] & 7
    else:
        # the value of a message without a key
        records_at, codec = start + (34 if magic == 1 else 26), data[start + 17] & 7
    if records_at > end:
        return data
    try:
        payload = bytes(decompress(Codec.of(codec), data[records_at:end], limit_bytes=_PLAIN_BYTES, magic=magic))
        for _ in range(draw(st.integers(1, 2))):
            payload = _PLAIN_WAYS[draw(st.integers(0, len(_PLAIN_WAYS) - 1))](draw, payload)
        packed = compress(Codec.of(codec), payload, magic=magic)
    except CodecError:
        return data
    head = bytearray(data[start:records_at])
    head[8:12] = struct.pack(">i", len(head) + len(packed) - 12)
    if magic < 2 and codec:
        head[-4:] = struct.pack(">i", len(packed))
    return data[:start] + bytes(head) + packed + data[end:]


Way = Callable[[Draw, bytes], bytes]
_PLAIN_WAYS: tuple[Way, ...] = (_flip, _truncate, _overwrite, _garble, _remove, _insert)
WAYS: tuple[Way, ...] = (*_PLAIN_WAYS, _swap, _repeat, _field, _field, _field, _within, _within, _within)
