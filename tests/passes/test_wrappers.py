"""Wrappers are converted to v2 records; one with fewer messages keeps magic, codec, timestamp type and their content."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CorruptLogError
from compaction.files.segment_file import Block
from compaction.formats.codecs import Codec, compress, decompress
from compaction.formats.message_set import parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import Record
from compaction.kernels.batches import scan_batches
from compaction.passes.decoder import Decoder, unwrap
from tests.formats.test_message_set import converted, message_lists
from tests.kafka.encode import Legacy

LIMIT = 1 << 20


def filter_wrapper(data: bytes, at: int, retained: list[int]) -> bytes:
    """The wrapper at ``data[at:]`` with the messages that have these offsets."""
    return unwrap(np.frombuffer(data, np.uint8), at, LIMIT).filtered(np.array(retained, np.int64))


def block_of(data: bytes) -> Block:
    """All batches of ``data``."""
    raw = np.frombuffer(data, np.uint8)
    return Block(0, raw, scan_batches(raw, 0, check_crc=True).rows, "log")


def inner_entries(wrapper: bytes) -> list[tuple[int, bytes]]:
    """Offset as stored, and the bytes from the CRC on, of each inner message."""
    entry = parse_message_entry(wrapper)
    head = 34 if entry.magic else 26
    plain = bytes(decompress(entry.codec, wrapper[head:], limit_bytes=LIMIT, magic=entry.magic))
    found, at = [], 0
    while at < len(plain):
        offset, size = struct.unpack_from(">qi", plain, at)
        found.append((offset, plain[at + 12 : at + 12 + size]))
        at += 12 + size
    return found


@given(message_lists(), st.data(), st.sampled_from([0, 1]), st.sampled_from(["gzip", "snappy", "lz4"]), st.booleans())
def test_the_retained_messages_are_unchanged(
    rows: list[Record], data: st.DataObject, magic: int, codec: str, append_time: bool
) -> None:
    wrapper = Legacy(rows, magic, codec, 1234 if append_time else None).encode()
    before = list(parse_message_entry(wrapper).records())
    kept = sorted(data.draw(st.sets(st.sampled_from([each.offset for each in rows]), min_size=1)))
    made = filter_wrapper(b"??" + wrapper, 2, kept)
    entry = parse_message_entry(made)
    entry.ensure_valid()
    assert list(entry.records()) == [each for each in before if each.offset in kept]
    assert (entry.magic, entry.codec, entry.last_offset) == (magic, Codec[codec.upper()], kept[-1])
    assert entry.is_log_append_time == (append_time and magic == 1)
    assert entry.timestamp == (max(each.timestamp for each in before if each.offset in kept) if magic else -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_have_the_bytes_of_an_encoder_of_that_magic(magic: int) -> None:
    """Their offsets are absolute in magic 0, relative in magic 1."""
    rows = [Record(10 + at, 100 + at, b"k%d" % at, None if at == 2 else b"v") for at in range(5)]
    made = filter_wrapper(Legacy(rows, magic, "gzip").encode(), 0, [12, 14])
    assert inner_entries(made) == inner_entries(Legacy(rows[2::2], magic, "gzip").encode())


def test_an_lz4_frame_of_magic_0_has_the_checksum_that_kafka_wrote() -> None:
    rows = [Record(at, -1, b"k", b"v") for at in range(3)]
    made = filter_wrapper(Legacy(rows, 0, "lz4").encode(), 0, [1])
    header, checksum = made[26:32], made[32]
    # over the whole header instead of the two bytes after its magic number (KAFKA-3160)
    assert checksum == xxhash.xxh32_intdigest(header) >> 8 & 0xFF
    assert checksum != xxhash.xxh32_intdigest(header[4:]) >> 8 & 0xFF


@given(st.lists(message_lists(), min_size=1, max_size=4), st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.booleans())
def test_the_records_of_wrappers_are_those_of_the_slow_conversion(
    wrappers: list[list[Record]], magic: int, inner_magic: int, append_time: bool
) -> None:
    data, start = b"", 0
    for rows in wrappers:
        shifted = [each._replace(offset=start + each.offset) for each in rows]
        wrapper = Legacy(shifted, magic, "lz4", 1234 if append_time else None, inner_magic)
        data, start = data + wrapper.encode(), shifted[-1].offset + 1
    expected = [(*converted(data, at), inner_magic != magic) for at in block_of(data).rows["position"].tolist()]
    assert decoded_wrappers(data) == expected


def decoded_wrappers(data: bytes) -> list[tuple[object, ...]]:
    decoder = Decoder()
    found: list[tuple[object, ...]] = []
    for run in decoder.as_v2(block_of(data)):
        for decoded in decoder.decode(run):
            for row, (first, end, _), wrapped in zip(decoded.rows, decoded.spans.tolist(), decoded.wrappers, strict=True):
                fields = (int(row[name]) for name in ("base_offset", "last_offset", "base_timestamp", "count"))
                found.append((*fields, decoded.scratch[first:end].tobytes(), wrapped.other_magic))
    return found


@pytest.mark.parametrize("magic", [0, 1])
def test_lengths_of_every_varint_size(magic: int) -> None:
    rows = [Record(1 << shift, 1 << 2 * shift, bytes(1 << shift - 8), b"v") for shift in range(8, 26)]
    data = Legacy(rows, magic, "lz4").encode()
    assert decoded_wrappers(data) == [(*converted(data), False)]


MALFORMED = {
    "no message": b"",
    "a message that is too small": struct.pack(">qiIbb", 0, 13, 0, 0, 0),
    "an unknown magic": struct.pack(">qiIbbqii", 0, 22, 0, 2, 0, 0, -1, -1),
    "a compressed message": struct.pack(">qiIbbii", 0, 14, 0, 0, 1, -1, -1),
    "a key past the end": struct.pack(">qiIbbii", 0, 14, 0, 0, 0, 9, -1),
    "a value past the end": struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, 9),
    "offsets that do not ascend": struct.pack(">qiIbbii", 1, 14, 0, 0, 0, -1, -1) * 2,
    "a timestamp before the epoch": struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, -2, -1, -1),
}


@pytest.mark.parametrize("inner", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_wrapper_is_refused_with_the_reason_of_the_slow_conversion(inner: bytes) -> None:
    payload = compress(Codec.GZIP, inner)
    body = struct.pack(">bbii", 0, Codec.GZIP, -1, len(payload)) + payload
    wrapper = struct.pack(">qiI", 5, 4 + len(body), crc32(body)) + body
    with pytest.raises(FormatError) as expected:
        parse_message_entry(wrapper).require_convertible()
    decoder = Decoder()
    with pytest.raises(CorruptLogError) as found:
        list(decoder.as_v2(block_of(wrapper)))
    assert str(expected.value) in str(found.value)
