"""Array layouts shared by the kernels: rows of batches, map entries, survivor entries, and rows of output batches."""

from __future__ import annotations

import numpy as np


def row_type(**names: str) -> np.dtype[np.void]:
    """A packed row: the names of its fields by their type, in order.

    Rows are ``np.record``, so that attribute access also works with numba disabled; ``size`` would be the array's attribute.
    """
    return np.dtype((np.record, [(name, kind) for kind in names for name in names[kind].split()]))


#: One row per record batch (or v0/v1 message or wrapper) found in a segment. Native byte order.
#:
#: ``position``       byte position of the batch in its segment
#: ``size``           size in bytes, including the 12 bytes of offset and length
#: ``base_offset``    first offset (v0/v1: the wrapper's own offset, see ``last_offset``)
#: ``last_offset``    base offset + last offset delta (v0/v1: the offset field, which is the last inner record's)
#: ``base_timestamp`` as stored; a delete horizon when attribute bit 6 is set (v0/v1: -1)
#: ``max_timestamp``  as stored (magic 0: -1; magic 1: the timestamp field)
#: ``count``          declared records (v0/v1: -1, unknown until decoded)
#: ``attributes``     as stored
#: ``magic``          0, 1 or 2
#: ``control_type``   ``NOT_CONTROL``, ``EMPTY_CONTROL`` (a control batch without records), or the type in its first record's
#: key
BATCH_ROW = row_type(
    int64="position base_offset last_offset base_timestamp max_timestamp producer_id",
    int32="size count base_sequence leader_epoch",
    int16="attributes producer_epoch control_type",
    int8="magic",
)

NOT_CONTROL = -1
EMPTY_CONTROL = -2
ABORT = 0
COMMIT = 1

#: A *map entry* or *lookup* is three uint64: the low and high half of the key's hash (see ``siphash``) and an *offset word*,
#: ``(offset + 1) << 2 | flags``. An offset word is never 0, so a slot whose third word is 0 is empty. Offset words sort by
#: offset. A *survivor entry*, by which pass 1 informs pass 2 of one record, is an offset word only.
ENTRY_WORDS = 3
ENTRY_BYTES = 24
OFFSET_SHIFT = 2
#: the highest offset that fits an offset word
MAX_OFFSET = (1 << 61) - 2
#: Flags of an offset word. ``TOMBSTONE``: the record's value is null. Bit 1 has two meanings. In pass 1 it is ``LOOKUP``: the
#: record does not enter the map; the merge looks its key up. In survivor entries of the clean section it is ``DROPPED``: the
#: record is superseded, or has no key.
TOMBSTONE = 1
LOOKUP = 2
DROPPED = 2

#: Bits of a batch's verdict (``compaction.rules.record_retention``). ``DISCARD``: all of its records are
#: dropped (aborted data, or a marker past its delete horizon). ``RETAIN_EMPTY``: its header is retained even without records.
#: ``MARKER_OF_EMPTY_TXN``: it is a marker of a transaction without remaining data, so retaining it sets its delete horizon.
DISCARD = 1
RETAIN_EMPTY = 2
MARKER_OF_EMPTY_TXN = 16

#: The actions that ``decide`` chooses for a batch: drop it, copy it unchanged, retain only its header, or examine its records
DROP, COPY, EMPTY, REWRITE = range(4)

#: One row per batch of the output. ``source`` says where its bytes are: unchanged in the segment's block (``IN_BLOCK``),
#: complete in the rewrite buffer (``BUILT``), in the rewrite buffer with records yet to be compressed (``TO_COMPRESS``), or yet
#: to be built, as a wrapper of magic 0 or 1 (``WRAPPER``; ``start`` is then the number of its messages).
OUT_ROW = row_type(int64="start last_offset max_timestamp", int32="size source")
IN_BLOCK, BUILT, TO_COMPRESS, WRAPPER = range(4)

#: Attribute bit of a decoded wrapper (v0/v1) that has inner messages of another magic (KAFKA-4298); no such bit is stored.
OTHER_MAGIC_BIT = 0x100
