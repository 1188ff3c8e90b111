"""The encodings of which formats are made: fields and varints as those of ``struct``, numpy and Kafka; compressed payloads as
Kafka writes them, byte for byte. All that Kafka reads is read, and nothing else is."""

from __future__ import annotations

import gzip
import pickle
import struct
import zlib
from typing import Any, NamedTuple

import cramjam
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats import primitives as varint
from compaction.formats.codecs import Codec, compress, decompress, decompress_into
from compaction.formats.primitives import BufferTooSmall, CodecError, FieldTable, FormatError, Int8, Int16, Int32, Int64, UInt32
from tests.formats.golden import golden, noise, text, unbase64


class Sample(NamedTuple):
    small: Int16
    flag: Int8
    wide: Int64
    plain: Int32
    unsigned: UInt32


TABLE = FieldTable(Sample)
ROWS = st.builds(
    Sample,
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**7), 2**7 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(ROWS, max_size=5), st.integers(0, 7))
def test_packed_rows_are_unpacked_unchanged(rows: list[Sample], shift: int) -> None:
    data = b"\xff" * shift + b"".join(TABLE.pack(row) for row in rows)
    assert [TABLE.unpack(data, shift + index * TABLE.size) for index in range(len(rows))] == rows
    assert TABLE.array(data[shift:]).tolist() == [tuple(row) for row in rows]


@given(ROWS)
def test_fields_are_at_their_offsets(row: Sample) -> None:
    data = bytearray(TABLE.pack(row))
    assert bytes(data) == struct.pack(">hbqiI", *row)
    for name, value in row._asdict().items():
        assert TABLE.get(data, name) == value
        TABLE.put(data, name, 1)
    assert TABLE.unpack(data) == (1, 1, 1, 1, 1)


def test_offsets_are_computed() -> None:
    assert [TABLE.offset(name) for name in Sample._fields] == [0, 2, 3, 11, 15]
    assert TABLE.size == TABLE.dtype.itemsize == 19


@pytest.mark.parametrize("length", range(19))
def test_a_short_buffer_is_an_error_with_its_position(length: int) -> None:
    with pytest.raises(FormatError, match=f"19 bytes of Sample expected, {length} left") as caught:
        TABLE.unpack(bytes(3 + length), 3)
    assert caught.value.position == 3


def test_an_incomplete_record_is_ignored() -> None:
    assert len(TABLE.array(bytes(2 * 19 + 18))) == 2


def test_reading_one_field_past_the_end_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"Sample\.unsigned"):
        TABLE.get(bytes(18), "unsigned")


@pytest.mark.parametrize("row", [Sample(2**15, 0, 0, 0, 0), Sample(0, -129, 0, 0, 0), Sample(0, 0, 0, 0, -1)])
def test_a_value_that_does_not_fit_is_an_error(row: Sample) -> None:
    with pytest.raises(FormatError, match="cannot be written"):
        TABLE.pack(row)


def test_one_field_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"Sample\.small"):
        TABLE.put(bytearray(19), "small", 2**15)


