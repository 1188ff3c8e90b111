"""Finds the two sides of each log: in two directories, or in one that was cleaned in place.

In place, ``before`` is the round's sources, which stay as ``.deleted`` until the next run: an output has the base offset of its
first source, so ``before`` is every ``.deleted`` segment and every other segment without a ``.deleted`` one of its base offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from compaction.certifier.certificate import LogCertificate
from compaction.certifier.checks.log_pair import CleaningRules, LogPair, SegmentFiles, Side
from compaction.errors import CompactionError, CorruptLogError, UsageError, of_log
from compaction.fs.filesystem import FileSystem, join
from compaction.logdir.checkpoint_store import read_checkpoints
from compaction.logdir.discover import LogLocation
from compaction.names import DELETED, LOG, SWAP, TopicPartition, parse_segment_file
from compaction.output.journal import JOURNAL

RulesFor = Callable[[LogLocation], "CleaningRules | CompactionError"]


def pair_directories(
    fs: FileSystem, before: Sequence[LogLocation], after: Sequence[LogLocation], rules_for: RulesFor
) -> list[LogPair | LogCertificate]:
    """The logs of two sets of log directories, by name.

    :raises UsageError: a log is in two directories of one side
    """
    sources, results = _by_name(before, "before"), _by_name(after, "after")
    found: list[LogPair | LogCertificate] = []
    for name in sorted({**sources, **results}):
        if name not in results:
            start = _first_offset(fs, sources[name])
            found.append(LogCertificate.violated(name, start, "log is missing"))
        elif name not in sources:
            found.append(LogCertificate.violated(name, _first_offset(fs, results[name]), "log is not in the source"))
        else:
            found.append(_pair(name, sources[name], rules_for, lambda s=sources[name], r=results[name]: _two(fs, s, r)))  # type: ignore[misc]
    return found


def pair_in_place(fs: FileSystem, locations: Iterable[LogLocation], rules_for: RulesFor) -> list[LogPair | LogCertificate]:
    """The logs of directories that were cleaned in place, with the sources that the last run left."""
    return [
        _pair(each.topic_partition, each, rules_for, lambda each=each: _one(fs, each))  # type: ignore[misc]
        for each in locations
    ]


def _pair(
    name: TopicPartition, source: LogLocation, rules_for: RulesFor, read: Callable[[], tuple[Side, Side]]
) -> LogPair | LogCertificate:
    rules = rules_for(source)
    if isinstance(rules, CompactionError):
        return LogCertificate.failed(name, str(rules))
    try:
        before, after = read()
    except Exception as error:
        return LogCertificate.failed(name, str(of_log(error, source.path)))
    return LogPair(name, before, after, rules)


def _two(fs: FileSystem, source: LogLocation, result: LogLocation) -> tuple[Side, Side]:
    return _side(fs, source, segments_in(fs, source.path)), _side(fs, result, segments_in(fs, result.path))


def _one(fs: FileSystem, location: LogLocation) -> tuple[Side, Side]:
    left = segments_in(fs, location.path)
    sources = segments_in(fs, location.path, DELETED)
    bases = {each.base_offset for each in sources}
    segments = sorted([*sources, *(each for each in left if each.base_offset not in bases)], key=lambda each: each.base_offset)
    segments = [replace(each, last=each is segments[-1]) for each in segments]
    after = _side(fs, location, left)
    # the log began with the first segment if others were deleted: only that moves the log start to where a segment begins
    moved = after.log_start_offset in {left[0].base_offset, *(each.base_offset for each in segments)}
    start = segments[0].base_offset if moved else after.log_start_offset
    return Side(tuple(segments), start, None), after


def segments_in(fs: FileSystem, path: str, suffix: str = "") -> tuple[SegmentFiles, ...]:
    """The segments of a partition directory whose files end with ``suffix``, ascending.

    :raises CorruptLogError: a swap was not finished there
    """
    names = fs.listdir(path)
    unfinished = [name for name in names if name == JOURNAL or name.endswith(LOG + SWAP)]
    if unfinished:
        hint = "finish it first: run compact over this directory, or start a broker on it"
        raise CorruptLogError("a swap of segments is not finished", path=join(path, unfinished[0]), hint=hint)
    files = [file for file in map(parse_segment_file, names) if file is not None and file.kind == LOG and file.suffix == suffix]
    bases = sorted(file.base_offset for file in files)
    found = []
    for base in bases:
        segment = SegmentFiles(path, base, 0, 0, suffix, last=base == bases[-1])
        stat = fs.stat(segment.path())
        if stat is not None:
            found.append(replace(segment, size_bytes=stat.size, mtime_ms=stat.mtime_ns // 1_000_000))
    return tuple(found)


def _side(fs: FileSystem, location: LogLocation, segments: tuple[SegmentFiles, ...]) -> Side:
    if not segments:
        raise CorruptLogError("no segments are here", path=location.path, hint="give the directory that holds the log")
    checkpoints = read_checkpoints(fs, location.log_dir)
    checkpoints.require_sound()
    name = location.topic_partition
    start = max(checkpoints.log_starts.get(name, 0), segments[0].base_offset)
    return Side(segments, start, checkpoints.cleaner_offsets.get(name))


def _first_offset(fs: FileSystem, location: LogLocation) -> int:
    segments = segments_in(fs, location.path)
    return segments[0].base_offset if segments else 0


def _by_name(locations: Sequence[LogLocation], side: str) -> Mapping[TopicPartition, LogLocation]:
    found: dict[TopicPartition, LogLocation] = {}
    for each in locations:
        if each.topic_partition in found:
            what = f"{each.topic_partition} is in two directories of --{side}"
            raise UsageError(what, path=each.path, hint="verify one log directory at a time")
        found[each.topic_partition] = each
    return found
