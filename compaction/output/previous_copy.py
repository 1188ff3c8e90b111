"""The previous copy of an incremental one (``--since``): the files that are taken from it in place of the source's.

Rule for each log. Let S be the segments of the source, and R those that the previous copy recorded of it (``SourceLog``).

1. The first segments of R may be missing in S: the log start has moved. The others are the first segments of S, unchanged. Only
   the last segment of R, which was active, may have grown. Both logs have the same topic id.
2. Then the log is read as the files of the previous copy below the base offset of the last segment of R, and the files of the
   source from there on. If the last segment of R is unchanged, its ``.log`` is that of the previous copy. Its other files are
   the source's, as a broker completes the indexes of a segment when it closes or rolls it.
3. The cleaner checkpoint is that of the previous copy. The log start is the highest of both.

A run therefore cleans the log as Kafka's cleaner does in its next round, and a log without new segments is not cleaned. Any
other log is read from its source alone. So is one that the previous copy has cleaned past the last segment of R
(``--include-active``), unless nothing is new. So is one whose files in the previous copy are not those that were written, by
size and modification time.

Files of the previous copy that are copied must have the recorded content, unless their bytes do not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise, zip_longest
from typing import NamedTuple

from compaction.errors import CorruptLogError, LogError, StorageError, UsageError
from compaction.formats.checkpoints import parse_offset_checkpoint
from compaction.logdir.checkpoint_store import Offsets, read_offsets
from compaction.logdir.segments import LONG_MAX, segment_bases
from compaction.logdir.settings.log_settings import stored_topic_id
from compaction.names import CLEANER_OFFSETS, LOG, LOG_STARTS, SWAP, LogLocation, parse_segment_file, segment_file
from compaction.output.finished import files_below, find_manifest
from compaction.output.journal import JOURNAL
from compaction.output.segment_files import is_unfinished
from compaction.output.target import layout
from compaction.storage.contents import digest_of
from compaction.storage.filesystem import FileStat, FileSystem, base_name, join, parent
from compaction.storage.kinds import DISK, OBJECTS, storage_of
from compaction.storage.manifest import Entry, Folder, Manifest, SourceLog, SourceSegment
from compaction.storage.spliced import Splice
from compaction.storage.streams import ObjectFile

_THREADS = 16
#: the command whose copies have all records that the next copy needs
_COMMAND = "compact"


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
    """How a log continues the previous copy: the files taken from it, ``size_bytes`` of them segments; whether the source has
    ``grown``; its entry in the cleaner checkpoint (``None``: no entry); its log start (``None``: as in the source)."""

    splice: Splice
    size_bytes: int
    grown: bool
    cleaned_to: int | None
    log_start: int | None


class PreviousCopy:
    """A finished output of ``compact``, which is only read. Make it with :meth:`open`.

    :param roots: by log directory of the source, the directory of its logs in the copy
    :param files: reads both
    """

    def __init__(self, path: str, manifest: Manifest, roots: dict[str, str], files: FileSystem) -> None:
        self._path, self._manifest, self._files = path, manifest, files
        self.roots = roots
        self._offsets: dict[tuple[str, str], Offsets] = {}

    @classmethod
    def open(cls, path: str, log_dirs: Sequence[str], files: FileSystem) -> PreviousCopy:
        """:raises UsageError: there is no such output, or not one that can be continued"""
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
        return cls(path, manifest, layout(path, log_dirs), files)

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
            size_bytes = self._require_as_written(splice)
        except (LogError, OSError) as error:
            raise NotContinuedError(str(error)) from error
        moved = log_start > max(own_start, splice.first) or (start or 0) > own_start
        return Continuation(splice, size_bytes, grown, cleaned_to, log_start if moved else None)

    def _offset(self, log: LogLocation, name: str) -> int | None:
        """The entry of a log in a checkpoint of this copy."""
        root = self.roots[log.log_dir]
        if (root, name) not in self._offsets:
            self._offsets[root, name] = self._read_offsets(join(root, name))
        return self._offsets[root, name].get(log.topic_partition)

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

    def _require_as_written(self, splice: Splice) -> int:
        """The bytes of the segments that a splice takes.

        :raises NotContinuedError: a file of it is not as it was written
        """
        listed = self._folder(splice.directory).files
        found = files_below(self._files, splice.directory)
        names = sorted(filter(splice.has, {*listed, *found}))
        for name in names:
            if not _is_as_written(found.get(name), listed.get(name)):
                path = join(splice.directory, name)
                raise NotContinuedError(f"the previous copy has changed since it was written: {path}")
        return sum(listed[name].size for name in names if name.endswith(LOG))


def _is_as_written(stat: FileStat | None, entry: Entry | None) -> bool:
    if stat is None or entry is None or not stat.is_file:
        return False
    return (stat.size, stat.mtime_ns // 1_000_000) == (entry.size, entry.mtime_ms)


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
        _require_continued(before, now, may_grow=before is last)
    unchanged = source.segments[len(remaining) - 1] == last
    return last.base_offset, unchanged, not unchanged or len(source.segments) > len(remaining)


def _require_continued(before: SourceSegment, now: SourceSegment | None, *, may_grow: bool) -> None:
    if now is None or now.base_offset != before.base_offset:
        raise NotContinuedError(f"segment {before.base_offset} is missing in the source")
    if now.size < before.size:
        raise NotContinuedError(f"segment {before.base_offset} was truncated: {now.size} bytes, {before.size} before")
    if now != before and not may_grow:
        raise NotContinuedError(f"segment {before.base_offset} has changed")
