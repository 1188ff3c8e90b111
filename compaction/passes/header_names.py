"""Header names that are no UTF-8: Kafka keeps names as text, so a batch it writes anew has U+FFFD in place of malformed bytes.

Mirrors ``DefaultRecord.readHeaders`` and ``writeTo`` (Kafka 4.3.0). As Java's decoder does, each maximal malformed run becomes
one U+FFFD, as in Python, but a surrogate, whole or without its last byte, is one such run. Batches that are copied as they are
keep their bytes.
"""

from __future__ import annotations

import re

from compaction.formats.record_batch.record import Header, Record, RecordBase, decode_records, encode_records

_BASE = RecordBase(offset=0, timestamp=0)
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def repair_header_names(records: memoryview, count: int) -> bytes:
    """The ``count`` records of a v2 batch, uncompressed, with header names as Kafka would write them."""
    return encode_records((_mended(record) for record in decode_records(records, count, _BASE)), _BASE)


def _mended(record: Record) -> Record:
    headers = (Header(_readable(name), value) for name, value in record.headers)
    return record._replace(headers=tuple(headers))


def _readable(name: str) -> str:
    return _SURROGATE.sub(_REPLACEMENT, name.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")
