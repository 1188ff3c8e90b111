"""The ranks of records."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from compaction.kernels.reading.batches import scan_batches
from compaction.kernels.reading.ranks import RANKED_WORDS, Ranking, rank_records
from compaction.kernels.reading.records import MAP, scan_records
from compaction.kernels.reading.siphash import HashSecret
from compaction.kernels.reading.tables import ENTRY_WORDS, RANKED
from tests.kafka.encode import Batch, Record

LONG = struct.Struct(">q").pack
HEADERS = (
    ((), None),
    (((b"v", LONG(5)),), 5),
    (((b"v", LONG(-5)),), -5),
    (((b"v", LONG(-(2**63))),), -(2**63)),
    (((b"v", LONG(1)), (b"w", LONG(9)), (b"v", LONG(2))), 2),
    (((b"v", LONG(1)), (b"v", b"2")), None),
    (((b"v", None),), None),
    (((b"v", b""),), None),
    (((b"v", LONG(1) + b"0"),), None),
    (((b"V", LONG(1)), (b"vv", LONG(1)), (b"", LONG(1))), None),
)


@pytest.mark.parametrize("by_header", [True, False])
def test_ranks_are_those_of_the_last_header_of_the_name_or_the_timestamps(by_header: bool) -> None:
    records = [Record(i, 1_000 - i, b"%d" % i, b"", headers=headers) for i, (headers, _) in enumerate(HEADERS)]
    raw = np.frombuffer(bytearray(Batch(records).encode()), np.uint8)
    rows = scan_batches(raw, 0, check_crc=True).rows
    spans = np.array([[61, len(raw), 0]], np.int64)
    entries, lookups = (np.empty((32, ENTRY_WORDS), np.uint64) for _ in range(2))
    actions, secret = np.full(1, MAP, np.uint8), HashSecret(1, 2).state()
    arrays = raw, np.empty(0, np.uint8), rows, spans, actions, 3, 0
    _, n, m, error = scan_records(*arrays, entries, lookups, np.zeros(1, np.int32), np.zeros(3, np.int64), secret)
    assert (n, m, error) == (len(HEADERS) - 3, 3, 0)
    ranked, looked_up = np.empty((n, RANKED_WORDS), np.uint64), np.empty((m, RANKED_WORDS), np.uint64)
    name = Ranking(b"v").name()
    missing = rank_records(*arrays, by_header, name, entries[:n], lookups[:m], ranked, looked_up)
    expected = [rank for _, rank in HEADERS] if by_header else [1_000 - i for i in range(len(HEADERS))]
    found = np.concatenate([looked_up, ranked])
    has_rank = (found[:, 2] & np.uint64(RANKED)) != 0
    ranks = [int(rank) - 2**63 if has else None for has, rank in zip(has_rank, found[:, 3], strict=True)]
    assert ranks == expected
    assert (found[:, :2] == np.concatenate([lookups[:m, :2], entries[:n, :2]])).all()
    assert missing == sum(rank is None for rank in expected[3:])
