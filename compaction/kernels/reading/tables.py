"""The array layouts that kernels take and give: one row a batch, one row a map entry."""

from __future__ import annotations

import numpy as np

# rows are ``np.record``: kernels find fields as attributes without the compiler too, all but ``size``, which arrays have

#: One row per record batch (or legacy message / wrapper) found in a segment. Native byte order.
#:
#: ``position``       byte position of the batch in its segment
#: ``size``           whole size in bytes, the 12 bytes of offset and length included
#: ``base_offset``    first offset (legacy: the wrapper's own offset, see ``last_offset``)
#: ``last_offset``    base offset + last offset delta (legacy: the offset field, which is the last inner record's)
#: ``base_timestamp`` as stored; a delete horizon when attribute bit 6 is set (legacy: -1)
#: ``max_timestamp``  as stored (magic 0: -1; magic 1: the timestamp field)
#: ``count``          records declared (legacy: -1, not known without decoding)
#: ``attributes``     as stored
#: ``magic``          0, 1 or 2
#: ``control_type``   ``NOT_CONTROL``, ``EMPTY_CONTROL`` (a control batch without records), else the type of its first record's
#:                    key: 0 abort, 1 commit, others as they are
BATCH_ROW = np.dtype(
    (
        np.record,
        [
            ("position", np.int64),
            ("base_offset", np.int64),
            ("last_offset", np.int64),
            ("base_timestamp", np.int64),
            ("max_timestamp", np.int64),
            ("producer_id", np.int64),
            ("size", np.int32),
            ("count", np.int32),
            ("base_sequence", np.int32),
            ("leader_epoch", np.int32),
            ("attributes", np.int16),
            ("producer_epoch", np.int16),
            ("control_type", np.int16),
            ("magic", np.int8),
        ],
    )
)

NOT_CONTROL = -1
EMPTY_CONTROL = -2
ABORT = 0
COMMIT = 1

#: A map entry is three uint64: the two halves of the key's hash (low, high; see ``siphash``) and a *mark*:
#: ``(offset + 1) << 2 | flags``. A mark is never 0, so that a slot whose mark is 0 is empty. Marks sort as their offsets do.
ENTRY_WORDS = 3
ENTRY_BYTES = 24
TOMBSTONE = 1
#: in an entry: not part of the map, only asks whether the map holds a higher offset; in a survivor list: this record goes
CANDIDATE = 2
OFFSET_SHIFT = 2
#: the highest offset that a mark can hold
MAX_OFFSET = (1 << 61) - 2

#: Bits of a batch's verdict (``compaction.cleaning.record_retention.BatchVerdict``): its records are discarded (aborted
#: data, or a marker past its delete horizon) …
DISCARD = 1
#: … its header stays even when no record does …
RETAIN_EMPTY = 2
#: … it is a marker of a transaction of which nothing is left, so that keeping it sets its delete horizon
MARKER_OF_EMPTY_TXN = 16

#: What ``decide`` says of a batch: it goes; it is copied as it is; only its header stays; its records must be walked
DROP, COPY, EMPTY, REWRITE = range(4)

#: One row per batch of the output. ``source``: where its bytes are: in the segment's block, finished in the rewrite buffer,
#: or in the
#: rewrite buffer with records still to be compressed.
OUT_ROW = np.dtype(
    (
        np.record,
        [
            ("start", np.int64),
            ("last_offset", np.int64),
            ("max_timestamp", np.int64),
            ("size", np.int32),
            ("source", np.int32),
        ],
    )
)
IN_BLOCK, BUILT, TO_COMPRESS = range(3)