@pytest.mark.parametrize("error", [FormatError("what", 7), CodecError("what"), BufferTooSmall()], ids=lambda e: repr(e))
def test_errors_can_be_pickled(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


#: values and bytes from Kafka's ByteUtilsTest
VARINTS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (-8193, "818001"),
    (1048575, "feff7f"),
    (-1048576, "ffff7f"),
    (1048576, "80808001"),
    (134217727, "feffff7f"),
    (-134217728, "ffffff7f"),
    (134217728, "8080808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
VARLONGS = [*VARINTS, (17179869183, "feffffff7f"), (-17179869185, "818080808001"), (2**63 - 1, "fe" + "ff" * 8 + "01")]
VARLONGS += [(-(2**63), "ff" * 9 + "01")]


@pytest.mark.parametrize(("bits", "value", "data"), [*((32, *row) for row in VARINTS), *((64, *row) for row in VARLONGS)])
def test_known_varints(bits: int, value: int, data: str) -> None:
    assert varint.encode_varint(value, bits).hex() == data
    assert varint.decode_varint(b"\x80" + bytes.fromhex(data) + b"\x80", 1, bits) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
def test_varints_round_trip(bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    encoded = varint.encode_varint(value, bits)
    for buffer in (memoryview(encoded), bytearray(encoded)):
        assert varint.decode_varint(buffer, 0, bits) == (value, len(encoded))


@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(value: int) -> None:
    data = varint.encode_unsigned(value)
    assert varint.decode_unsigned(data, 0) == (value, len(data))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_value_out_of_range_is_an_error(bits: int) -> None:
    half = 2 ** (bits - 1)
    for encode, value in (
        (varint.encode_varint, half),
        (varint.encode_varint, -half - 1),
        (varint.encode_unsigned, -1),
        (varint.encode_unsigned, 2 * half),
    ):
        with pytest.raises(FormatError, match="does not fit"):
            encode(value, bits)


@pytest.mark.parametrize("data", ["", "80", "ffff"])
def test_the_end_of_the_buffer_inside_a_number_is_an_error(data: str) -> None:
    with pytest.raises(FormatError, match="ends inside") as caught:
        varint.decode_varint(b"\x00" + bytes.fromhex(data), 1)
    assert caught.value.position == 1


def test_a_number_that_is_too_long_is_an_error() -> None:
    with pytest.raises(FormatError, match="within 5 bytes"):
        varint.decode_varint(b"\xff" * 6, 0)
    with pytest.raises(FormatError, match="within 10 bytes"):
        varint.decode_varint(b"\xff" * 11, 0, 64)


def test_high_bits_of_the_last_byte_are_dropped_as_in_java() -> None:
    assert varint.decode_varint(bytes.fromhex("feffffff7f"), 0) == (2**31 - 1, 5)


COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
GOLDEN = golden("codecs")
LIMIT = 1 << 20


def raw_of(case: dict[str, Any]) -> bytes:
    return text(case["text"]) + noise(case["noise"])


def name_of(case: dict[str, Any]) -> str:
    return f"{Codec(case['codec']).name}-magic{case['magic']}-{case['text']}"


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_kafkas_payloads_are_read(case: dict[str, Any]) -> None:
    assert decompress(Codec(case["codec"]), unbase64(case["bytes"]), limit_bytes=LIMIT, magic=case["magic"]) == raw_of(case)


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_payloads_are_kafkas_byte_for_byte(case: dict[str, Any]) -> None:
    written = compress(Codec(case["codec"]), raw_of(case), magic=case["magic"])
    expected = unbase64(case["bytes"])
    if case["codec"] == Codec.GZIP and "ng" in zlib.ZLIB_RUNTIME_VERSION:
        # another deflate finds other matches; header and trailer still are the JDK's
        assert (written[:10], written[-8:]) == (expected[:10], expected[-8:])
    else:
        assert written == expected


@given(st.sampled_from(Codec), st.integers(0, 2), st.binary(max_size=300), st.integers(1, 400))
def test_round_trip(codec: Codec, magic: int, piece: bytes, times: int) -> None:
    data = piece * times
    packed = compress(codec, data, magic=magic)
    assert decompress(codec, packed, limit_bytes=len(data), magic=magic) == data if packed else True
    out = memoryview(bytearray(len(data)))
    assert decompress_into(codec, memoryview(packed), out, magic=magic) == len(data)
    assert out == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1, 32 * 1024 - 1, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 300_000])
@pytest.mark.parametrize("make", [text, noise])
def test_every_block_boundary(codec: Codec, size: int, make: Any) -> None:
    data = make(size)
    assert decompress(codec, compress(codec, data), limit_bytes=LIMIT) == data


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(4 * LIMIT))
    with pytest.raises(CodecError, match=f"gives more than {LIMIT}"):
        decompress(codec, bomb, limit_bytes=LIMIT)
    with pytest.raises(CodecError, match=f"gives more than {4 * LIMIT - 1}"):
        decompress(codec, bomb, limit_bytes=4 * LIMIT - 1)
    assert len(decompress(codec, bomb, limit_bytes=4 * LIMIT)) == 4 * LIMIT


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("short_by", [1, 100, 69_999])
def test_a_small_buffer_is_not_reported_as_damage(codec: Codec, short_by: int) -> None:
    data = text(70_000)
    with pytest.raises(BufferTooSmall):
        decompress_into(codec, compress(codec, data), memoryview(bytearray(len(data) - short_by)))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_payload_cut_anywhere_is_an_error(codec: Codec) -> None:
    packed = compress(codec, text(40_000))
    for cut in {1, 2, 5, 11, 20, len(packed) // 2, len(packed) - 5, len(packed) - 1}:
        with pytest.raises(CodecError):
            decompress(codec, packed[:cut], limit_bytes=LIMIT)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("garbage", [b"", b"\x01", b"garbage", b"\xff" * 64, b"\x01" + bytes(63)])
def test_garbage_is_an_error(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(CodecError):
        decompress(codec, garbage, limit_bytes=LIMIT)


PACKED = {codec: compress(codec, b"data") for codec in COMPRESSING}


def snappy(*versions: int) -> bytes:
    """A stream with these versions in its header."""
    return PACKED[Codec.SNAPPY][:8] + struct.pack(">ii", *versions) + PACKED[Codec.SNAPPY][16:]


@pytest.mark.parametrize(
    ("codec", "payload", "plain"),
    [
        *((codec, PACKED[codec] * 2 + compress(codec, text(40_000)), b"datadata" + text(40_000))
          for codec in (Codec.GZIP, Codec.ZSTD, Codec.SNAPPY)),
        *((codec, PACKED[codec] + tail, b"data")
          for codec in (Codec.GZIP, Codec.LZ4) for tail in (b"\x00", b"garbage behind the stream")),
        # up to three bytes after the last block
        (Codec.SNAPPY, PACKED[Codec.SNAPPY] + b"\x00\x00\x01", b"data"),
        # the versions in the first header do not matter, that in a later one may be newer
        *((Codec.SNAPPY, snappy(*versions), b"data") for versions in ((0, 1), (-1, 7), (2, 2), (1, -(2**31)))),
        (Codec.SNAPPY, PACKED[Codec.SNAPPY] + snappy(2, 0), b"datadata"),
        # without framing
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(text(70_000))), text(70_000)),
        # another level, a content size and a checksum
        (Codec.GZIP, gzip.compress(text(500), 1, mtime=0), text(500)),
        (Codec.ZSTD, bytes(cramjam.zstd.compress(text(5000), 9)), text(5000)),
    ],
)  # fmt: skip
def test_what_java_reads_is_read(codec: Codec, payload: bytes, plain: bytes) -> None:
    """Several streams as one, bytes after the last one, and what other writers write."""
    assert decompress(codec, payload, limit_bytes=LIMIT) == plain


