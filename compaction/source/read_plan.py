"""Plans a read of log directories: the logs, the byte ranges of their segments, and the bounds of the records.

Every log is recovered in memory, as in a dry run. It is read from its log start to its high watermark, or for
``read_committed`` to its last stable offset, as the partition's leader serves a consumer.

Narrows the read of a segment by its indexes: the byte range of given offsets, and the first offset since a timestamp.

Mirrors ``LogSegment.translateOffset`` and ``TimeIndex.lookup``. An entry of the offset index counts only if it
points to its batch. Without a usable entry the whole segment is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.engine import pack
from compaction.errors import StorageError, UsageError
from compaction.files.data_keys import add_private_keys
from compaction.files.filesystem import FileSystem, base_name, join, parent, real_file
from compaction.files.lock import require_unlocked
from compaction.files.mixed import file_system, require_finished
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import SegmentFile
from compaction.files.uri import add_tail, parse_uri, resolved
from compaction.formats.indexes import SEGMENT_INDEXES
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.discover import Selector, check_log_dirs, discover, require_one_directory, require_topics
from compaction.log.read_log import ReadOptions, cut_segment, read_log, segment_bases
from compaction.names import (
    HIGH_WATERMARKS,
    INDEX,
    LOG,
    TIMEINDEX,
    LogLocation,
    TopicPartition,
    parse_partition_dir,
    segment_file,
)
from compaction.recovery.recover import recover_log
from compaction.rules.log_to_clean import open_transaction
from compaction.rules.log_view import LogView, Segment
from compaction.rules.transactions import aborted_of
from compaction.source.latest import SliceRange
from compaction.source.read_columns import MAX_LONG, MIN_LONG, READ_COMMITTED, READ_UNCOMMITTED, Bounds, ReadSpec

SLICE_BYTES = 64 << 20
LATEST, CHANGES = "latest", "changes"
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
_NO_VIEW_OPTIONS = ("startingtimestamp", "endingtimestamp", "includecontrol")

#: option (Spark ignores case) -> meaning
OPTIONS: Mapping[str, str] = {
    "path": "a log directory, or the directory of one partition",
    "paths": "several of them, as load([...]) gives them",
    "tail": "a log directory with newer segments, to continue an export of tiered storage",
    "privatekeys": "private keys of encrypted exports: ID=FILE, separated by commas",
    "topic": "regular expressions of whole topic names, separated by spaces",
    "partition": "partitions as TOPIC-N, separated by spaces",
    "isolation.level": "read_uncommitted (the default) or read_committed",
    "startingoffset": "the first offset",
    "endingoffset": "the offset at which to stop (exclusive)",
    "startingoffsets": "the first offset of each partition, as in Spark's Kafka source: earliest, or JSON",
    "endingoffsets": "the offset of each partition at which to stop (exclusive): latest, or JSON",
    "startingtimestamp": "milliseconds since the epoch (inclusive)",
    "endingtimestamp": "milliseconds since the epoch (exclusive)",
    "view": "latest: the newest record of each key; changes: the same as upserts and deletes",
    "tombstones": "with view=latest: keep (the default) or drop",
    "columns": "the columns to read, separated by commas",
    "batchcolumns": "true: also the columns that describe batches",
    "includecontrol": "true: also control records",
    "includeunreplicated": "true: read past the high watermark to the log end offset",
    "check.crcs": "false: do not check the CRCs of batches",
    "slicebytes": "bytes that one task reads, approximately",
}


@dataclass(frozen=True)
class ViewOptions:
    """The view, if any, whether it has tombstones, and the offsets ``[starting, ending)`` of single partitions."""

    view: str | None = None
    tombstones: bool = True
    starting: Mapping[TopicPartition, int] = field(default_factory=dict)
    ending: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ViewOptions:
        """From the options of a read, with names in lower case.

        :raises UsageError: a value is not valid, or options contradict each other
        """
        view = options.get("view")
        if view not in (None, LATEST, CHANGES):
            raise UsageError(f"view {view!r} is neither {LATEST} nor {CHANGES}")
        tombstones = options.get("tombstones", "keep")
        if tombstones not in ("keep", "drop"):
            raise UsageError(f"tombstones {tombstones!r} is neither keep nor drop")
        if "tombstones" in options and view != LATEST:
            raise UsageError(f"tombstones is an option of view={LATEST}", hint=f"in view={CHANGES} they are the deletes")
        for single, plural in (("startingoffset", "startingoffsets"), ("endingoffset", "endingoffsets")):
            if single in options and plural in options:
                raise UsageError(f"{single} and {plural} are both given", hint="give one of them")
        refused = [name for name in _NO_VIEW_OPTIONS if name in options]
        if view is not None and refused:
            raise UsageError(f"{refused[0]} cannot be combined with a view", hint="filter the rows of the view")
        if view is not None and options.get("isolation.level", READ_COMMITTED) != READ_COMMITTED:
            raise UsageError("a view has no aborted data: its isolation.level is read_committed")
        starting, ending = _offsets(options, "startingoffsets", "earliest"), _offsets(options, "endingoffsets", "latest")
        return cls(view, tombstones == "keep", starting, ending)

    def bounds_of(self, name: TopicPartition) -> Bounds:
        """The offsets of a partition; one that the options do not name is read from its start, and to its end."""
        first, end = self.starting.get(name, _EARLIEST_OFFSET), self.ending.get(name, _LATEST_OFFSET)
        return Bounds(MIN_LONG if first < 0 else first, MAX_LONG if end < 0 else end - 1)

    def require_partitions(self, selected: Collection[TopicPartition]) -> None:
        """:raises UsageError: an offset is of a partition that is not ``selected``"""
        for option, offsets in (("startingoffsets", self.starting), ("endingoffsets", self.ending)):
            missing = sorted(offsets.keys() - selected)
            if missing:
                raise UsageError(f"{option}: {missing[0]} is not among the selected logs", hint="leave it out, or select it")


def _offsets(options: Mapping[str, str], option: str, word: str) -> dict[TopicPartition, int]:
    """``{"orders": {"0": 23, "1": -2}}``; ``word`` stands for all partitions, as does -2 (start) or -1 (end) for one."""
    text = options.get(option, word)
    if text == word:
        return {}
    special = _EARLIEST_OFFSET if word == "earliest" else _LATEST_OFFSET
    try:
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, RecursionError):
        offsets = {TopicPartition("", 0): None}
    if any(type(offset) is not int or (offset < 0 and offset != special) for offset in offsets.values()):
        hint = f'e.g. {{"orders": {{"0": 23, "1": {special}}}}}, or {word}'
        raise UsageError(f"{option} {text!r} has no offsets of partitions", hint=hint)
    return offsets


@dataclass(frozen=True)
class ReadRequest:
    """The options of a read, validated. ``allow_empty``: a directory may have no logs."""

    paths: tuple[str, ...]
    selector: Selector
    committed: bool
    bounds: Bounds
    control: bool
    unreplicated: bool
    check_crcs: bool
    slice_bytes: int
    view: ViewOptions = ViewOptions()
    allow_empty: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadRequest:
        """Parse the options of ``spark.read``.

        :raises UsageError: an unknown option, a bad value, or no directory
        """
        values = {name.lower(): value for name, value in options.items()}
        for name in values:
            if name not in OPTIONS:
                raise UsageError(f"kafka_log has no option {name!r}", hint="it has: " + ", ".join(OPTIONS))
        paths = json.loads(values["paths"]) if "paths" in values else [values["path"]] if "path" in values else []
        if not paths:
            raise UsageError("no log directory given", hint="load(DIR)")
        level = values.get("isolation.level", READ_UNCOMMITTED)
        if level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise UsageError(f"isolation.level {level!r} is neither {READ_UNCOMMITTED} nor {READ_COMMITTED}")
        view = ViewOptions.parse(values)
        bounds = Bounds(
            number(values, "startingoffset", MIN_LONG, minimum=0),
            number(values, "endingoffset", MAX_LONG + 1, minimum=0) - 1,
            number(values, "startingtimestamp", MIN_LONG, minimum=MIN_LONG),
            number(values, "endingtimestamp", MAX_LONG + 1, minimum=MIN_LONG) - 1,
        )
        roots = tuple(parse_uri(path, "path") for path in paths)
        for root in roots if "tail" in values else ():
            add_tail(root, parse_uri(values["tail"], "tail"))
        add_private_keys([key for key in values.get("privatekeys", "").split(",") if key])
        return cls(
            roots,
            Selector.parse(values.get("topic", "").split(), values.get("partition", "").split(), "partition"),
            level == READ_COMMITTED or view.view is not None,
            bounds,
            flag(values, "includecontrol"),
            flag(values, "includeunreplicated"),
            flag(values, "check.crcs", default=True),
            number(values, "slicebytes", SLICE_BYTES, minimum=1),
            view,
        )


@dataclass(frozen=True)
class ReadTask:
    """The slices of one log that one task reads."""

    topic_partition: TopicPartition
    slices: tuple[SliceRange, ...]
    spec: ReadSpec
    #: of a view, for which the task reads the newest records of a complete log: whether it has tombstones
    tombstones: bool | None = None

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.slices)


def plan_read(request: ReadRequest, requested: int) -> list[ReadTask]:
    """The tasks, ordered by log and offset; consecutive small slices of a log are one task.

    :raises UsageError: a directory is missing or a live broker holds it, or the selectors match nothing
    :raises LogError: a selected log cannot be read
    """
    fs = OverlayFileSystem(file_system(request.paths))
    logs = _locations(fs, request)
    return [task for location in logs for task in plan_log(fs, location, request, requested)]


def plan_log(fs: FileSystem, location: LogLocation, request: ReadRequest, requested: int) -> list[ReadTask]:
    """The tasks of one log, ordered by offset.

    :param fs: an overlay, in which the log is recovered
    :raises LogError: it cannot be read
    """
    view = _view(fs, location, request)
    spec = _read_spec(view, request, request.bounds.within(request.view.bounds_of(view.topic_partition)), requested)
    if request.view.view is None:
        return _tasks(fs, view, spec, request.slice_bytes)
    slices = tuple(_slices(fs, view, spec.bounds, request.slice_bytes))
    return [ReadTask(view.topic_partition, slices, spec, request.view.tombstones)] if slices else []


def _tasks(fs: FileSystem, view: LogView, spec: ReadSpec, slice_bytes: int) -> list[ReadTask]:
    parts = pack(list(_slices(fs, view, spec.bounds, slice_bytes)), lambda part: part.size_bytes, slice_bytes)
    return [ReadTask(view.topic_partition, tuple(part), spec) for part in parts]


def plan_stored(
    fs: FileSystem, location: LogLocation, request: ReadRequest, requested: int
) -> tuple[LogView, list[ReadTask], int]:
    """A log as it is stored, also below its log start, past its high watermark, and with control batches: the log, the tasks
    that read it, and the size of its ``.log`` files after the last batch. Parameters and errors are those of ``plan_log``.
    """
    view = _view(fs, location, replace(request, committed=True))
    spec = ReadSpec(Bounds(MIN_LONG), requested, control=True, check_crcs=request.check_crcs)
    files = [fs.stat(join(view.path, segment_file(segment.base_offset, LOG))) for segment in view.segments]
    file_bytes = sum(status.size for status in files if status is not None)
    return view, _tasks(fs, view, spec, request.slice_bytes), file_bytes - view.size_bytes


class ReadEnd(NamedTuple):
    """The end of a log's read (exclusive), its log end offset, the reason for a difference, and the remedy."""

    offset: int
    log_end_offset: int
    bound: str
    remedy: str


