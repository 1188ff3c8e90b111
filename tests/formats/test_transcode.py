"""v0 and v1 messages become the v2 records that Kafka's filter writes. ``converted`` is the slow oracle of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.formats.codecs import compress
from compaction.formats.message_set import MessageColumns, MessageEntry, iter_batches, parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import HEADER, Record, RecordBase, RecordBatch, encode_records
from tests.formats.golden import FILTER_HORIZON_MS, FIRST_TWO, comparable, golden, unbase64
from tests.kafka.encode import Legacy

GOLDEN = [case for case in golden("batches") if case["batches"][0]["magic"] < 2]
FIELDS = st.none() | st.binary(max_size=200)


@st.composite
def messages(draw: st.DrawFn) -> list[Record]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    base = draw(st.integers(1, 2**61))
    return [Record(base + offset, draw(st.integers(-1, 2**62)), draw(FIELDS), draw(FIELDS)) for offset in offsets]


def converted(data: bytes, position: int = 0) -> tuple[int, int, int, int, bytes]:
    """The base offset, last offset, base timestamp, number and bytes of the v2 records of an entry."""
    records = list(parse_message_entry(data, position).records())
    base = RecordBase(records[0].offset, records[0].timestamp)
    return base.offset, records[-1].offset, base.timestamp, len(records), encode_records(records, base)


def filtered(data: bytes, dropped: frozenset[int]) -> Iterator[tuple[int, int, int, bytes]]:
    """Of each batch that the golden filter writes: its offsets, its number of records, and these, compressed."""
    for entry in iter_batches(data):
        assert isinstance(entry, MessageEntry)
        columns = entry.columns()
        kept = retained(columns, ~np.isin(columns.offset, list(dropped)))
        if len(kept):
            base_timestamp = FILTER_HORIZON_MS if np.any(kept.value_length < 0) else int(kept.timestamp[0])
            first, last = int(kept.offset[0]), int(kept.offset[-1])
            records = encode_records(kept.records(), RecordBase(first, base_timestamp))
            yield first, last, len(kept), compress(entry.codec, records)


def retained(columns: MessageColumns, keep: NDArray[np.bool_]) -> MessageColumns:
    names = [each.name for each in fields(columns) if each.name != "data"]
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


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 5 + 2**31)])
def test_offsets_beyond_the_range_of_a_batch_are_an_error(offsets: tuple[int, int]) -> None:
    rows = [Record(offset, 5, b"k", b"v") for offset in offsets]
    with pytest.raises(FormatError, match="do not increase"):
        parse_message_entry(Legacy(rows, 0, "gzip").encode()).require_convertible()


def test_a_timestamp_below_minus_one_is_an_error() -> None:
    with pytest.raises(FormatError, match="negative timestamp"):
        parse_message_entry(Legacy([Record(5, -2, b"k", b"v")], 1).encode()).require_convertible()
