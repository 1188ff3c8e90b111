"""The array layouts that kernels take and give: one row a batch, one row a map entry."""

from __future__ import annotations

import numpy as np

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
    ]
)

NOT_CONTROL = -1
EMPTY_CONTROL = -2
ABORT = 0
COMMIT = 1
