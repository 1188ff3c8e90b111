"""Old messages become the batches of magic 2 that Kafka's filter writes for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.compression.codecs import Codec
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch import BatchSpec, encode_batch, iter_batches, parse_batch
from compaction.formats.record_batch.message_set import MessageEntry, MessageSetSpec, encode_message_set, parse_message_entry
from compaction.formats.record_batch.record import Record, RecordBase, encode_records
from compaction.formats.record_batch.transcode import encode_columns, transcode, transcode_columns, transcode_plain
from tests.formats.golden import FILTER_HORIZON_MS, FIRST_TWO, comparable, golden, unbase64

GOLDEN = [case for case in golden("batches") if case["batches"][0]["magic"] < 2]
FIELDS = st.none() | st.binary(max_size=200)


@st.composite
def messages(draw: st.DrawFn) -> list[Record]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    base = draw(st.integers(1, 2**61))
    return [Record(base + offset, draw(st.integers(-1, 2**62)), draw(FIELDS), draw(FIELDS)) for offset in offsets]


def filtered(data: bytes, dropped: frozenset[int]) -> bytes:
    """What the golden filter did, by the functions under test."""
    out = b""
    for batch in iter_batches(data):
        assert isinstance(batch, MessageEntry)
        columns = batch.columns()
        kept = columns.take(~np.isin(columns.offset, list(dropped)))
        if len(kept):
            horizon = FILTER_HORIZON_MS if np.any(kept.value_length < 0) else None
            out += transcode_columns(batch, kept, horizon).seal()
    return out


@pytest.mark.parametrize("case", comparable(GOLDEN), ids=lambda c: c["name"])
@pytest.mark.parametrize(("name", "dropped"), [("all_kept", frozenset[int]()), ("first_two_dropped", FIRST_TWO)])
def test_kafkas_filter_writes_the_same_bytes(case: dict[str, Any], name: str, dropped: frozenset[int]) -> None:
    assert filtered(unbase64(case["bytes"]), dropped) == unbase64(case[name])


@given(messages(), st.sampled_from([0, 1]), st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4]), st.booleans())
def test_a_wrapper_becomes_a_batch_of_the_same_records(rows: list[Record], magic: int, codec: Codec, append_time: bool) -> None:
    stamp = 1234 if append_time else None
    data = encode_message_set(rows, MessageSetSpec(magic, codec, stamp))
    old = parse_message_entry(data)
    new = parse_batch(transcode(b"??" + data, 2).seal())
    new.ensure_valid()
    assert list(new.records()) == list(old.records())
    assert (new.codec, new.is_log_append_time, new.base_offset) == (codec, append_time and magic == 1, rows[0].offset)
    again = encode_batch(list(old.records()), BatchSpec.of(new))
    assert again == transcode(data).seal()


@given(messages(), st.integers(0, 2**62))
def test_bulk_records_are_those_written_one_by_one(rows: list[Record], base_timestamp: int) -> None:
    columns = parse_message_entry(encode_message_set(rows, MessageSetSpec(1, Codec.LZ4))).columns()
    base = RecordBase(rows[0].offset, base_timestamp)
    assert encode_columns(columns, base.offset, base.timestamp) == encode_records(rows, base)


def test_lengths_of_every_varint_size() -> None:
    rows = [Record(1 << shift, 1 << 2 * shift, bytes(1 << shift - 8), b"v") for shift in range(8, 26)]
    columns = parse_message_entry(encode_message_set(rows, MessageSetSpec(1, Codec.LZ4))).columns()
    assert encode_columns(columns, 0, 0) == encode_records(rows, RecordBase(0, 0))


@given(messages(), st.sampled_from([0, 1]), st.none() | st.integers(0, 2**62), st.none() | st.integers(0, 2**62))
def test_plain_messages_need_no_arrays(rows: list[Record], magic: int, stamp: int | None, horizon: int | None) -> None:
    for batch in iter_batches(encode_message_set(rows, MessageSetSpec(magic, log_append_time_ms=stamp))):
        assert isinstance(batch, MessageEntry)
        assert [batch.own_record()] == list(batch.records())
        assert transcode_plain(batch, horizon) == transcode_columns(batch, batch.columns(), horizon)


def test_a_plain_message_becomes_a_batch_of_one() -> None:
    header = transcode(encode_message_set([Record(77, 5, b"k", None)])).header
    assert header._replace(crc=0) == (77, 0, -1, 2, 0, 0, 0, 5, 5, -1, -1, -1, 1)


def test_a_horizon_becomes_the_base_timestamp() -> None:
    batch = parse_message_entry(encode_message_set([Record(77, 5, b"k", None)]))
    new = parse_batch(transcode_columns(batch, batch.columns(), 999).seal())
    assert new.delete_horizon_ms == 999
    assert list(new.records()) == [Record(77, 5, b"k", None)]


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 5 + 2**31)])
def test_offsets_that_no_batch_can_hold(offsets: tuple[int, int]) -> None:
    rows = [Record(offset, 5, b"k", b"v") for offset in offsets]
    with pytest.raises(FormatError, match="do not increase"):
        transcode(encode_message_set(rows, MessageSetSpec(0, Codec.GZIP)))


def test_a_timestamp_below_none() -> None:
    with pytest.raises(FormatError, match="negative timestamp"):
        transcode(encode_message_set([Record(5, -2, b"k", b"v")]))
