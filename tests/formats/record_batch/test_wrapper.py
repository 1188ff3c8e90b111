"""A wrapper with fewer messages keeps magic, codec and timestamp type, and its messages their content."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.compression.codecs import Codec, decompress
from compaction.formats.record_batch.message_set import parse_message_entry
from compaction.formats.record_batch.record import Record
from compaction.formats.record_batch.wrapper import filter_wrapper
from tests.formats.encode import MessageSetSpec, encode_message_set
from tests.formats.record_batch.test_transcode import messages

LIMIT = 1 << 20


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


@given(messages(), st.data(), st.sampled_from([0, 1]), st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4]), st.booleans())
def test_the_retained_messages_are_unchanged(
    rows: list[Record], data: st.DataObject, magic: int, codec: Codec, append_time: bool
) -> None:
    wrapper = encode_message_set(rows, MessageSetSpec(magic, codec, 1234 if append_time else None))
    before = list(parse_message_entry(wrapper).records())
    kept = sorted(data.draw(st.sets(st.sampled_from([each.offset for each in rows]), min_size=1)))
    made = filter_wrapper(b"??" + wrapper, 2, np.array(kept, np.int64), limit_bytes=LIMIT)
    entry = parse_message_entry(made)
    entry.ensure_valid()
    assert list(entry.records()) == [each for each in before if each.offset in kept]
    assert (entry.magic, entry.codec, entry.last_offset) == (magic, codec, kept[-1])
    assert entry.is_log_append_time == (append_time and magic == 1)
    assert entry.timestamp == (max(each.timestamp for each in before if each.offset in kept) if magic else -1)


@pytest.mark.parametrize(("magic", "offsets"), [(0, [12, 14]), (1, [0, 2])])
def test_inner_offsets_are_absolute_or_relative_by_magic(magic: int, offsets: list[int]) -> None:
    rows = [Record(10 + at, 100 + at, b"k%d" % at, None if at == 2 else b"v") for at in range(5)]
    wrapper = encode_message_set(rows, MessageSetSpec(magic, Codec.GZIP))
    made = filter_wrapper(wrapper, 0, np.array([12, 14]), limit_bytes=LIMIT)
    entries = inner_entries(made)
    assert [offset for offset, _ in entries] == offsets
    for _, message in entries:
        assert struct.unpack_from(">I", message) == (crc32(message[4:]),)


def test_messages_have_the_bytes_of_an_encoder_of_that_magic() -> None:
    rows = [Record(10 + at, 100 + at, b"k%d" % at, b"v") for at in range(3)]
    for magic in (0, 1):
        spec = MessageSetSpec(magic, Codec.GZIP)
        made = filter_wrapper(encode_message_set(rows, spec), 0, np.array([10, 11]), limit_bytes=LIMIT)
        assert inner_entries(made) == inner_entries(encode_message_set(rows[:2], spec))


def test_an_lz4_frame_of_magic_0_has_the_checksum_that_kafka_wrote() -> None:
    rows = [Record(at, -1, b"k", b"v") for at in range(3)]
    made = filter_wrapper(encode_message_set(rows, MessageSetSpec(0, Codec.LZ4)), 0, np.array([1]), limit_bytes=LIMIT)
    header, checksum = made[26:32], made[32]
    # over the whole header instead of the two bytes after its magic number (KAFKA-3160)
    assert checksum == xxhash.xxh32_intdigest(header) >> 8 & 0xFF
    assert checksum != xxhash.xxh32_intdigest(header[4:]) >> 8 & 0xFF
