"""Valid bytes of every file other than a segment's log, by the name of its reader in ``targets``."""

from __future__ import annotations

import json

import numpy as np

from compaction.formats import indexes
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot

_OFFSETS = np.array([(5 + 3 * i, 100 * i) for i in range(1, 6)], indexes.OFFSET_ROW)
_TIMES = np.array([(1000 * i, 5 + 3 * i) for i in range(1, 6)], indexes.TIME_ROW)
_TXNS = np.array([(7, 10 + i, 20 + i, 21 + i) for i in range(3)], indexes.TXN_ROW)

VALID: dict[str, bytes] = {
    "offset checkpoint": b"0\n3\norders 0 17\norders 1 0\n__consumer_offsets 49 9223372036854775807\n",
    "leader epochs": b"0\n2\n0 0\n7 1234\n",
    "partition metadata": b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
    "properties": b"# comment\nlog.retention.hours=168\nlog.dirs=/a,\\\n  /b\nx\\u0041 : y\n",
    "meta properties": b"#\nversion=1\ncluster.id=abc\nnode.id=3\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n",
    "snapshot": write_snapshot([ProducerEntry(i, 0, 5, 17, 2, 1000, 0, -1) for i in range(3)]),
    "offset index": indexes.write_offset_index(_OFFSETS, 5),
    "offset index check": indexes.write_offset_index(_OFFSETS, 5),
    "time index check": indexes.write_time_index(_TIMES, 5),
    "time index": indexes.write_time_index(_TIMES, 5),
    "txn index": indexes.write_txn_index(_TXNS),
    "metadata record": bytes((1, 4, 0, 2, 3, 0x6F, 0x72, 3, 0x61, 0x62, 3, 0x63, 0x64, 0)),
    "journal": json.dumps(
        {
            "version": 1,
            "groups": [
                {
                    "base_offset": 0,
                    "size_bytes": 100,
                    "kinds": [".log", ".index", ".timeindex"],
                    "sources": [{"base_offset": 0, "size_bytes": 200, "mtime_ns": 5}],
                }
            ],
            "previous_checkpoint": None,
            "end_offset": 40,
        }
    ).encode(),
}
