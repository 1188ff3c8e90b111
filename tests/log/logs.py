"""Small logs for tests: segments of one-record batches, their indexes, and the records that a consumer gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from compaction.files.contents import FileDigest, digest_of
from compaction.files.filesystem import FileSystem, join
from compaction.formats.message_set import HEADER_V0, MessageEntry, parse_message_entry
from compaction.formats.primitives import Buffer
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from compaction.formats.record_batch import HEADER, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch, parse_batch
from compaction.log.read_log import segment_bases
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX, LogLocation, TopicPartition, segment_file
from compaction.rules.log_view import AbortedTxn
from tests.kafka import encode
from tests.kafka.encode import ABORT, COMMIT, Batch, Producer, Record
from tests.oracle.records import decode
from tests.oracle.segments import write_segment

TOPIC = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


def location(log_dir: str) -> LogLocation:
    return LogLocation(TOPIC, log_dir, join(log_dir, str(TOPIC)))


def data_batch(offset: int, *, timestamp: int | None = None, **header: Any) -> bytes:
    """One batch with one record; its key and value name its offset. ``header``: fields of ``Batch``."""
    stamp = NOW_MS + offset if timestamp is None else timestamp
    return Batch([Record(offset, stamp, b"key-%d" % offset, b"value-%d" % offset)], **header).encode()


def txn_batch(offset: int, producer_id: int, *, epoch: int = 0, sequence: int = 0, timestamp: int | None = None) -> bytes:
    producer = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return data_batch(offset, timestamp=timestamp, transactional=True, **producer)


def idempotent_batch(offset: int, producer_id: int, *, epoch: int = 0, sequence: int = 0) -> bytes:
    return data_batch(offset, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 3) -> bytes:
    producer = Producer(producer_id, epoch)
    return encode.marker(offset, NOW_MS + offset, producer, COMMIT if commit else ABORT, coordinator_epoch)


@dataclass(frozen=True)
class Built:
    """The files of one segment, by kind."""

    base_offset: int
    files: dict[str, bytes] = field(default_factory=dict)

    def put(self, fs: FileSystem, path: str, suffix: str = "") -> tuple[FileDigest, ...]:
        """Write the files; what they hold, the log first."""
        written = []
        for kind, data in self.files.items():
            name = join(path, segment_file(self.base_offset, kind, suffix))
            if fs.stat(name) is not None:
                fs.unlink(name)
            fs.write_file(name, data)
            fs.fsync(name)
            found = fs.stat(name)
            assert found is not None
            written.append(digest_of(data)._replace(kind=kind, mtime_ns=found.mtime_ns))
        return tuple(written)


def build(base_offset: int, batches: Iterable[bytes], *, txns: Sequence[AbortedTxn] = (), interval: int = 4096) -> Built:
    """An inactive segment: its log and the indexes that a broker would write."""
    log = b"".join(batches)
    written = write_segment(base_offset, (batch.raw for batch in decode(log)), interval, 0, txns)
    files = {LOG: log, INDEX: written.index, TIMEINDEX: written.time_index}
    if txns:
        files[TXNINDEX] = written.txn_index
    return Built(base_offset, files)


def data_segment(base_offset: int, offsets: Iterable[int], *, interval: int = 4096) -> Built:
    return build(base_offset, [data_batch(offset) for offset in offsets], interval=interval)


def put_snapshot(fs: FileSystem, path: str, offset: int, entries: Sequence[ProducerEntry] = ()) -> None:
    name = join(path, segment_file(offset, SNAPSHOT))
    fs.write_file(name, write_snapshot(entries))
    fs.fsync(name)


def iter_batches(data: Buffer, *, torn_tail: bool = False) -> Iterator[RecordBatch | MessageEntry]:
    """The batches of a segment; ``FormatError`` if one is damaged.

    :param torn_tail: the last one may be incomplete
    """
    position = 0
    while position < len(data):
        left = len(data) - position
        if torn_tail and (left < HEADER_V0.size or HEADER.get(data, "length", position) > left - LOG_OVERHEAD_BYTES):
            return
        is_v2 = HEADER.get(data, "magic", position) == MAGIC
        batch = parse_batch(data, position) if is_v2 else parse_message_entry(data, position)
        yield batch
        position += batch.size


def served(fs: FileSystem, path: str) -> dict[int, bytes | None]:
    """Offset -> value of every record that a consumer reading from the start gets."""
    found: dict[int, bytes | None] = {}
    bases = segment_bases(fs, path)
    for index, base in enumerate(bases):
        end = bases[index + 1] if index + 1 < len(bases) else 2**63
        data = fs.read_bytes(join(path, segment_file(base, LOG)))
        for batch in iter_batches(data, torn_tail=True):
            for record in batch.records():
                if record.offset < end:
                    found[record.offset] = record.value
    return found


def tree(fs: FileSystem, path: str, *, ignore: Sequence[str] = ()) -> dict[str, bytes]:
    """File name -> bytes of a directory's files, those that end with one of ``ignore`` left out."""
    names = [name for name in fs.listdir(path) if not name.endswith(tuple(ignore)) or not ignore]
    return {name: fs.read_bytes(join(path, name)) for name in names if (found := fs.stat(join(path, name))) and found.is_file}
