"""v0 and v1 messages become the v2 records that Kafka's filter writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.formats.codecs import compress
from compaction.formats.message_set import (
    MessageColumns,
    MessageEntry,
    encode_columns,
    iter_batches,
    parse_message_entry,
    transcode,
)
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import HEADER, Record, RecordBase, RecordBatch, decode_records, encode_records
from tests.formats.golden import FILTER_HORIZON_MS, FIRST_TWO, comparable, golden, unbase64
from tests.kafka.encode import Legacy

GOLDEN = [case for case in golden("batches") if case["batches"][0]["magic"] < 2]
FIELDS = st.none() | st.binary(max_size=200)


@st.composite
def messages(draw: st.DrawFn) -> list[Record]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    base = draw(st.integers(1, 2**61))
    return [Record(base + offset, draw(st.integers(-1, 2**62)), draw(FIELDS), draw(FIELDS)) for offset in offsets]


def filtered(data: bytes, dropped: frozenset[int]) -> Iterator[tuple[int, int, int, bytes]]:
    """Of each batch that the golden filter writes: its offsets, its number of records, and these, compressed."""
    for entry in iter_batches(data):
        assert isinstance(entry, MessageEntry)
        columns = entry.columns()
        kept = retained(columns, ~np.isin(columns.offset, list(dropped)))
        if len(kept):
            base_timestamp = FILTER_HORIZON_MS if np.any(kept.value_length < 0) else int(kept.timestamp[0])
            first, last = int(kept.offset[0]), int(kept.offset[-1])
            yield first, last, len(kept), compress(entry.codec, encode_columns(kept, first, base_timestamp))


def retained(columns: MessageColumns, keep: NDArray[np.bool_]) -> MessageColumns:
    names = [each.name for each in fields(columns) if each.name not in ("data", "other_magic")]
    arrays = {name: getattr(columns, name)[keep] for name in names}
    return replace(columns, **arrays)


@pytest.mark.parametrize("case", comparable(GOLDEN), ids=lambda c: c["name"])
@pytest.mark.parametrize(("name", "dropped"), [("all_kept", frozenset[int]()), ("first_two_dropped", FIRST_TWO)])
def test_the_records_are_those_that_kafkas_filter_writes(case: dict[str, Any], name: str, dropped: frozenset[int]) -> None:
    written = [batch for batch in iter_batches(unbase64(case[name])) if isinstance(batch, RecordBatch)]
    expected = [
        (batch.base_offset, batch.last_offset, batch.header.record_count, bytes(batch.data[HEADER.size :])) for batch in written
    ]
    assert list(filtered(unbase64(case["bytes"]), dropped)) == expected


@given(messages(), st.sampled_from([0, 1]), st.sampled_from(["gzip", "snappy", "lz4"]), st.booleans())
def test_a_wrapper_becomes_the_same_records(rows: list[Record], magic: int, codec: str, append_time: bool) -> None:
    data = Legacy(rows, magic, codec, 1234 if append_time else None).encode()
    expected = list(parse_message_entry(data).records())
    found = transcode(b"??" + data, 2)
    assert found[:4] == (rows[0].offset, rows[-1].offset, expected[0].timestamp, len(rows))
    base = RecordBase(found.base_offset, found.base_timestamp)
    assert list(decode_records(found.records, found.record_count, base)) == expected


@given(messages(), st.integers(0, 2**62))
def test_bulk_encoding_equals_encoding_one_by_one(rows: list[Record], base_timestamp: int) -> None:
    columns = parse_message_entry(Legacy(rows, 1, "lz4").encode()).columns()
    base = RecordBase(rows[0].offset, base_timestamp)
    assert encode_columns(columns, base.offset, base.timestamp) == encode_records(rows, base)


def test_lengths_of_every_varint_size() -> None:
    rows = [Record(1 << shift, 1 << 2 * shift, bytes(1 << shift - 8), b"v") for shift in range(8, 26)]
    columns = parse_message_entry(Legacy(rows, 1, "lz4").encode()).columns()
    assert encode_columns(columns, 0, 0) == encode_records(rows, RecordBase(0, 0))


def test_a_plain_message_becomes_one_record() -> None:
    found = transcode(Legacy([Record(77, 5, b"k", None)], 1).encode())
    assert found[:5] == (77, 77, 5, 1, encode_records([Record(77, 5, b"k", None)], RecordBase(77, 5)))


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 5 + 2**31)])
def test_offsets_beyond_the_range_of_a_batch_are_an_error(offsets: tuple[int, int]) -> None:
    rows = [Record(offset, 5, b"k", b"v") for offset in offsets]
    with pytest.raises(FormatError, match="do not increase"):
        transcode(Legacy(rows, 0, "gzip").encode())


def test_a_timestamp_below_minus_one_is_an_error() -> None:
    with pytest.raises(FormatError, match="negative timestamp"):
        transcode(Legacy([Record(5, -2, b"k", b"v")], 1).encode())
