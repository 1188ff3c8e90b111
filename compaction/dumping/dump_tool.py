"""Dumps files: text or JSON lines to one stream, findings and errors to another. (In JSON, findings are lines as well.)

Mirrors ``DumpLogSegments.main`` (Kafka 4.3.1). After an error in one file, Kafka's tool stops; this one continues with the next
file.

Finds offsets and timestamps in a segment by binary search in its indexes, as a broker does.

Mirrors ``LogSegment.translateOffset``, ``LogSegment.findOffsetByTimestamp`` and ``FileRecords.searchForTimestamp`` (Kafka
4.3.1). The offset index gives a batch at or before the offset, the time index an offset at or before the timestamp; the log is
scanned from there. If an index is missing or does not point at a matching batch, the log is scanned from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.dumping.batch_reader import RESTORE_HINT, BatchReader, LocatedBatch
from compaction.dumping.findings import Findings, PairSpool, Row
from compaction.dumping.index_dump import IndexView, dump_offset_index, dump_snapshot, dump_time_index, dump_txn_index
from compaction.dumping.segment_dump import JsonSegmentDump, SegmentDump, SegmentView
from compaction.dumping.targets import BOOTSTRAP_SNAPSHOT, METADATA_SNAPSHOT, Target, partition_files
from compaction.errors import CorruptLogError, LogError, UsageError
from compaction.files.filesystem import FileSystem
from compaction.files.segment_file import SegmentFile
from compaction.files.text_files import MAX_INDEX_BYTES, read_small
from compaction.formats.indexes import SEGMENT_INDEXES
from compaction.formats.message_set import MessageEntry, parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import MAGIC, MAX_PLAIN_BYTES, RecordBatch, parse_batch
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX
from compaction.printable import Output


class TimestampMatch(NamedTuple):
    """The first record at or after a timestamp: start position of the scan, position of its batch, its offset and timestamp."""

    start: int
    position: int
    offset: int
    timestamp: int


def start_position(fs: FileSystem, target: Target, offset: int) -> int:
    """The position at which a scan for ``offset`` starts: that of the last index entry at or below it, else 0."""
    base = target.base_offset or 0
    rows = _index(fs, target, INDEX, base)
    slot = int(np.searchsorted(rows["offset"], offset, "right")) - 1 if len(rows) else -1
    if slot < 0:
        return 0
    entry_offset, position = int(rows["offset"][slot]), int(rows["position"][slot])
    reader = BatchReader(fs, target.path)
    try:
        batch = reader.batch_at(position, reader.size)
    except CorruptLogError:
        return 0
    return position if batch is not None and batch.last_offset == entry_offset else 0


def find_timestamp(fs: FileSystem, target: Target, timestamp: int) -> TimestampMatch | None:
    """The first record at or after ``timestamp``; ``None`` if all are earlier.

    :raises CorruptLogError: a scanned batch cannot be read
    """
    rows = _index(fs, target, TIMEINDEX, target.base_offset or 0)
    slot = int(np.searchsorted(rows["timestamp"], timestamp, "right")) - 1 if len(rows) else -1
    start = start_position(fs, target, int(rows["offset"][slot])) if slot >= 0 else 0
    reader = BatchReader(fs, target.path)
    for batch in reader.batches(start, reader.size):
        if not 0 <= batch.magic <= MAGIC:
            raise reader.error("batch has an unknown magic", batch.position)
        if batch.header.max_timestamp >= timestamp:
            record = _first_record(reader, batch, timestamp)
            if record is not None:
                return TimestampMatch(start, batch.position, *record)
    return None


def may_hold(fs: FileSystem, target: Target, timestamp: int) -> bool:
    """Whether an inactive segment may have a record at or after ``timestamp``, by the last entry of its time index."""
    rows = _index(fs, target, TIMEINDEX, target.base_offset or 0)
    return not len(rows) or int(rows["timestamp"][-1]) >= timestamp


def segments_with(logs: Sequence[Target], first_offset: int, last_offset: int | None) -> list[Target]:
    """The segments that may have offsets from ``first_offset`` to ``last_offset`` (inclusive, ``None`` for no end).

    :param logs: segments of one log in ascending order
    """
    bases = np.array([log.base_offset or 0 for log in logs], np.int64)
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    end = len(logs) if last_offset is None else int(np.searchsorted(bases, last_offset, "right"))
    return list(logs[first : max(end, first)])


def _first_record(reader: BatchReader, batch: LocatedBatch, timestamp: int) -> tuple[int, int] | None:
    data = reader.data(batch)
    try:
        parsed: RecordBatch | MessageEntry = parse_batch(data) if batch.magic == MAGIC else parse_message_entry(data)
        for record in parsed.records(MAX_PLAIN_BYTES):
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
    except FormatError as error:
        raise reader.error(error.message, batch.position) from None
    return None


def _index(fs: FileSystem, target: Target, kind: str, base: int) -> NDArray[np.void]:
    """The valid entries of an index; empty if it is missing or too large."""
    path = target.sibling(kind)
    try:
        data = b"" if fs.stat(path) is None else read_small(fs, path, "remove it", MAX_INDEX_BYTES)
    except CorruptLogError:
        data = b""
    return SEGMENT_INDEXES[kind].read(data, base)


_NAMED_BY_OFFSET = (LOG, INDEX, TIMEINDEX, TXNINDEX)
_BUFFER_CHARACTERS = 1 << 20
_RENAME = "rename it back"


class Offsets(NamedTuple):
    """A range of offsets, both ends inclusive, ``None`` for no end."""

    first: int
    last: int | None


@dataclass(frozen=True)
class DumpRequest:
    """The files and how to dump them; at most one of ``offsets`` and ``timestamp`` is set."""

    files: tuple[str, ...]
    segment: SegmentView = field(default_factory=SegmentView)
    index: IndexView = field(default_factory=IndexView)
    offsets: Offsets | None = None
    timestamp: int | None = None
    jsonl: bool = False

    @property
    def looks_up(self) -> bool:
        """Whether to search logs for offsets or a timestamp."""
        return self.offsets is not None or self.timestamp is not None


class Dump:
    """Dumps the files of a request: text to ``out``, findings line by line to ``print_finding``, errors to ``print_error``."""

    def __init__(
        self,
        fs: FileSystem,
        request: DumpRequest,
        out: Output,
        print_finding: Callable[[str], None],
        print_error: Callable[[str], None],
    ) -> None:
        self._fs, self._request = fs, request
        self._out, self._print_finding, self._print_error = out, print_finding, print_error
        self._findings = Findings()
        self._line_open = False

    def run(self, working_dir: str) -> bool:
        """Dump all files; whether all could be read and are valid.

        :param working_dir: the directory of relative paths
        :raises UsageError: a file does not exist, or its name does not determine its kind
        """
        targets = self._targets(working_dir)
        valid = True
        for target in targets:
            self._row(target, Row("file", _file_fields(target), f"Dumping {target.shown}"))
            try:
                self._dump(target)
            except LogError as error:
                valid = False
                if self._line_open:
                    self._text("\n")
                self._print_error(error.describe())
        for path, row in self._findings.rows():
            if not self._request.jsonl:
                self._print_finding(row.text)
            elif row.type:
                self._text(f"{row.json(path)}\n")
        self._findings.close()
        for finding in self._findings.errors:
            self._print_error(finding.describe())
        return valid and not self._findings.errors

    def _targets(self, working_dir: str) -> list[Target]:
        targets = []
        for path in self._request.files:
            status = self._fs.stat(path)
            if status is None:
                raise UsageError("no such file or directory", path=path, hint="separate paths by spaces or commas")
            if status.is_dir:
                files = partition_files(self._fs, path)
                if not files:
                    raise UsageError("contains no segments", path=path, hint="give a partition directory")
                targets += self._narrow([Target.of(file, working_dir) for file in files])
            else:
                targets.append(Target.of(path, working_dir))
        for target in targets:
            self._check(target)
        return targets

    def _narrow(self, targets: list[Target]) -> list[Target]:
        """The files of a directory to which the options apply."""
        request = self._request
        if request.index.sanity_check or request.index.verify_only:
            return [target for target in targets if target.kind in (INDEX, TIMEINDEX)]
        if not request.looks_up:
            return targets
        logs = [target for target in targets if target.kind == LOG]
        if request.offsets is not None:
            return segments_with(logs, *request.offsets)
        # the segment with the first record at or after the timestamp, or the last segment
        timestamp = request.timestamp or 0
        for log in logs[:-1]:
            if may_hold(self._fs, log, timestamp) and find_timestamp(self._fs, log, timestamp) is not None:
                return [log]
        return logs[-1:]

    def _check(self, target: Target) -> None:
        if target.kind in _NAMED_BY_OFFSET and target.base_offset is None:
            raise UsageError("the name does not start with the segment's base offset", path=target.path, hint=_RENAME)
        if target.kind == METADATA_SNAPSHOT and target.name != BOOTSTRAP_SNAPSHOT and target.snapshot_id is None:
            raise UsageError("the name of a metadata snapshot is OFFSET-EPOCH.checkpoint", path=target.path, hint=_RENAME)
        if self._request.looks_up and target.kind != LOG:
            raise UsageError(
                f"--offsets and --timestamp require a log, not this {target.kind_name}",
                path=target.path, hint="give a .log file or a partition's directory",
            )  # fmt: skip

    def _dump(self, target: Target) -> None:
        kind, index, findings = target.kind, self._request.index, self._findings
        if kind in (LOG, METADATA_SNAPSHOT):
            self._log(target)
        elif kind == INDEX:
            self._rows(target, dump_offset_index(self._fs, target, index, findings))
        elif kind == TIMEINDEX:
            self._rows(target, dump_time_index(self._fs, target, index, findings))
        elif kind == TXNINDEX:
            self._rows(target, dump_txn_index(self._fs, target))
        elif kind == SNAPSHOT:
            self._rows(target, dump_snapshot(self._fs, target))
        else:
            self._print_finding(f"Ignoring unknown file {target.shown}")

    def _log(self, target: Target) -> None:
        self._row(target, _log_heading(target))
        view = self._view(target)
        if view is None:
            return
        gaps = self._findings.gaps.setdefault(target.absolute, PairSpool())
        args = self._fs, target.path, view, gaps.append
        dump = JsonSegmentDump(target.absolute, *args) if self._request.jsonl else SegmentDump(*args)
        try:
            self._texts(dump)
        finally:
            if dump.invalid:
                several = f"{dump.invalid} batches fail their CRC; this is the first"
                self._note_error(target, dump.first_invalid, several if dump.invalid > 1 else "1 batch fails its CRC")
        if view.complete and dump.position < dump.size:
            invalid = dump.size - dump.position
            text = f"Found {invalid} invalid bytes at the end of {target.name}"
            self._row(target, Row("invalidBytes", {"position": dump.position, "size": invalid}, text))
            # without valid batches after its start, the log has only a torn tail
            damage = SegmentFile(self._fs, target.path).scan(dump.position).finish().damage()
            if damage is not None:
                self._note_error(target, dump.position, damage)

    def _view(self, target: Target) -> SegmentView | None:
        """The selection from a log, ``None`` for nothing; prints the result of a lookup."""
        view, offsets = self._request.segment, self._request.offsets
        if offsets is not None:
            start = start_position(self._fs, target, offsets.first)
            last = "" if offsets.last is None else offsets.last
            text = f"Looking for offsets {offsets.first}:{last} from position: {start}"
            self._row(target, Row("lookup", {**offsets._asdict(), "position": start}, text))
            return replace(view, start=start, first_offset=offsets.first, last_offset=offsets.last)
        if self._request.timestamp is None:
            return view
        record = find_timestamp(self._fs, target, self._request.timestamp)
        self._row(target, _found_row(self._request.timestamp, record))
        if record is None:
            return None
        return replace(view, start=record.position, first_offset=record.offset, last_offset=record.offset)

    def _note_error(self, target: Target, position: int, message: str) -> None:
        self._findings.errors.append(CorruptLogError(message, path=target.path, position=position, hint=RESTORE_HINT))

    def _rows(self, target: Target, rows: Iterable[Row]) -> None:
        self._texts(self._line(target, row) for row in rows)

    def _row(self, target: Target, row: Row) -> None:
        self._text(self._line(target, row))

    def _line(self, target: Target, row: Row) -> str:
        """The line of a row; empty if it has none in this form."""
        if not self._request.jsonl:
            return f"{row.text}\n"
        return f"{row.json(target.absolute)}\n" if row.type else ""

    def _texts(self, texts: Iterable[str]) -> None:
        """Prints texts, also those before an error, a buffer at a time."""
        pending, size = [], 0
        try:
            for text in texts:
                pending.append(text)
                size += len(text)
                if size > _BUFFER_CHARACTERS:
                    self._text("".join(pending))
                    pending, size = [], 0
        finally:
            self._text("".join(pending))

    def _text(self, text: str) -> None:
        if text:
            try:
                # with the original bytes of file names
                data = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                # lone surrogates, which properties files may have, as Java prints them
                data = text.encode("utf-8", "replace")
            self._out.write(data)
            self._line_open = not text.endswith("\n")


def _file_fields(target: Target) -> dict[str, object]:
    fields: dict[str, object] = {"kind": target.kind_name}
    if target.kind == METADATA_SNAPSHOT:
        offset, epoch = target.snapshot_id or (None, None)
        return fields | {"endOffset": offset, "epoch": epoch}
    return fields | {"baseOffset": target.base_offset}


def _log_heading(target: Target) -> Row:
    """The heading of a log in text; JSON has these fields in the line of the file."""
    if target.kind == LOG:
        text = f"Log starting offset: {target.base_offset}"
    elif target.snapshot_id is None:
        text = "KRaft bootstrap snapshot"
    else:
        text = "Snapshot end offset: {}, epoch: {}".format(*target.snapshot_id)
    return Row("", {}, text)


def _found_row(timestamp: int, record: TimestampMatch | None) -> Row:
    """The result of a lookup of a timestamp."""
    if record is None:
        return Row("lookup", {"since": timestamp, "offset": None}, f"No record at or after timestamp {timestamp}")
    text = (
        f"First record at or after timestamp {timestamp}: offset: {record.offset} timestamp: {record.timestamp}"
        f" position: {record.position} (searched from position: {record.start})"
    )
    return Row("lookup", {"since": timestamp, "offset": record.offset, "timestamp": record.timestamp,
                          "position": record.position}, text)  # fmt: skip
