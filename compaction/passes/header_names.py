"""Repairs header names with malformed UTF-8: Kafka decodes names to text, so it rewrites a batch with U+FFFD in their place.

Mirrors ``DefaultRecord.readHeaders`` and ``writeTo`` (Kafka 4.4.0). As in Java's decoder, each maximal malformed run becomes
one U+FFFD. Python's decoder agrees, except that Java replaces a surrogate, complete or without its last byte, as one run.
Batches that are copied unchanged keep their bytes.
"""

from __future__ import annotations

import re

from compaction.formats.record_batch.record import Header, Record, RecordBase, decode_records, encode_records

_BASE = RecordBase(offset=0, timestamp=0)
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def repair_header_names(records: memoryview, count: int) -> bytes:
    """The ``count`` records of a v2 batch, uncompressed, with header names as Kafka would write them."""
    return encode_records((_repaired(record) for record in decode_records(records, count, _BASE)), _BASE)


def _repaired(record: Record) -> Record:
    headers = (Header(_repaired_name(name), value) for name, value in record.headers)
    return record._replace(headers=tuple(headers))


def _repaired_name(name: str) -> str:
    return _SURROGATE.sub(_REPLACEMENT, name.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")