def read_ends(request: ReadRequest) -> dict[TopicPartition, ReadEnd]:
    """The ends of the reads of the selected logs.

    :raises UsageError: see ``plan_read``
    :raises LogError: a selected log cannot be read
    """
    fs = OverlayFileSystem(file_system(request.paths))
    logs = _locations(fs, request)
    ends = {}
    for location in logs:
        view = _view(fs, location, request)
        bounds = _read_spec(view, request, Bounds(MIN_LONG), 0).bounds
        bound = f"the high watermark is {view.high_watermark}"
        remedy = f"take the log after a clean shutdown, or without {HIGH_WATERMARKS}"
        if request.committed and view.last_stable_offset < view.high_watermark:
            bound = f"{open_transaction(view)} from offset {view.last_stable_offset}"
            remedy = "end it (kafka-transactions.sh) and copy the log again"
        end = max(bounds.first_offset, bounds.last_offset + 1)
        ends[location.topic_partition] = ReadEnd(end, view.log_end_offset, bound, remedy)
    return ends


def _locations(fs: FileSystem, request: ReadRequest) -> Sequence[LogLocation]:
    """:raises UsageError: see ``plan_read``"""
    result = read_locations(fs, request.paths, request.selector)
    if result or not request.allow_empty:
        require_topics(result, request.selector, request.paths)
    request.view.require_partitions({location.topic_partition for location in result})
    return result


