"""The previous copy of an incremental one (``--since``): the files that are taken from it in place of the source's.

Rule for each log. Let S be the segments of the source, and R those that the previous copy recorded of it (``SourceLog``).

1. The first segments of R may be missing in S: the log start has moved. The others are the first segments of S, unchanged. Only
   the last segment of R, which was active, may have grown. Both logs have the same topic id.
2. Then the log is read as the files of the previous copy below the base offset of the last segment of R, and the files of the
   source from there on. If the last segment of R is unchanged, its ``.log`` is that of the previous copy. Its other files are
   the source's, as a broker completes the indexes of a segment when it closes or rolls it.
3. The cleaner checkpoint is that of the previous copy. The log start is the highest of both.

A run therefore cleans the log as Kafka's cleaner does in its next round, and a log without new segments is not cleaned. Any
other log is read from its source alone. So is one

* that the previous copy has cleaned past the last segment of R (``--include-active``), unless nothing is new;
* of which the previous copy has records below the first segment of S: the broker has deleted them, and they do not come back;
* of which this copy would keep other records than the previous one did, by its settings, rules and options (``rules_of``), or
  because its time is before that of the previous copy;
* whose files in the previous copy are not those that were written.

Before anything reads a file that is taken over, its content is compared with the recorded hash, in a store by its ETag. Files
of a disk must then keep their identity until the log is in the new copy; an object is only read with its ETag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise, zip_longest
from typing import NamedTuple

from compaction.config.entries import LONG_MAX
from compaction.config.request import CompactionRequest
from compaction.errors import CorruptLogError, LogError, StorageError, UsageError
from compaction.files.contents import digest_of
from compaction.files.filesystem import DISK, OBJECTS, FileStat, FileSystem, base_name, join, parent, storage_of
from compaction.files.manifest import Entry, Folder, Scalar, SourceLog, SourceSegment
from compaction.files.object_store import ObjectFile
from compaction.files.overlay import Splice
from compaction.files.segment_file import SegmentFile
from compaction.formats.checkpoints import parse_offset_checkpoint
from compaction.log.checkpoint_store import Offsets, read_offsets
from compaction.log.read_log import identity_of, segment_bases
from compaction.log.settings import Settings, stored_topic_id
from compaction.names import CLEANER_OFFSETS, LOG, LOG_STARTS, SWAP, LogLocation, parse_segment_file, segment_file
from compaction.output.finished import files_below, find_manifest, layout, problem_of
from compaction.output.journal import JOURNAL
from compaction.output.segment_files import is_unfinished

_THREADS = 16
#: the command whose copies have all records that the next copy needs
_COMMAND = "compact"
_AS_OF = "as_of_ms"
#: settings that shape files, and decide about no record
_WITHOUT_RECORDS = {"segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes", "file_delete_delay_ms"}


def rules_of(settings: Settings, request: CompactionRequest) -> dict[str, Scalar]:
    """By name, what decides which records of a log a copy has besides its source and its time: the settings in effect, the
    rules of its version of Kafka, and options."""
    topic = settings.topic
    names = [field.name for field in fields(topic) if field.compare and field.name not in _WITHOUT_RECORDS]
    return {
        **{name.replace("_", "."): getattr(topic, name) for name in names},
        **settings.kafka.rules.described(),
        "producer.id.expiration.ms": settings.broker.producer_id_expiration_ms,
        "--include-active": request.include_active,
        "--allow-keyless": request.allow_keyless,
    }


def _require_same_rules(recorded: Mapping[str, Scalar] | None, now: Mapping[str, Scalar] | None) -> None:
    """:raises NotContinuedError: a copy with the rules of ``now`` would keep other records"""
    if recorded is None or now is None:
        raise NotContinuedError("the previous copy does not record the settings that it was made with")
    names = sorted(name for name in recorded.keys() | now.keys() if recorded.get(name) != now.get(name))
    if names:
        changes = (f"{name} is {now.get(name)}, it was {recorded.get(name)}" for name in names)
        raise NotContinuedError(f"this copy would keep other records than the previous one: {', '.join(changes)}")


def identify(files: FileSystem, logs: Sequence[LogLocation]) -> dict[LogLocation, SourceLog]:
    """The identities of the segments of logs, before they are read. A log has none if it cannot be listed, if its segments were
    being replaced, and in a store without ETags."""
    with ThreadPoolExecutor(_THREADS) as pool:
        call = pool.map if any(storage_of(log.path).round_trips for log in logs) else map
        return dict(zip(logs, call(lambda log: _identity(files, log), logs), strict=True))


def _identity(files: FileSystem, log: LogLocation) -> SourceLog:
    try:
        replacing = any(is_unfinished(name) or name == JOURNAL or name.endswith(SWAP) for name in files.listdir(log.path))
        bases = [] if replacing else segment_bases(files, log.path)
        segments = [_segment(files, join(log.path, segment_file(base, LOG)), base) for base in bases]
        topic_id = stored_topic_id(files, log)
    except LogError:
        # reported when the log is read
        return SourceLog(None, ())
    identified = tuple(segment for segment in segments if segment is not None)
    return SourceLog(topic_id, identified if len(identified) == len(segments) else ())


def _segment(files: FileSystem, path: str, base_offset: int) -> SourceSegment | None:
    stat, storage = files.stat(path), storage_of(path)
    if stat is None:
        return None
    if storage is DISK:
        return SourceSegment(base_offset, stat.size, stat.mtime_ns, stat.inode, stat.ctime_ns)
    etag = None
    if storage is OBJECTS:
        with closing(ObjectFile(path)) as file:
            etag = file.etag()
    return None if etag is None else SourceSegment(base_offset, stat.size, etag=etag)


class NotContinuedError(Exception):
    """A log does not continue the previous copy; the message says why."""


class Continuation(NamedTuple):
    """How a log continues the previous copy: the files taken from it, by path and as they were when their content was compared,
    ``size_bytes`` of them segments; whether the source has ``grown``; its entry in the cleaner checkpoint (``None``: no entry);
    its log start (``None``: as in the source)."""

    splice: Splice
    files: Mapping[str, FileStat]
    size_bytes: int
    grown: bool
    cleaned_to: int | None
    log_start: int | None


class PreviousCopy:
    """A finished output of ``compact``, which is only read.

    :param request: of the next copy
    :param files: reads both
    :ivar roots: by log directory of the source, the directory of its logs in the copy
    :raises UsageError: there is no such output, or not one that can be continued
    """

    def __init__(self, path: str, request: CompactionRequest, files: FileSystem) -> None:
        try:
            manifest = find_manifest(path, "--since", "make the first copy with --if-done, or with --replace")
        except LogError as error:
            raise UsageError(error.message, path=error.path, hint=error.hint) from error
        if manifest.sources is None or manifest.request is None:
            message, hint = "--since: this output does not record what was copied", "make a first copy without --since"
            raise UsageError(message, path=path, hint=hint)
        command = manifest.request.get("command")
        if command != _COMMAND:
            message = f"--since: this is an output of {command}, which lacks records that the source has"
            raise UsageError(message, path=path, hint=f"name an output of {_COMMAND}")
        self._path, self._manifest, self._now_ms, self._files = path, manifest, request.as_of_ms, files
        self.roots = layout(path, request.log_dirs)
        #: of a checkpoint of this copy, by path
        self._offsets = cache(self._read_offsets)

    def require_same(self) -> None:
        """:raises StorageError: another run has replaced this output"""
        if find_manifest(self._path, "--since", "run again") != self._manifest:
            hint = "let no run write there meanwhile, and run again; nothing has appeared"
            raise StorageError("the previous copy was replaced during this run", path=self._path, hint=hint)

    def entry(self, path: str) -> Entry | None:
        """The manifest entry of a file of this copy; ``None`` for any other file."""
        if not path.startswith(f"{self._path}/"):
            return None
        return self._folder(parent(path)).files.get(base_name(path))

    def _folder(self, path: str) -> Folder:
        return self._manifest.folders.get(path[len(self._path) + 1 :]) or Folder({}, set())

    def continuation(self, log: LogLocation, source: SourceLog) -> Continuation:
        """:raises NotContinuedError: the log must be read from its source alone"""
        directory = join(self.roots[log.log_dir], base_name(log.path))
        recorded = (self._manifest.sources or {}).get(directory[len(self._path) + 1 :])
        if recorded is None:
            raise NotContinuedError("the previous copy does not have this log")
        time_ms = (self._manifest.request or {}).get(_AS_OF)
        if isinstance(time_ms, int) and time_ms > self._now_ms:
            raise NotContinuedError(f"the previous copy is of a later time, {time_ms} ms since the epoch")
        _require_same_rules(recorded.rules, source.rules)
        try:
            last, unchanged, grown = common_segments(recorded, source)
            cleaned_to, start = (self._offset(log, name) for name in (CLEANER_OFFSETS, LOG_STARTS))
            own_start = read_offsets(self._files, log.log_dir, LOG_STARTS).get(log.topic_partition, 0)
            end = last
            if cleaned_to is not None and cleaned_to > last:
                if grown:
                    raise NotContinuedError("the previous copy has cleaned its last segment (--include-active)")
                end = LONG_MAX
            log_start = max(start or 0, own_start, source.segments[0].base_offset)
            has_last = unchanged and segment_file(last, LOG) in self._folder(directory).files
            splice = Splice(directory, self._first(directory, end, log_start), end, has_last)
            taken = self._require_as_written(splice)
            self._require_nothing_deleted(splice, source.segments[0].base_offset)
        except (LogError, OSError) as error:
            raise NotContinuedError(str(error)) from error
        moved = log_start > max(own_start, splice.first) or (start or 0) > own_start
        size_bytes = sum(stat.size for path, stat in taken.items() if path.endswith(LOG))
        return Continuation(splice, taken, size_bytes, grown, cleaned_to, log_start if moved else None)

    def require_unchanged(self, taken: Mapping[str, FileStat]) -> None:
        """:raises StorageError: a file was written or replaced since its content was compared"""
        for path, before in taken.items():
            now = self._files.stat(path)
            if now is None or identity_of(now) != identity_of(before):
                hint = "let nothing write there meanwhile"
                raise StorageError("file of the previous copy has changed during this run", path=path, hint=hint)

    def _offset(self, log: LogLocation, name: str) -> int | None:
        """The entry of a log in a checkpoint of this copy."""
        return self._offsets(join(self.roots[log.log_dir], name)).get(log.topic_partition)

    def _read_offsets(self, path: str) -> Offsets:
        entry = self.entry(path)
        if entry is None:
            return {}
        data = self._files.read_bytes(path)
        if digest_of(data).digest != entry.xxh3_128:
            raise CorruptLogError("the previous copy has changed since it was written", path=path)
        return parse_offset_checkpoint(data.decode(), path)

    def _first(self, directory: str, end: int, log_start: int) -> int:
        """The first segment below ``end`` that has an offset at or past the log start."""
        parsed = (parse_segment_file(name) for name in self._folder(directory).files)
        bases = sorted(file.base_offset for file in parsed if file is not None and file.kind == LOG and file.base_offset < end)
        return next((base for base, after in pairwise([*bases, end]) if after > log_start), end)

    def _require_as_written(self, splice: Splice) -> dict[str, FileStat]:
        """The files that a splice takes, by path.

        :raises NotContinuedError: a file of it is not as it was written
        """
        entries = {entry.path: entry for name, entry in self._folder(splice.directory).files.items() if splice.has(name)}
        below = files_below(self._files, splice.directory, f"{splice.directory[len(self._path) + 1 :]}/")
        found = {path: stat for path, stat in below.items() if splice.has(base_name(path))}
        problem = problem_of(self._files, self._path, replace(self._manifest, files=tuple(entries.values())), found)
        if problem is None:
            changed = (path for path, stat in found.items() if stat.mtime_ns // 1_000_000 != entries[path].mtime_ms)
            problem = next((f"{path} has another modification time" for path in changed), None)
        if problem is not None:
            raise NotContinuedError(f"the previous copy has changed since it was written: {problem}")
        return {join(self._path, path): stat for path, stat in found.items()}

    def _require_nothing_deleted(self, splice: Splice, source_start: int) -> None:
        """:raises NotContinuedError: the splice has a record below the first segment of the source"""
        if splice.first >= source_start:
            return
        path = join(splice.directory, segment_file(splice.first, LOG))
        size = self._folder(splice.directory).files[base_name(path)].size
        with SegmentFile(self._files, path).reader(0, size) as reader:
            for block in reader.blocks(check_crc=True):
                below = block.rows[block.rows["base_offset"] < source_start]
                if (below["count"] != 0).any():
                    message = f"the previous copy has records below the first segment of the source, {source_start}"
                    raise NotContinuedError(f"{message}, which was deleted from it")
                if len(below) < len(block.rows):
                    return


def common_segments(recorded: SourceLog, source: SourceLog) -> tuple[int, bool, bool]:
    """The base offset of the last segment that the previous copy recorded, whether that segment is unchanged, and whether the
    source has anything new.

    :raises NotContinuedError: the source has changed otherwise
    """
    if recorded.topic_id != source.topic_id:
        raise NotContinuedError(f"the topic was created again: its id is {source.topic_id}, it was {recorded.topic_id}")
    if not source.segments:
        raise NotContinuedError("its segments were being replaced, or the storage does not identify files")
    first = source.segments[0].base_offset
    remaining = [segment for segment in recorded.segments if segment.base_offset >= first]
    if not remaining:
        raise NotContinuedError("no segment of the previous copy remains in the source")
    last = remaining[-1]
    for before, now in zip_longest(remaining, source.segments[: len(remaining)]):
        if now is None or now.base_offset != before.base_offset:
            raise NotContinuedError(f"segment {before.base_offset} is missing in the source")
        if now.size < before.size:
            raise NotContinuedError(f"segment {before.base_offset} was truncated: {now.size} bytes, {before.size} before")
        if now != before and before is not last:
            raise NotContinuedError(f"segment {before.base_offset} has changed")
    unchanged = source.segments[len(remaining) - 1] == last
    return last.base_offset, unchanged, not unchanged or len(source.segments) > len(remaining)
