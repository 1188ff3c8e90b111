"""Random logs; what a consumer is served of a log at rest, read batch by batch without kernels; rows in the same form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

from compaction.names import parse_partition_dir
from compaction.source.data_source import KafkaLogReader, KafkaLogSource
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.random_logs import Flavour, RandomLog, random_log

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Served(NamedTuple):
    """A record as a consumer sees it; ``timestamp_type`` as Kafka numbers it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def serve(log: Path, *, end_offset: int | None = None, committed: bool = False, control: bool = False) -> Iterator[Served]:
    """The records of a partition directory up to ``end_offset``, aborted data left out where ``committed``."""
    name = parse_partition_dir(log.name)
    assert name is not None
    segments = read_partition(log)
    aborted = sorted((txn.first_offset, txn.producer_id) for segment in segments for txn in segment.aborted_txns)
    producers: set[int] = set()
    for batch in (batch for segment in segments for batch in segment.batches):
        while aborted and aborted[0][0] <= batch.last_offset:
            producers.add(aborted.pop(0)[1])
        if batch.control:
            if batch.count and batch.control_type() == 0:
                producers.discard(batch.producer_id)
            if not control:
                continue
        elif committed and batch.transactional and batch.producer_id in producers:
            continue
        for record in batch.records():
            if end_offset is None or record.offset < end_offset:
                headers = tuple((key.decode(), value) for key, value in record.headers)
                kind = -1 if batch.magic == 0 else int(batch.log_append_time)
                yield Served(*name, record.offset, record.timestamp, kind, record.key, record.value, headers)


def read_rows(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """All rows that the data source gives, without a Spark session: planned and read as Spark would have it."""
    reader = reader_of(path, **options)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def read_served(path: Path | str, **options: str) -> list[Served]:
    """The same as a consumer sees them."""
    return [served(row) for row in read_rows(path, **options)]


def reader_of(path: Path | str, **options: str) -> KafkaLogReader:
    given = {"path": str(path), **{name.replace("_", "."): value for name, value in options.items()}}
    schema = KafkaLogSource(given).schema()
    assert isinstance(schema, StructType)
    return KafkaLogReader(given, schema)


def served(row: Mapping[str, Any]) -> Served:
    """A row of the data source."""
    since = row["timestamp"] - EPOCH if row["timestamp"].tzinfo else row["timestamp"] - EPOCH.replace(tzinfo=None)
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    assert row["headers"] is None or headers
    timestamp_ms = since // timedelta(milliseconds=1)
    place = row["topic"], row["partition"], row["offset"]
    return Served(*place, timestamp_ms, row["timestampType"], row["key"], row["value"], headers)


FLAVOURS = {
    "plain": Flavour(batches=80),
    "message sets": Flavour(magics=(0, 1, 2)),
    "gzip": Flavour(codecs=(1,), magics=(0, 1, 2)),
    "snappy": Flavour(codecs=(2,), magics=(0, 1, 2)),
    "lz4": Flavour(codecs=(3,), magics=(0, 1, 2)),
    "zstd": Flavour(codecs=(0, 4), magics=(1, 2)),
}


def write_random(log_dir: Path, flavour: str, seed: int) -> tuple[Path, RandomLog]:
    made = random_log(seed, FLAVOURS[flavour])
    path = log_dir / "random-0"
    write_partition(path, made.segments)
    write_producers(path, made.segments[-1].next_offset, made.producers)
    return path, made
