"""Files beside the records, to the letter as Kafka, Java and Jackson write and read them: checkpoints, indexes, snapshots of
producers, properties, JSON. What a broker refuses is refused with its place."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import ConfigError, CorruptLogError
from compaction.formats import checkpoints, indexes
from compaction.formats.java_text import (
    Json,
    MetaProperties,
    Property,
    as_dict,
    java_text,
    json_text,
    parse_meta_properties,
    parse_properties,
)
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ENTRY, HEADER, ProducerEntry, read_snapshot, write_snapshot
from compaction.names import TopicPartition
from tests.formats.golden import changed, golden, unbase64

FILES = golden("files")
SOURCE = PurePath("/data/cleaner-offset-checkpoint")
TOPIC_ID = "EjRWeJq83vD-3LqYdlQyEA"


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    return checkpoints.parse_offset_checkpoint(text, SOURCE)


def test_kafkas_checkpoints_are_read_and_written_again() -> None:
    text = FILES["offset_checkpoint"]["text"]
    offsets = parse_offsets(text)
    assert offsets == {TopicPartition(topic, partition): at for topic, partition, at in FILES["offset_checkpoint"]["rows"]}
    assert checkpoints.format_offset_checkpoint(offsets) == text
    text = FILES["leader_epochs"]["text"]
    entries = checkpoints.parse_leader_epochs(text, SOURCE)
    assert [list(entry) for entry in entries] == FILES["leader_epochs"]["rows"]
    assert checkpoints.format_leader_epochs(entries) == text
    text = FILES["partition_metadata"]["text"]
    assert checkpoints.parse_partition_metadata(text, SOURCE) == FILES["partition_metadata"]["topic_id"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("0", {}),
        ("0\n", {}),
        ("0\n0\n", {}),
        ("0\r\n1\r\nt 0 5\r\n", {("t", 0): 5}),
        ("0\r1\rt 0 5", {("t", 0): 5}),
        ("0\n1\nt\t0   5 \t\n", {("t", 0): 5}),
        ("+0\n+1\nt +0 -5", {("t", 0): -5}),
        ("0\n2\nt 0 5\nt 0 6\n", {("t", 0): 6}),
        ("0\n1\nt 2147483647 9223372036854775807\n", {("t", 2**31 - 1): 2**63 - 1}),
    ],
)
def test_offsets_that_java_reads(text: str, expected: dict[TopicPartition, int]) -> None:
    assert parse_offsets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"version: 0\ntopic_id: {TOPIC_ID}",
        f"version: 0\ntopic_id: {TOPIC_ID}\n",
        f"version:   0\r\ntopic_id:\t{TOPIC_ID}\nmore: of it\n",
        f"version: 0\ntopic_id: {TOPIC_ID}==",
        # a later version
        f"version: 1\ntopic_id: {TOPIC_ID}",
    ],
)
def test_partition_metadata_that_java_reads(text: str) -> None:
    assert checkpoints.parse_partition_metadata(text, SOURCE) == TOPIC_ID


#: the line of the error, and what it says there
MALFORMED_OFFSETS = [
    ("\n", 1, "'' is not a 32-bit integer"),
    ("1\n0\n", 1, "unknown version 1"),
    ("0 \n0\n", 1, "version: '0 '"),
    ("zero\n0\n", 1, "version: 'zero'"),
    ("0\nx\n", 2, "count: 'x'"),
    ("0\n\n", 2, "count: ''"),
    ("0\n1\n", 2, "1 entries declared, 0 found"),
    ("0\n1\nt 0 5\nu 0 5\n", 2, "1 entries declared, 2 found"),
    ("0\n2\nt 0 5\n\n", 4, "malformed entry ''"),
    ("0\n1\n t 0 5\n", 3, "malformed entry ' t 0 5'"),
    ("0\n1\nt 0\n", 3, "malformed entry 't 0'"),
    ("0\n1\nt 0 5 6\n", 3, "malformed entry"),
    ("0\n1\nt x 5\n", 3, "'x' is not a 32-bit integer"),
    ("0\n1\nt 2147483648 5\n", 3, "'2147483648' is not a 32-bit integer"),
    ("0\n2\nt 0 5\nt 1 9223372036854775808\n", 4, "is not a 64-bit integer"),
    ("0\n1\nt 0 1_0\n", 3, "'1_0'"),
    ("0\n1\nt 0 1.0\n", 3, "'1.0'"),
    ("0\n1\nt 0 \u0661\n", 3, "not a 64-bit integer"),
    ("\x00\x00\x00", 1, "not a 32-bit integer"),
    ("0\n2000000000\n", 2, "2000000000 entries declared, more than 1048576 are not supported"),
    ("0\n-3\na 0 1\n", 2, "-3 entries declared, 1 found"),
]
MALFORMED_EPOCHS = [("0\n1\n0\n", 3), ("0\n1\n0 0 0\n", 3), ("0\n1\n2147483648 0\n", 3), ("2\n", 1)]
MALFORMED_METADATA = [
    ("", 1),
    ("version: \n", 1),
    ("version 0\n", 1),
    (f"version: x\ntopic_id: {TOPIC_ID}", 1),
    (f"version: -1\ntopic_id: {TOPIC_ID}", 1),
    ("version: 0", 2),
    ("version: 0\ntopic_id:x", 2),
    ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2),
    ("version: 0\ntopic_id: short", 2),
    ("version: 0\ntopic_id: EjRWeJq83vD+3LqYdlQyEA", 2),
    (f"version: 0\ntopic_id: {TOPIC_ID}AA", 2),
]


@pytest.mark.parametrize(
    ("parse", "text", "line", "what"),
    [
        *((checkpoints.parse_offset_checkpoint, *row) for row in MALFORMED_OFFSETS),
        *((checkpoints.parse_leader_epochs, *row, "") for row in MALFORMED_EPOCHS),
        *((checkpoints.parse_partition_metadata, *row, "") for row in MALFORMED_METADATA),
    ],
)
def test_what_is_malformed_is_an_error_with_source_and_line(
    parse: Callable[[str, object], Any], text: str, line: int, what: str
) -> None:
    with pytest.raises(CorruptLogError) as caught:
        parse(text, SOURCE)
    assert caught.value.path == str(SOURCE)
    assert caught.value.message.startswith(f"line {line}: ")
    assert what in caught.value.message


@pytest.mark.parametrize("parse", [checkpoints.parse_offset_checkpoint, checkpoints.parse_leader_epochs])
@given(text=st.text(st.sampled_from("0123456789 \n\tt-"), max_size=30))
def test_no_text_raises_any_other_error(parse: Callable[[str, object], Any], text: str) -> None:
    try:
        assert parse(text, SOURCE) is not None
    except CorruptLogError as error:
        assert error.message.startswith("line ")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param("0\n1\nt 0 " + "7" * (8 * MIB), "is not a 64-bit integer", id="a number of millions of digits"),
        pytest.param("0" * (8 * MIB) + "1\n", "unknown version 1", id="a number of millions of zeros"),
        pytest.param("0\n1\n" + "a " * (4 * MIB), "malformed entry 'a a", id="a line of millions of fields"),
        pytest.param("\0" * (8 * MIB), "is not a 32-bit integer", id="zeros"),
        pytest.param("0\n1\nt 0 5\n" + "\n" * (2 * MIB), "1 entries declared, 2097153 found", id="millions of lines"),
        pytest.param("0\n9\n" + "t 0 5\n" * MIB, "9 entries declared, 1048576 found", id="a wrong count"),
    ],
)
def test_a_hostile_checkpoint_gives_a_short_error_in_bounded_time_and_memory(text: str, what: str) -> None:
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(CorruptLogError) as caught:
            parse_offsets(text)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()
    assert what in caught.value.message
    assert len(caught.value.message) < 500
    assert time.monotonic() - started < 30


BASE = 5_000_000_000
INT_MAX = 2**31 - 1


def offsets(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *pair) for pair in pairs)


def times(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *pair) for pair in pairs)


@pytest.mark.parametrize("state", ["preallocated", "closed"])
@pytest.mark.parametrize(("name", "index"), [("offset_index", indexes.OFFSET_INDEX), ("time_index", indexes.TIME_INDEX)])
def test_kafkas_indexes_are_read_and_written_again(name: str, index: indexes.SegmentIndex, state: str) -> None:
    """Both the file of an open segment, preallocated, and that of a closed one."""
    data, base = unbase64(FILES[name][state]), FILES[name]["base_offset"]
    rows = index.read(data, base)
    assert list(map(list, rows.tolist())) == FILES[name]["rows"]
    index.check(data)
    assert index.write(rows, base) == unbase64(FILES[name]["closed"])


def test_kafkas_transaction_index_is_read_and_written_again() -> None:
    data = unbase64(FILES["txn_index"]["closed"])
    rows = indexes.read_txn_index(data)
    assert list(map(list, rows.tolist())) == FILES["txn_index"]["rows"]
    indexes.check_txn_index(data, FILES["txn_index"]["base_offset"])
    assert indexes.write_txn_index(rows) == data


@pytest.mark.parametrize(
    ("index", "data", "valid"),
    [
        (indexes.OFFSET_INDEX, b"", 0),
        (indexes.OFFSET_INDEX, bytes(8), 0),
        (indexes.OFFSET_INDEX, bytes(8 * 100), 0),
        (indexes.OFFSET_INDEX, bytes(7), 0),
        (indexes.OFFSET_INDEX, offsets((5, 4200)), 1),
        (indexes.OFFSET_INDEX, offsets((5, 4200)) + b"\x00\x00\x00", 1),
        (indexes.OFFSET_INDEX, offsets((0, 4200), (9, 8400)) + bytes(800), 2),
        (indexes.OFFSET_INDEX, offsets((5, 4200), (5, 8400)), 1),
        (indexes.OFFSET_INDEX, offsets((5, 4200), (9, 4200)), 1),
        (indexes.OFFSET_INDEX, offsets((5, 4200), (4, 9000), (9, 9900)), 1),
        (indexes.OFFSET_INDEX, offsets((5, 4200), (0, 0), (9, 9900)), 1),
        (indexes.OFFSET_INDEX, offsets((-5, 4200)), 0),
        (indexes.OFFSET_INDEX, offsets((5, -1)), 0),
        (indexes.OFFSET_INDEX, offsets((1, 1), (INT_MAX, INT_MAX)), 2),
        (indexes.TIME_INDEX, b"", 0),
        (indexes.TIME_INDEX, times((0, 0)), 1),
        (indexes.TIME_INDEX, bytes(24), 0),
        (indexes.TIME_INDEX, bytes(12 * 100), 0),
        (indexes.TIME_INDEX, times((0, 0), (1, 5)) + bytes(120), 2),
        (indexes.TIME_INDEX, times((7, 5)) + b"\x00" * 11, 1),
        (indexes.TIME_INDEX, times((7, 5), (7, 9)), 1),
        (indexes.TIME_INDEX, times((7, 5), (8, 5)), 2),
        (indexes.TIME_INDEX, times((7, 5), (8, 4)), 1),
        (indexes.TIME_INDEX, times((7, 5), (6, 9)), 1),
        (indexes.TIME_INDEX, times((-(2**63), 0), (2**63 - 1, 0)), 2),
        (indexes.TIME_INDEX, times((7, -1)), 0),
    ],
)
def test_entries_are_valid_while_they_increase(index: indexes.SegmentIndex, data: bytes, valid: int) -> None:
    assert index.valid(data) == valid
    assert len(index.read(data, 0)) == valid


@pytest.mark.parametrize(
    ("check", "data", "message", "position"),
    [
        (indexes.OFFSET_INDEX.check, offsets((5, 42)) + b"\x00", "offset index of 9 bytes is not a multiple of 8", 8),
        (indexes.OFFSET_INDEX.check, offsets((5, 42), (6, 43), (6, 44)), "offset index entry 2 .relative offset 6", 16),
        (indexes.OFFSET_INDEX.check, offsets((5, 42), (6, 42)), "offset index entry 1", 8),
        (indexes.OFFSET_INDEX.check, offsets((-1, 42)), "offset index entry 0", 0),
        (indexes.OFFSET_INDEX.check, bytes(8) + offsets((5, 42), (0, 0), (6, 43)) + bytes(8), "offset index entry 2", 16),
        (indexes.TIME_INDEX.check, times((5, 42)) + b"\x00", "time index of 13 bytes is not a multiple of 12", 12),
        (indexes.TIME_INDEX.check, times((5, 42), (4, 43)), "time index entry 1", 12),
        (indexes.TIME_INDEX.check, times((5, 42), (6, 41)), "time index entry 1 .relative offset 41", 12),
    ],
)
def test_damage_is_reported_with_the_entry(check: Callable[[bytes], None], data: bytes, message: str, position: int) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        check(data)
    assert caught.value.position == position


@pytest.mark.parametrize("check", [indexes.OFFSET_INDEX.check, indexes.TIME_INDEX.check])
@pytest.mark.parametrize("zeros", [0, 24, 2400])
def test_an_index_of_zeros_is_valid(check: Callable[[bytes], None], zeros: int) -> None:
    check(bytes(zeros))


def test_an_aborted_transaction_before_the_segment_is_an_error() -> None:
    data = indexes.write_txn_index(np.array([(1, 90, 100, 90), (2, 80, 99, 80)], indexes.TXN_ROW))
    indexes.check_txn_index(data, 99)
    with pytest.raises(FormatError, match="entry 1 ends at offset 99, before the segment's base 100") as caught:
        indexes.check_txn_index(data, 100)
    assert caught.value.position == 34


@pytest.mark.parametrize("version", [1, -1, 256])
def test_an_unknown_txn_version_is_an_error(version: int) -> None:
    data = bytearray(68)
    indexes.TXN_ENTRY.put(data, "version", version, 34)
    with pytest.raises(FormatError, match=f"entry 1 has version {version}"):
        indexes.read_txn_index(data)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + INT_MAX + 1])
def test_offsets_out_of_the_segments_range_cannot_be_written(offset: int) -> None:
    with pytest.raises(FormatError, match=f"entry 1: {offset}"):
        indexes.OFFSET_INDEX.write(np.array([(BASE, 1), (offset, 2)], indexes.OFFSET_ROW), BASE)
    with pytest.raises(FormatError, match=f"entry 1: {offset}"):
        indexes.TIME_INDEX.write(np.array([(1, BASE), (2, offset)], indexes.TIME_ROW), BASE)


SNAPSHOT = FILES["producer_snapshot"]
DATA = unbase64(SNAPSHOT["closed"])


def test_kafkas_snapshot_is_read_and_written_again() -> None:
    entries = read_snapshot(DATA)
    assert [list(entry) for entry in entries] == SNAPSHOT["rows"]
    assert {entry.producer_id: entry.current_txn_first_offset for entry in entries}[7] == 88
    assert write_snapshot(entries) == DATA


@pytest.mark.parametrize("position", range(len(DATA)))
def test_a_flipped_bit_in_a_snapshot_is_an_error(position: int) -> None:
    data = bytearray(DATA)
    data[position] ^= 0x04
    with pytest.raises(FormatError):
        read_snapshot(bytes(data))


@pytest.mark.parametrize("length", [*range(12), len(DATA) - ENTRY.size, len(DATA) - 1])
def test_a_truncated_snapshot_is_an_error(length: int) -> None:
    with pytest.raises(FormatError):
        read_snapshot(DATA[:length])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(("version", version, f"unknown snapshot version {version}") for version in (-1, 0, 2)),
        *(("entry_count", count, f"{count} entries declared") for count in (-1, 4, 2**31 - 1)),
        ("crc", 1, r"stored 0x1, computed 0x[0-9a-f]+"),
    ],
)
def test_an_error_says_what_is_wrong_in_the_header_of_a_snapshot(field: str, value: int, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_snapshot(changed(HEADER, DATA, **{field: value}))
    if field == "crc":
        assert caught.value.position == 2


def test_a_producer_that_does_not_fit_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="ProducerEntry"):
        write_snapshot([ProducerEntry(1, 2**15, 0, 0, 0, 0, 0, 0)])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"plain", "plain"),
        ("ä€𝄞".encode(), "ä€𝄞"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2x", "\ufffdx"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf5\x80\x80\x80", "\ufffd" * 4),
    ],
)
def test_malformed_bytes_are_replaced_as_in_java(raw: bytes, expected: str) -> None:
    assert java_text(raw) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, {"b": None}], "c": False}, '{"a":[1,{"b":null}],"c":false}'),
        ('"\\/\n\t\r\b\f\x01\x1f\x7fä', '"\\"\\\\/\\n\\t\\r\\b\\f\\u0001\\u001F\x7fä"'),
        (0.0, "0.0"),
        (1.5, "1.5"),
        (1e-3, "0.001"),
        (1e-4, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-123456789.125, "-1.23456789125E8"),
        (1e300, "1.0E300"),
        (2.5e-10, "2.5E-10"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_json_equals_jacksons(value: Json, expected: str) -> None:
    assert json_text(value) == expected


@pytest.mark.parametrize("case", FILES["properties"], ids=lambda case: case["text"][:20])
def test_java_reads_the_same(case: dict[str, Any]) -> None:
    assert as_dict(parse_properties(case["text"], "f")) == case["values"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("# only\n! comments\n\n   \n", []),
        ("a=1", [Property("a", "1", 1)]),
        ("\n\na=1\r\nb:2\rc 3", [Property("a", "1", 3), Property("b", "2", 4), Property("c", "3", 5)]),
        ("a=one \\\n  two\\\n three\nb=2", [Property("a", "one twothree", 1), Property("b", "2", 4)]),
        ("a=x\\\\\nb=y", [Property("a", "x\\", 1), Property("b", "y", 2)]),
        ("a=x\\\n# not a comment\n", [Property("a", "x# not a comment", 1)]),
        ("  log.dirs = /a,/b  ", [Property("log.dirs", "/a,/b  ", 1)]),
        ("a==b", [Property("a", "=b", 1)]),
        ("a = : b", [Property("a", ": b", 1)]),
        ("a", [Property("a", "", 1)]),
        ("a\\ b\\=c\\u003D = \\u20AC\\n", [Property("a b=c=", "\u20ac\n", 1)]),
        ("a=1\na=2", [Property("a", "1", 1), Property("a", "2", 2)]),
    ],
)
def test_entries_and_lines(text: str, entries: list[Property]) -> None:
    assert parse_properties(text, "f") == entries


@pytest.mark.parametrize(("text", "line"), [("a=\\u12", 1), ("\n# c\na=\\uxyz1", 3), ("b=1\n\\u00g0=1", 2), ("a=b\\\n\\u", 1)])
def test_a_malformed_escape_is_an_error_with_source_and_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"server.properties: line {line}: malformed"):
        parse_properties(text, "server.properties")


def test_kafkas_meta_properties() -> None:
    case = FILES["meta_properties"]
    expected = MetaProperties(case["cluster_id"], case["node_id"])
    assert parse_meta_properties(case["text"], "meta.properties") == expected


def test_meta_properties_of_version_0_have_a_broker_id() -> None:
    assert parse_meta_properties("version=0\nbroker.id=3\nnode.id=4\n", "f") == MetaProperties(None, 3)
    assert parse_meta_properties("", "f") == MetaProperties()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version=2\n", "version '2'"),
        ("version=1\nnode.id=x\n", "node.id: 'x'"),
        (f"version=1\nnode.id={'7' * 100_000}\n", "node.id: '7{80}'… is not an integer"),
        # of a broker's file, which is no error of the call
        ("cluster.id=\\u12\n", "line 1: malformed"),
    ],
)
def test_malformed_meta_properties_are_errors(text: str, what: str) -> None:
    with pytest.raises(CorruptLogError, match=what):
        parse_meta_properties(text, "meta.properties")