def _view(fs: FileSystem, location: LogLocation, request: ReadRequest) -> LogView:
    # a snapshot lacks expired producers: every segment is searched for aborted transactions
    found = replace(read_checkpoints(fs, location.log_dir), snapshots_may_lack=request.committed)
    report = recover_log(fs, location, checkpoints=found)
    checkpoints = read_checkpoints(fs, location.log_dir)
    # now_ms=0: only producers expire by the clock, and a read does not need them
    return read_log(fs, location, checkpoints, ReadOptions(now_ms=0), segments=report.segments)


def _read_spec(view: LogView, request: ReadRequest, bounds: Bounds, requested: int) -> ReadSpec:
    end = view.log_end_offset if request.unreplicated else view.high_watermark
    aborted = None
    if request.committed:
        end = min(end, view.last_stable_offset)
        aborted = aborted_of(view)
    visible = Bounds(view.log_start_offset, end - 1)
    return ReadSpec(bounds.within(visible), requested, aborted, request.control, request.check_crcs)


def _slices(fs: FileSystem, view: LogView, bounds: Bounds, slice_bytes: int) -> Iterator[SliceRange]:
    for segment in view.segments:
        narrowed = _in_segment(fs, view.path, segment, bounds)
        if narrowed is None:
            continue
        start, end = positions_of(fs, view.path, segment, narrowed.first_offset, narrowed.last_offset)
        file_range = real_file(fs, join(view.path, segment_file(segment.base_offset, LOG)))
        for byte_range in cut_segment(fs, view.path, segment, slice_bytes):
            first, last = max(start, byte_range.start), min(end, byte_range.end)
            if first < last:
                base = file_range.start
                offsets = byte_range.first_offset, byte_range.end_offset
                yield SliceRange(file_range.path, base + first, base + last, segment.base_offset, *offsets)


