"""Converted messages of magic 0 and 1 against the records of the plain encoder."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from compaction.kernels.batches import scan_batches
from compaction.kernels.messages import GROWTH, plain_messages
from tests.kafka.encode import Legacy, Record
from tests.kernels.tables import as_array, random_segment
from tests.oracle.random_logs import Flavour
from tests.oracle.records import HEADER, decode, encode

MESSAGES = Flavour(batches=40, magics=(0, 1), transactions=False, producers=0)


def transcoded(log: bytes, position: int, scratch_bytes: int) -> list[bytes]:
    """The records of every message, call after call."""
    raw = as_array(log)
    rows = scan_batches(raw, position, check_crc=True).rows.copy()
    spans = np.zeros((len(rows), 3), np.int64)
    at, found = 0, []
    while at < len(rows):
        scratch = np.empty(scratch_bytes, np.uint8)
        done, ok = plain_messages(raw, position, rows[at:], 0, scratch, spans[at:])
        assert ok
        assert done > 0, "no progress"
        found += [scratch[start:end].tobytes() for start, end, _ in spans[at : at + done].tolist()]
        at += done
    assert rows["count"].tolist() == [1] * len(rows)
    return found


@pytest.mark.parametrize("room", ["one", "all"])
@pytest.mark.parametrize("seed", range(20))
def test_converted_messages_equal_the_records_of_the_plain_encoder(seed: int, room: str) -> None:
    segment = random_segment(seed, MESSAGES)
    most = GROWTH + max(len(batch.raw) for batch in segment.batches)
    found = transcoded(segment.log, 5_000, most if room == "one" else most + 2 * len(segment.log))
    assert found == [encode(batch, batch.records())[HEADER.size :] for batch in segment.batches]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 70_000])
@pytest.mark.parametrize("value", [None, b"", b"v" * 200])
def test_null_is_not_empty(magic: int, key: bytes | None, value: bytes | None) -> None:
    raw = Legacy([Record(7, 1_234, key, value)], magic).encode()
    (batch,) = decode(raw)
    assert transcoded(raw, 0, len(raw) + GROWTH) == [encode(batch, batch.records())[HEADER.size :]]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("field", "value"), [("key", -2), ("key", 9), ("key", 2**31 - 1), ("value", -2), ("value", 4), ("value", 6)]
)
def test_lengths_that_contradict_the_size_are_rejected(magic: int, field: str, value: int) -> None:
    raw = bytearray(Legacy([Record(7, 1_000, b"key", b"value")], magic).encode())
    key_at = 26 if magic else 18
    struct.pack_into(">i", raw, key_at if field == "key" else key_at + 7, value)
    data = as_array(bytes(raw))
    rows = scan_batches(data, 0, check_crc=False).rows.copy()
    done, ok = plain_messages(data, 0, rows, 0, np.empty(500, np.uint8), np.zeros((1, 3), np.int64))
    assert (done, ok) == (0, False)