@pytest.mark.parametrize(
    ("codec", "payload", "message"),
    [
        # other codecs ignore what follows
        (Codec.ZSTD, PACKED[Codec.ZSTD] + b"garbage", "zstd payload"),
        (Codec.GZIP, PACKED[Codec.GZIP][:-6] + b"wrong!", "gzip"),
        *((Codec.SNAPPY, PACKED[Codec.SNAPPY] + tail, message) for tail, message in (
            (struct.pack(">i", -1), "block of -1 bytes"),
            (struct.pack(">i", 9) + b"short", "block of 9 bytes, 5 left"),
            (b"\x82SNAPPY\x01" + struct.pack(">ii", 1, 1), "framing is broken"),
            (b"\x82SNAPPY\x00" + struct.pack(">ii", 0, 1), "version 0"),
            (b"\x82SNA", "framing is broken"),
        )),
    ],
)  # fmt: skip
def test_what_java_refuses_is_an_error(codec: Codec, payload: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decompress(codec, payload, limit_bytes=LIMIT)


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(1, 300)), min_size=2, max_size=6))
def test_zstd_frames_do_not_depend_on_those_written_before(pieces: list[tuple[bytes, int]]) -> None:
    for data in (piece * times for piece, times in pieces):
        fresh = cramjam.zstd.Compressor(3)
        fresh.compress(data)
        assert compress(Codec.ZSTD, data) == bytes(fresh.flush()) + bytes(fresh.finish())


def test_snappy_blocks_have_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.formats.codecs._MAX_SNAPPY_BLOCK_BYTES", 5)
    with pytest.raises(CodecError, match="block of 6 bytes, at most 5"):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"data"), limit_bytes=LIMIT)