def _in_segment(fs: FileSystem, log_path: str, segment: Segment, bounds: Bounds) -> Bounds | None:
    """The bounds narrowed to one segment, ``None`` if it has no records within them."""
    if bounds.empty or segment.next_offset <= bounds.first_offset or segment.base_offset > bounds.last_offset:
        return None
    if bounds.first_timestamp_ms <= MIN_LONG:
        return bounds
    if segment.largest_timestamp_ms < bounds.first_timestamp_ms:
        return None
    since = first_offset_since(fs, log_path, segment, bounds.first_timestamp_ms)
    return replace(bounds, first_offset=max(bounds.first_offset, since))


def read_locations(fs: FileSystem, paths: Sequence[str], selector: Selector) -> Sequence[LogLocation]:
    """The logs of log directories, and those whose own directory is given, each once.

    :raises UsageError: a path is neither, its output is unfinished, or a partition is in two directories
    :raises LockedError: a live broker holds a directory
    """
    single = [path for path in paths if _is_partition(fs, path)]
    locations: dict[str, LogLocation] = {}
    for path in map(resolved, single):
        name = parse_partition_dir(base_name(path))
        _require_at_rest(parent(path))
        if name is not None and selector.matches(name):
            locations[path] = LogLocation(name, parent(path), path)
    log_dirs = check_log_dirs(fs, [path for path in paths if path not in single])
    for log_dir in log_dirs:
        _require_at_rest(log_dir)
    if log_dirs or not single:
        locations |= {location.path: location for location in discover(fs, log_dirs, selector)}
    logs = list(locations.values())
    require_one_directory(fs, logs)
    return logs


