"""Messages of magic 0 and 1 are read as Kafka reads them, and become the v2 records that Kafka's filter writes.

``converted`` is the slow oracle of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.codecs import Codec, CodecError, compress
from compaction.formats.message_set import (
    CRC_START,
    HEADER_V0,
    HEADER_V1,
    MessageEntry,
    parse_message_entry,
)
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import HEADER, Record, RecordBase, RecordBatch, encode_records, parse_batch
from tests.formats.golden import FILTER_HORIZON_MS, FIRST_TWO, changed, comparable, golden, record, unbase64
from tests.kafka.encode import Batch, Legacy

GOLDEN = [case for case in golden("batches") if case["batches"][0]["magic"] < 2]
WRAPPING = ["gzip", "snappy", "lz4"]
FIELDS = st.none() | st.binary(max_size=200)


def batches(data: bytes) -> list[MessageEntry]:
    found = [parse_message_entry(data)]
    while (end := found[-1].position + found[-1].size) < len(data):
        found.append(parse_message_entry(data, end))
    return found


def read(data: bytes) -> list[Record]:
    return [row for batch in batches(data) for row in batch.records()]


@st.composite
def message_lists(draw: st.DrawFn) -> list[Record]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    # a wrapper at offset 0 has a meaning of its own, tested apart
    base = draw(st.integers(1, 2**61))
    return [Record(base + offset, draw(st.integers(-1, 2**62)), draw(FIELDS), draw(FIELDS)) for offset in offsets]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["name"])
def test_kafkas_messages_are_read_as_kafka_reads_them(case: dict[str, Any]) -> None:
    for batch, row in zip(batches(unbase64(case["bytes"])), case["batches"], strict=True):
        expected = dict(row)
        batch.ensure_valid()
        assert list(batch.records()) == [record(inner) for inner in expected.pop("records")]
        assert expected.pop("valid")
        assert expected == {
            "magic": batch.magic,
            "size": batch.size,
            "last_offset": batch.last_offset,
            "max_timestamp": batch.timestamp,
            "codec": batch.codec,
            "append_time": batch.is_log_append_time,
        }


@given(message_lists(), st.sampled_from([0, 1]), st.sampled_from(["none", *WRAPPING]))
def test_round_trip(rows: list[Record], magic: int, codec: str) -> None:
    expected = rows if magic else [row._replace(timestamp=-1) for row in rows]
    data = Legacy(rows, magic, codec).encode()
    for batch in batches(data):
        batch.ensure_valid()
    assert read(data) == expected
    assert len(batches(data)) == (len(rows) if codec == "none" else 1)


@given(message_lists(), st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.sampled_from(WRAPPING))
def test_inner_messages_may_have_another_magic(rows: list[Record], magic: int, inner_magic: int, codec: str) -> None:
    data = Legacy(rows, magic, codec, inner_magic=inner_magic).encode()
    assert read(data) == (rows if inner_magic else [row._replace(timestamp=-1) for row in rows])


@given(message_lists(), st.sampled_from(WRAPPING), st.sampled_from([0, 1]))
def test_log_append_time_overrides_inner_v1_timestamps(rows: list[Record], codec: str, inner_magic: int) -> None:
    data = bytearray(Legacy(rows, 1, codec, inner_magic=inner_magic).encode())
    data[HEADER_V1.offset("attributes")] |= 8
    HEADER_V1.put(data, "timestamp", 777)
    assert [row.timestamp for row in read(bytes(data))] == [777 if inner_magic else -1] * len(rows)


def test_a_plain_message_keeps_its_own_append_time() -> None:
    data = Legacy([Record(3, 5, b"k", b"v")], 1, log_append_time=99).encode()
    assert read(data) == [Record(3, 99, b"k", b"v")]
    assert batches(data)[0].is_log_append_time


def test_v0_has_no_timestamp_type() -> None:
    data = bytearray(Legacy([Record(3, 5, b"k", b"v")], 0).encode())
    data[HEADER_V0.offset("attributes")] |= 8
    assert not batches(bytes(data))[0].is_log_append_time


def test_a_wrapper_at_offset_0_has_absolute_offsets() -> None:
    data = Legacy([Record(offset, 5, b"k", b"v") for offset in (0, 1, 2)], 1, "gzip").encode()
    assert [row.offset for row in read(changed(HEADER_V0, data, offset=0))] == [0, 1, 2]


def test_a_wrapper_below_its_relative_offsets_is_an_error() -> None:
    data = Legacy([Record(offset, 5, b"k", b"v") for offset in (7, 8, 9)], 1, "gzip").encode()
    with pytest.raises(FormatError, match="wrapper at offset 1 below its last relative offset 2"):
        read(changed(HEADER_V0, data, offset=1))


def test_columns_point_into_the_decompressed_bytes() -> None:
    rows = [Record(5, 50, b"key", None), Record(6, 40, None, b""), Record(9, 60, b"", b"value")]
    columns = parse_message_entry(Legacy(rows, 1, "lz4").encode()).columns()
    assert columns.key_length.tolist() == [3, -1, 0]
    assert columns.value_length.tolist() == [-1, 0, 5]
    assert bytes(columns.data[columns.key_start[0] : columns.key_start[0] + 3]) == b"key"
    assert len(columns) == 3
    assert list(columns.records()) == rows


class TestDamage:
    """Every kind of damage is an error."""

    rows = (Record(10, 5, b"key", b"value"), Record(11, 6, None, None))

    @staticmethod
    def wrap(payload: bytes | None, codec: int = Codec.GZIP, magic: int = 1) -> bytes:
        data = bytearray(Legacy([Record(11, 6, None, payload)], magic).encode())
        data[HEADER_V0.offset("attributes")] |= codec
        return bytes(data)

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("position", range(CRC_START, 30))
    def test_a_flipped_bit_fails_the_crc(self, magic: int, position: int) -> None:
        data = bytearray(Legacy(self.rows[:1], magic).encode())
        batch = parse_message_entry(bytes(data))
        data[position] ^= 0x20
        damaged = MessageEntry(40, memoryview(data), batch.header, batch.timestamp)
        with pytest.raises(FormatError, match="message fails its CRC") as caught:
            damaged.ensure_valid()
        assert caught.value.position == 40

    @pytest.mark.parametrize("magic", [0, 1])
    def test_an_incomplete_batch_is_an_error(self, magic: int) -> None:
        data = Legacy(self.rows[:1], magic).encode()
        for cut in range(len(data)):
            with pytest.raises(FormatError):
                parse_message_entry(data[:cut])

    @pytest.mark.parametrize(("magic", "size"), [(0, -1), (0, 0), (0, 13), (1, 21), (0, 2**31 - 1), (1, 2**31 - 1)])
    def test_an_impossible_size(self, magic: int, size: int) -> None:
        with pytest.raises(FormatError, match=f"size {size} does not fit"):
            parse_message_entry(changed(HEADER_V0, Legacy(self.rows[:1], magic).encode(), size=size))

    def test_another_magic(self) -> None:
        with pytest.raises(FormatError, match="magic 2, 0 or 1 expected"):
            parse_message_entry(Batch(self.rows).encode())

    @pytest.mark.parametrize(("magic", "position"), [(0, HEADER_V0.size), (1, HEADER_V1.size)])
    def test_a_key_past_the_end(self, magic: int, position: int) -> None:
        data = bytearray(Legacy(self.rows[:1], magic).encode())
        data[position : position + 4] = (2**31 - 1).to_bytes(4, "big")
        with pytest.raises(FormatError, match="key runs past its end"):
            parse_message_entry(data).columns()

    def test_a_value_past_the_end(self) -> None:
        data = bytearray(Legacy(self.rows[:1], 1).encode())
        data[-9:-5] = (6).to_bytes(4, "big")
        with pytest.raises(FormatError, match="value runs past its end"):
            parse_message_entry(data).columns()

    def test_any_negative_length_is_null(self) -> None:
        data = bytearray(Legacy([Record(1, 2, None, None)], 1).encode())
        data[-8:] = (-7).to_bytes(4, "big", signed=True) * 2
        assert read(bytes(data)) == [Record(1, 2, None, None)]

    @pytest.mark.parametrize(
        ("inner", "message"),
        [
            (None, "null value"),
            (b"", "without messages"),
            (Legacy(rows, 1, "gzip").encode(), "inside a wrapper"),
            (changed(HEADER_V0, Legacy(rows, 1).encode(), size=13), "message of 13 bytes"),
            (changed(HEADER_V0, Legacy(rows, 1).encode(), magic=2), "unknown magic"),
            (changed(HEADER_V0, Legacy([Record(0, 0, None, None)], 0).encode(), magic=1), "too short"),
        ],
    )
    def test_a_malformed_wrapper(self, inner: bytes | None, message: str) -> None:
        with pytest.raises(FormatError, match=message):
            read(self.wrap(None if inner is None else compress(Codec.GZIP, inner)))

    @pytest.mark.parametrize(("codec", "error"), [(Codec.ZSTD, FormatError), (5, CodecError)])
    def test_codecs_unknown_to_message_sets_are_errors(self, codec: int, error: type[FormatError]) -> None:
        with pytest.raises(error, match="zstd|codec 5"):
            read(self.wrap(b"payload", codec))

    @pytest.mark.parametrize("cut", [1, 12, 20, 25])
    def test_an_incomplete_inner_message_ends_the_wrapper(self, cut: int) -> None:
        inner = Legacy([Record(0, 5, b"a", b"1"), Record(1, 6, b"b", b"2"), Record(2, 7, None, None)], 1).encode()
        expected = [Record(10, 5, b"a", b"1"), Record(11, 6, b"b", b"2")]
        assert read(self.wrap(compress(Codec.GZIP, inner[:-cut]))) == expected

    def test_more_decompressed_bytes_than_allowed(self) -> None:
        data = Legacy([Record(5, 5, b"k", bytes(100_000))], 1, "gzip").encode()
        with pytest.raises(CodecError, match="more than 1000"):
            parse_message_entry(data).columns(limit_bytes=1000)

    def test_inner_checksums_are_not_verified(self) -> None:
        inner = changed(HEADER_V0, Legacy([Record(0, 5, b"key", b"value")], 1).encode(), crc=1)
        assert read(self.wrap(compress(Codec.GZIP, inner))) == [Record(11, 5, b"key", b"value")]


def converted(data: bytes, position: int = 0) -> tuple[int, int, int, int, bytes]:
    """The base offset, last offset, base timestamp, number and bytes of the v2 records of an entry."""
    records = list(parse_message_entry(data, position).records())
    base = RecordBase(records[0].offset, records[0].timestamp)
    return base.offset, records[-1].offset, base.timestamp, len(records), encode_records(records, base)


def filtered(data: bytes, dropped: frozenset[int]) -> Iterator[tuple[int, int, int, bytes]]:
    """Of each batch that the golden filter writes: its offsets, its number of records, and these, compressed."""
    for entry in batches(data):
        kept = [row for row in entry.records() if row.offset not in dropped]
        if kept:
            base_timestamp = FILTER_HORIZON_MS if any(row.value is None for row in kept) else kept[0].timestamp
            records = encode_records(kept, RecordBase(kept[0].offset, base_timestamp))
            yield kept[0].offset, kept[-1].offset, len(kept), compress(entry.codec, records)


@pytest.mark.parametrize("case", comparable(GOLDEN), ids=lambda c: c["name"])
@pytest.mark.parametrize(("name", "dropped"), [("all_kept", frozenset[int]()), ("first_two_dropped", FIRST_TWO)])
def test_the_records_are_those_that_kafkas_filter_writes(case: dict[str, Any], name: str, dropped: frozenset[int]) -> None:
    written, data = list[RecordBatch](), unbase64(case[name])
    while (end := sum(batch.size for batch in written)) < len(data):
        written.append(parse_batch(data, end))
    expected = [
        (batch.base_offset, batch.last_offset, batch.header.record_count, bytes(batch.data[HEADER.size :])) for batch in written
    ]
    assert list(filtered(unbase64(case["bytes"]), dropped)) == expected


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 5 + 2**31)])
def test_offsets_beyond_the_range_of_a_batch_are_an_error(offsets: tuple[int, int]) -> None:
    rows = [Record(offset, 5, b"k", b"v") for offset in offsets]
    with pytest.raises(FormatError, match="do not increase"):
        parse_message_entry(Legacy(rows, 0, "gzip").encode()).require_convertible()


def test_a_timestamp_below_minus_one_is_an_error() -> None:
    with pytest.raises(FormatError, match="negative timestamp"):
        parse_message_entry(Legacy([Record(5, -2, b"k", b"v")], 1).encode()).require_convertible()
