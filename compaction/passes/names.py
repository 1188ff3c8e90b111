"""Header names that are no UTF-8: Kafka keeps names as text, so a batch it writes anew has U+FFFD in place of malformed bytes.

Mirrors ``DefaultRecord.readHeaders`` and ``writeTo`` (Kafka 4.3.0): one U+FFFD for each maximal malformed run, as both Java's
decoder and Python's do. Batches that are copied as they are keep their bytes.
"""

from __future__ import annotations

from compaction.formats.record import Header, Record, RecordBase, decode_records, encode_records

_BASE = RecordBase(offset=0, timestamp=0)


def mend_names(records: memoryview, count: int) -> bytes:
    """The ``count`` records of a v2 batch, uncompressed, with header names as Kafka would write them."""
    return encode_records((_mended(record) for record in decode_records(records, count, _BASE)), _BASE)


def _mended(record: Record) -> Record:
    headers = (Header(_readable(name), value) for name, value in record.headers)
    return record._replace(headers=tuple(headers))


def _readable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
