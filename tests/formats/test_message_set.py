"""Batches of magic 2 and messages of magic 0 and 1 are read as Kafka reads them, and become the records that Kafka writes.

``converted`` is the slow oracle of the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats import record_batch as bits
from compaction.formats.codecs import Codec, CodecError, compress
from compaction.formats.message_set import CRC_START, HEADER_V0, HEADER_V1, MessageEntry, parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import (
    HEADER,
    EndTxnMarker,
    Header,
    Record,
    RecordBase,
    RecordBatch,
    decode_record,
    encode_record,
    encode_records,
    increment_sequence,
    parse_batch,
    read_end_txn_marker,
)
from tests.formats.golden import FILTER_HORIZON_MS, FIRST_TWO, changed, comparable, golden, record, unbase64
from tests.kafka.encode import CODECS, Batch, Legacy, Producer, marker

BATCHES = [case for case in golden("batches") if case["batches"][0]["magic"] == 2]
MESSAGES = [case for case in golden("batches") if case["batches"][0]["magic"] < 2]
DATA = [case for case in BATCHES if not case["batches"][0]["control"] and case["batches"][0]["count"]]

#: with log append time the builder was given other timestamps than can be read back
REWRITABLE = comparable([c for c in BATCHES if not c["batches"][0]["append_time"] or not c["batches"][0]["count"]])

KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5))
TIMES = st.integers(-1, 2**53)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=6)))
    base = draw(st.integers(0, 2**60))
    headers = st.lists(HEADERS, max_size=3).map(tuple)
    return [Record(base + offset, draw(TIMES), draw(KEYS), draw(KEYS), draw(headers)) for offset in offsets]


def golden_batch(case: dict[str, Any]) -> RecordBatch:
    batch = parse_batch(unbase64(case["bytes"]))
    assert batch.size == len(unbase64(case["bytes"]))
    return batch


@pytest.mark.parametrize("case", BATCHES, ids=lambda c: c["name"])
def test_kafkas_batches_are_read_as_kafka_reads_them(case: dict[str, Any]) -> None:
    batch, expected = golden_batch(case), dict(case["batches"][0])
    batch.ensure_valid()
    assert list(batch.records()) == [record(row) for row in expected.pop("records")]
    assert expected.pop("valid")
    header = batch.header
    assert expected == {
        "magic": batch.magic,
        "size": batch.size,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "max_timestamp": header.max_timestamp,
        "codec": batch.codec,
        "append_time": batch.is_log_append_time,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": last_sequence(batch),
        "count": header.record_count,
        "transactional": bool(header.attributes & bits.TRANSACTIONAL),
        "control": batch.is_control,
        "delete_horizon": header.base_timestamp if header.attributes & bits.DELETE_HORIZON else None,
    }


@pytest.mark.parametrize("case", REWRITABLE, ids=lambda c: c["name"])
def test_kafkas_records_are_encoded_byte_for_byte(case: dict[str, Any]) -> None:
    batch = golden_batch(case)
    assert encoded(batch.records(), batch) == batch.data[bits.HEADER.size :]


@pytest.mark.parametrize("case", comparable(DATA), ids=lambda c: c["name"])
def test_a_batch_without_some_records_equals_the_output_of_kafkas_filter(case: dict[str, Any]) -> None:
    kept = [row for row in golden_batch(case).records() if row.offset not in FIRST_TWO]
    written = parse_batch(unbase64(case["first_two_dropped"]))
    assert encoded(kept, written) == written.data[bits.HEADER.size :]


def last_sequence(batch: RecordBatch) -> int:
    first = batch.header.base_sequence
    return first if first < 0 else increment_sequence(first, batch.header.last_offset_delta)


def encoded(rows: Iterable[Record], batch: RecordBatch) -> bytes:
    """Records as the payload of a batch with this header."""
    records = encode_records(rows, RecordBase(batch.base_offset, batch.header.base_timestamp))
    return compress(batch.codec, records) if records else b""


@given(record_lists(), st.sampled_from(CODECS), st.booleans(), st.booleans(), st.none() | st.integers(0, 2**53))
def test_batches_round_trip(rows: list[Record], codec: str, transactional: bool, control: bool, horizon: int | None) -> None:
    made = Batch(
        rows, codec, leader_epoch=3, producer_id=7, producer_epoch=1, transactional=transactional, control=control,
        delete_horizon=horizon,
    )  # fmt: skip
    data = made.encode()
    batch = parse_batch(b"xyz" + data, 3)
    batch.ensure_valid()
    assert list(batch.records()) == rows
    assert (batch.position, batch.size, batch.last_offset) == (3, len(data), rows[-1].offset)
    header = batch.header
    flags = bits.TRANSACTIONAL * transactional | bits.CONTROL * control | bits.DELETE_HORIZON * (horizon is not None)
    assert (batch.codec, header.attributes) == (CODECS.index(codec), CODECS.index(codec) | flags)
    assert header.base_timestamp == (rows[0].timestamp if horizon is None else horizon)
    if codec == "none":
        assert encoded(rows, batch) == batch.data[bits.HEADER.size :]
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (3, 7, 1)
    assert header.max_timestamp == max(row.timestamp for row in rows)


def test_the_last_offset_of_a_batch_may_exceed_that_of_its_last_record() -> None:
    batch = parse_batch(Batch([Record(4, 5, b"k", b"")], base_offset=2, last_offset=9, base_sequence=10).encode())
    assert (batch.base_offset, batch.last_offset, last_sequence(batch)) == (2, 9, 17)
    assert [(row.offset, row.sequence) for row in batch.records()] == [(4, 12)]


@pytest.mark.parametrize(("base", "increment", "expected"), [(0, 5, 5), (2**31 - 1, 1, 0), (2**31 - 2, 4, 2)])
def test_sequences_wrap(base: int, increment: int, expected: int) -> None:
    assert increment_sequence(base, increment) == expected


def test_an_empty_batch_is_only_a_header() -> None:
    made = Batch([], "none", 5, 9, 1, 7, 2, 40, transactional=True, max_timestamp=88)
    batch = parse_batch(made.encode())
    assert batch.size == 61
    assert list(batch.records()) == []
    assert batch.header._replace(crc=0) == (5, 49, 1, 2, 0, bits.TRANSACTIONAL, 4, -1, 88, 7, 2, 40, 0)


def test_an_offset_delta_must_fit() -> None:
    with pytest.raises(FormatError, match="does not fit"):
        encode_record(Record(2**31, 0, None, None), RecordBase(0, 0))


@pytest.mark.parametrize("kind", [bits.COMMIT, bits.ABORT])
def test_end_transaction_markers_are_written_and_read_as_by_kafka(kind: int) -> None:
    data = marker(77, 1_700_000_000_000, Producer(4242, 3), kind, 11, leader_epoch=5)
    name = "v2-marker-commit" if kind == bits.COMMIT else "v2-marker-abort"
    assert data == unbase64(next(case["bytes"] for case in BATCHES if case["name"] == name))
    batch = parse_batch(data)
    assert batch.header.attributes == bits.CONTROL | bits.TRANSACTIONAL
    assert read_end_txn_marker(data) == EndTxnMarker(11, 1_700_000_000_000)


def control_batch(key: bytes | None, value: bytes) -> bytes:
    return Batch([Record(8, 5, key, value)], control=True).encode()


@pytest.mark.parametrize(
    ("key", "value", "epoch"),
    [
        pytest.param(b"\x00\x00\x00\x02", b"", -1, id="leader change"),
        pytest.param(b"\x00\x09\x00\x01\xff", b"\x00\x00\x00\x00\x00\x07more", 7, id="COMMIT of a later version"),
    ],
)
def test_control_records_have_the_epoch_of_a_coordinator_if_they_are_markers(key: bytes, value: bytes, epoch: int) -> None:
    assert read_end_txn_marker(control_batch(key, value)) == EndTxnMarker(epoch, 5)


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\x00\x00\x00", b""), (b"\x00\x00\x00\x01", b"short"), (b"\xff\xff\x00\x01", bytes(6))]
)
def test_malformed_control_records_are_errors(key: bytes | None, value: bytes) -> None:
    with pytest.raises(FormatError, match="control record at offset 8"):
        read_end_txn_marker(control_batch(key, value))


class TestDamagedBatches:
    """Every kind of damage is an error that knows where."""

    good = Batch([Record(0, 5, b"key", b"value", (Header("h", b"v"),)), Record(1, 6, b"key", None)]).encode()

    @pytest.mark.parametrize("position", range(bits.CRC_START, len(good), 3))
    def test_a_flipped_bit_fails_the_crc(self, position: int) -> None:
        data = bytearray(self.good)
        data[position] ^= 0x10
        with pytest.raises(FormatError, match="fails its CRC") as caught:
            parse_batch(self.good + bytes(data), len(self.good)).ensure_valid()
        assert caught.value.position == len(self.good)

    def test_the_leader_epoch_is_not_covered(self) -> None:
        data = changed(bits.HEADER, self.good, leader_epoch=99)
        parse_batch(data).ensure_valid()

    @pytest.mark.parametrize("cut", range(1, len(good)))
    def test_an_incomplete_batch_is_an_error(self, cut: int) -> None:
        with pytest.raises(FormatError) as caught:
            parse_batch(self.good + self.good[:cut], len(self.good))
        assert caught.value.position == len(self.good)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            *(("length", length, f"length {length} does not fit") for length in (-(2**31), -1, 0, 48, 2**31 - 1)),
            *(("magic", magic, f"magic {magic}, 2 expected") for magic in (-1, 3, 127)),
            ("attributes", 6, "codec 6"),
            ("record_count", -1, "-1 records"),
            ("record_count", 1, "left after 1"),
            ("record_count", 3, "ends inside a varint"),
        ],
    )
    def test_a_header_that_is_wrong_is_an_error(self, field: str, value: int, message: str) -> None:
        data = changed(bits.HEADER, self.good, **{field: value})
        with pytest.raises(FormatError, match=message):
            list(parse_batch(data).records())

    def test_more_decompressed_bytes_than_allowed(self) -> None:
        data = Batch([Record(0, 5, b"key", bytes(100_000))], "zstd").encode()
        with pytest.raises(CodecError, match="more than 1000"):
            parse_batch(data).records(limit_bytes=1000)


class TestRecords:
    """Record bodies by hand: length, attributes, timestamp delta, offset delta, key, value, headers."""

    base = RecordBase(100, 1000, 7)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("0e 00 00 00 02 61 02 62", "ends inside a varint"),
            ("12 00 00 00 02 61 02 62 00 00", "record of 9 bytes whose fields take 8"),
            ("01", "record of -1 bytes"),
            ("20 00", "record of 16 bytes, 1 left"),
            ("0c 00 00 00 01 7e 00", "runs past its record"),
            ("0c 00 00 00 01 01 01", "with -1 headers"),
            ("0c 00 00 00 01 01 7e", "with 63 headers"),
            ("10 00 00 00 01 01 02 01 01", "without a key"),
            ("0c 00 00 00 80 80 80", "ends inside a varint"),
            ("08 00 00 00 01 01 00", "with 0 headers"),
        ],
    )
    def test_damage(self, data: str, message: str) -> None:
        with pytest.raises(FormatError, match=message):
            decode_record(bytes.fromhex(data), 0, self.base)

    def test_a_record_by_hand(self) -> None:
        data = bytes.fromhex("20 00 03 04 02 6b 01 04 02 68 01 04 c3 bc 02 78")
        expected = Record(102, 998, b"k", None, (Header("h", None), Header("\u00fc", b"x")), 9)
        assert decode_record(bytes([len(data) - 1 << 1]) + data[1:], 0, self.base) == (expected, len(data))
        assert encode_record(expected, self.base) == bytes([len(data) - 1 << 1]) + data[1:]

    def test_a_header_key_with_malformed_utf8_is_encoded_unchanged(self) -> None:
        data = bytes.fromhex("12 00 00 00 01 01 02 02 ff 01")
        record_, end = decode_record(data, 0, self.base)
        assert end == len(data)
        assert encode_record(record_, self.base) == data


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


@pytest.mark.parametrize("case", MESSAGES, ids=lambda c: c["name"])
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
def test_messages_round_trip(rows: list[Record], magic: int, codec: str) -> None:
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


class TestDamagedMessages:
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

    @pytest.mark.parametrize(
        ("magic", "position", "field"), [(0, HEADER_V0.size, "key"), (1, HEADER_V1.size, "key"), (1, -9, "value")]
    )
    def test_a_field_past_the_end(self, magic: int, position: int, field: str) -> None:
        data = bytearray(Legacy(self.rows[:1], magic).encode())
        data[position : position + 4] = (2**31 - 1 if field == "key" else 6).to_bytes(4, "big")
        with pytest.raises(FormatError, match=f"{field} runs past its end"):
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


@pytest.mark.parametrize("case", comparable(MESSAGES), ids=lambda c: c["name"])
@pytest.mark.parametrize(("name", "dropped"), [("all_kept", frozenset[int]()), ("first_two_dropped", FIRST_TWO)])
def test_the_records_are_those_that_kafkas_filter_writes(case: dict[str, Any], name: str, dropped: frozenset[int]) -> None:
    written, data = list[RecordBatch](), unbase64(case[name])
    while (end := sum(batch.size for batch in written)) < len(data):
        written.append(parse_batch(data, end))
    expected = [
        (batch.base_offset, batch.last_offset, batch.header.record_count, bytes(batch.data[HEADER.size :])) for batch in written
    ]
    assert list(filtered(unbase64(case["bytes"]), dropped)) == expected


@pytest.mark.parametrize(
    ("message_set", "problem"),
    [
        (Legacy([Record(5, 5, b"k", b"v"), Record(5, 5, b"k", b"v")], 0, "gzip"), "do not increase"),
        (Legacy([Record(6, 5, b"k", b"v"), Record(5, 5, b"k", b"v")], 0, "gzip"), "do not increase"),
        (Legacy([Record(5, 5, b"k", b"v"), Record(5 + 2**31, 5, b"k", b"v")], 0, "gzip"), "do not increase"),
        (Legacy([Record(5, -2, b"k", b"v")], 1), "negative timestamp"),
    ],
)
def test_what_no_batch_can_hold_cannot_be_converted(message_set: Legacy, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_message_entry(message_set.encode()).require_convertible()