def _require_at_rest(log_dir: str) -> None:
    """:raises UsageError: a live broker holds the directory, or its output is unfinished"""
    require_finished(log_dir)
    require_unlocked(log_dir)


def _is_partition(fs: FileSystem, path: str) -> bool:
    status = fs.stat(path)
    if status is None or not status.is_dir or parse_partition_dir(base_name(resolved(path))) is None:
        return False
    return bool(segment_bases(fs, path))


def first_offset_since(fs: FileSystem, log_path: str, segment: Segment, timestamp_ms: int) -> int:
    """An offset below which all records of the segment are older than ``timestamp_ms``."""
    entries = _entries(fs, log_path, segment, TIMEINDEX)
    older = int(np.searchsorted(entries["timestamp"], timestamp_ms))
    return segment.base_offset if older == 0 else int(entries["offset"][older - 1]) + 1


def positions_of(fs: FileSystem, log_path: str, segment: Segment, first_offset: int, last_offset: int) -> tuple[int, int]:
    """Bytes ``[start, end)`` of the segment that contain all records with offsets in ``[first_offset, last_offset]``."""
    full_range = 0, segment.size_bytes
    if first_offset <= segment.base_offset and last_offset >= segment.next_offset - 1:
        return full_range
    entries = _entries(fs, log_path, segment, INDEX)
    # an entry has its batch's last offset: start at the last entry below the range, end at the second entry past it
    before = int(np.searchsorted(entries["offset"], first_offset, side="right")) - 1
    after = int(np.searchsorted(entries["offset"], last_offset, side="left")) + 1
    start = _batch_at(fs, log_path, segment, entries, before) if before >= 0 else 0
    end = _batch_at(fs, log_path, segment, entries, after) if after < len(entries) else segment.size_bytes
    if start is None or end is None:
        return full_range
    return start, end


def _entries(fs: FileSystem, log_path: str, segment: Segment, kind: str) -> NDArray[np.void]:
    """The entries of an index; none if it cannot be read."""
    base, read = segment.base_offset, SEGMENT_INDEXES[kind].read
    try:
        return read(fs.read_bytes(join(log_path, segment_file(base, kind))), base)
    except (StorageError, ValueError):
        return read(b"", base)


def _batch_at(fs: FileSystem, log_path: str, segment: Segment, entries: NDArray[np.void], index: int) -> int | None:
    """The position of an index entry, ``None`` if it does not point to a batch with its last offset."""
    position = int(entries["position"][index])
    return position if SegmentFile.of(fs, log_path, segment).ends_with(position, int(entries["offset"][index])) else None


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A boolean option; ``name`` is in lower case.

    :raises UsageError: the value is not a boolean
    """
    value = next((value for key, value in options.items() if key.lower() == name), str(default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f"option {name} is {value!r}, expected true or false")
    return value == "true"


def number(options: Mapping[str, str], name: str, default: int, *, minimum: int) -> int:
    """A whole number from ``minimum`` to the largest of 64 bits.

    :raises UsageError: the value is none
    """
    value = options.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,19}", value):
        raise UsageError(f"option {name} is {value!r}, expected a whole number")
    if not minimum <= int(value) <= MAX_LONG:
        raise UsageError(f"option {name} is {value}, expected a number from {minimum} to {MAX_LONG}")
    return int(value)