@pytest.mark.parametrize("attributes", [5, 6, 7, 0x0D, 0x77])
def test_unknown_codec_bits_are_an_error(attributes: int) -> None:
    with pytest.raises(CodecError, match=f"codec {attributes & 7}"):
        Codec.of(attributes)


class TestLz4Frames:
    """Frames of other writers, built by hand."""

    @staticmethod
    def frame(flg: int = 0x60, bd: int = 0x40, content_size: bytes = b"", blocks: bytes | None = None) -> bytes:
        descriptor = bytes([flg, bd]) + content_size
        head = struct.pack("<I", 0x184D2204) + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF])
        return head + (TestLz4Frames.block(b"data") + bytes(4) if blocks is None else blocks)

    @staticmethod
    def block(data: bytes, *, stored: bool = False, checksum: bool = False) -> bytes:
        body = data if stored else bytes(cramjam.lz4.compress_block(data, store_size=False))
        tail = struct.pack("<I", xxhash.xxh32_intdigest(body)) if checksum else b""
        return struct.pack("<I", len(body) | (1 << 31 if stored else 0)) + body + tail

    def read(self, frame: bytes, magic: int = 2) -> bytes:
        return bytes(decompress(Codec.LZ4, frame, limit_bytes=LIMIT, magic=magic))

    def test_frames_that_kafka_reads(self) -> None:
        assert self.read(self.frame()) == b"data"
        assert self.read(self.frame(flg=0x68, content_size=struct.pack("<Q", 4))) == b"data"
        # a content checksum is not verified, those of blocks are
        assert self.read(self.frame(flg=0x64, blocks=self.block(b"data") + bytes(4) + b"none")) == b"data"
        blocks = self.block(b"one ", checksum=True) + self.block(b"two", stored=True, checksum=True) + bytes(4)
        assert self.read(self.frame(flg=0x70, blocks=blocks)) == b"one two"

    @pytest.mark.parametrize(("bd", "size"), [(0x50, 256 << 10), (0x60, 1 << 20), (0x70, 1 << 20)])
    def test_larger_blocks(self, bd: int, size: int) -> None:
        data = text(size)
        assert self.read(self.frame(bd=bd, blocks=self.block(data) + bytes(4))) == data

    @pytest.mark.parametrize("magic", [0, 1, 2])
    def test_the_header_checksum_is_verified_except_in_v0(self, magic: int) -> None:
        frame = bytearray(self.frame())
        frame[6] ^= 0xFF
        if magic == 0:
            assert self.read(bytes(frame), magic) == b"data"
        else:
            with pytest.raises(CodecError, match="header fails its checksum"):
                self.read(bytes(frame), magic)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"flg": 0x40}, "flags 0x40"),
            ({"flg": 0x61}, "flags 0x61"),
            ({"flg": 0xA0}, "flags 0xa0"),
            ({"bd": 0x30}, "descriptor 0x30"),
            ({"bd": 0x41}, "descriptor 0x41"),
            ({"bd": 0xC0}, "descriptor 0xc0"),
            ({"blocks": struct.pack("<I", 65537)}, "at most 65536"),
            ({"blocks": struct.pack("<I", 5) + b"1234"}, "inside a block"),
            ({"blocks": b""}, "end mark"),
            ({"flg": 0x68, "blocks": b""}, "inside its header|checksum|end mark"),
            ({"flg": 0x70, "blocks": struct.pack("<I", 1 << 31 | 4) + b"data" + bytes(4)}, "block fails its checksum"),
        ],
    )
    def test_frames_that_kafka_refuses(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(CodecError, match=message):
            self.read(self.frame(**changes))

    def test_a_stored_block_that_does_not_fit(self) -> None:
        frame = self.frame(blocks=self.block(b"x" * 100, stored=True) + bytes(4))
        with pytest.raises(BufferTooSmall):
            decompress_into(Codec.LZ4, frame, memoryview(bytearray(99)))

    def test_a_damaged_block_is_not_reported_as_a_small_buffer(self) -> None:
        with pytest.raises(CodecError, match="lz4 payload"):
            decompress_into(Codec.LZ4, self.frame(blocks=struct.pack("<I", 3) + b"\xff\xff\xff"), memoryview(bytearray(10)))
