"""The request of a verification, and the logs that it names: their settings and their two sides.

The sides come from two log directories, or from one that was cleaned in place. There, the replaced segments remain as
``.deleted`` until the next run. A cleaned segment has the base offset of the first segment of its group. So ``before`` consists
of every ``.deleted`` segment, and of every other segment whose base offset no ``.deleted`` one has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from compaction.certifier.certificate import LogCertificate, Status
from compaction.certifier.checks.log_pair import CleaningRules, LogPair, SegmentFiles, Side
from compaction.config import Resolver
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, CorruptLogError, UsageError, as_log_error
from compaction.logdir.checkpoint_store import read_checkpoints
from compaction.logdir.discover import Selector, discover
from compaction.logdir.settings import Settings, read_settings
from compaction.names import DELETED, LOG, SWAP, LogLocation, TopicPartition, parse_segment_file
from compaction.output.journal import JOURNAL
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.mixed import file_system


@dataclass(frozen=True)
class VerifyRequest:
    """One verification.

    ``before`` and ``after`` are absolute paths of log directories. Without ``before``, those of ``after`` were cleaned in
    place. ``logs``: only these of the selected logs. ``cleaned_to``: their cleaner checkpoints before, ``None`` without an
    entry, for directories that were cleaned in place. ``metadata_dirs``, ``kafka_version``: see ``CompactionRequest``.
    ``refused``: logs that an erasure did not touch; ``failed``: logs whose erasure failed; ``sources_remain``: the run has not
    yet removed the replaced segments. For other fields see ``CleaningRules``.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    now_ms: int
    exact: bool = False
    selector: Selector = field(default_factory=Selector)
    logs: frozenset[TopicPartition] | None = None
    cleaned_to: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    resolver: Resolver = field(default_factory=Resolver)
    metadata_dirs: tuple[str, ...] = ()
    kafka_version: str | None = None
    include_active: bool = False
    refused: frozenset[TopicPartition] = frozenset()
    failed: frozenset[TopicPartition] = frozenset()
    sources_remain: bool = False
    several_rounds: bool = False
    strict: bool = False


def find_pairs(request: VerifyRequest, *, unreplaced: bool = False) -> list[LogPair | LogCertificate]:
    """Both sides of each log, or its certificate if they cannot be compared.

    :param unreplaced: include logs that are compared with themselves, because nothing had to be replaced
    :raises UsageError: a partition that the request names does not exist, or there is nothing to compare
    :raises ConfigError: the settings of the call contradict each other
    """
    fs = file_system((*request.before, *request.after))
    log_dirs = request.before or request.after
    sources = _locations(fs, request, log_dirs, request.selector)
    run = CompactionRequest(
        log_dirs,
        sources,
        request.now_ms,
        resolver=request.resolver,
        metadata_dirs=request.metadata_dirs,
        kafka_version=request.kafka_version,
    )
    settings_by_log = zip(sources, read_settings(fs, sources, run), strict=True)
    rules = {
        location: _rules(request, settings) if isinstance(settings, Settings) else settings
        for location, settings in settings_by_log
    }
    if not request.before:
        pairs_in_place = pair_in_place(fs, rules)
        return pairs_in_place if unreplaced else compared(pairs_in_place, request.after)
    shared_dirs = set() if unreplaced else set(request.before) & set(request.after)
    if shared_dirs:
        hint = "give a copy of the state before, or --in-place for the .deleted files of the last run"
        raise UsageError("nothing to compare: both sides are this directory", path=min(shared_dirs), hint=hint)
    # a partition that is missing on this side is a violation, not a wrong call
    return pair_directories(fs, rules, _locations(fs, request, request.after, Selector()))


def _locations(fs: FileSystem, request: VerifyRequest, log_dirs: Sequence[str], selector: Selector) -> tuple[LogLocation, ...]:
    """The requested logs; the partitions that ``selector`` names must exist."""
    locations = discover(fs, log_dirs, selector)
    selected = (location for location in locations if request.selector.matches(location.topic_partition))
    return tuple(location for location in selected if request.logs is None or location.topic_partition in request.logs)


def _rules(request: VerifyRequest, settings: Settings) -> CleaningRules:
    topic = settings.topic
    return CleaningRules(
        now_ms=request.now_ms,
        exact=request.exact,
        delete_retention_ms=topic.delete_retention_ms,
        deletes=topic.cleanup_delete,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        include_active=request.include_active,
        several_rounds=request.several_rounds,
        strict=request.strict,
        mtime_only=settings.kafka.rules.mtime_only,
        keeps_magic=settings.kafka.rules.keeps_magic,
        kafka_version=str(settings.kafka),
        producer_expiration_ms=settings.broker.producer_id_expiration_ms,
    )


#: the logs to verify, each with its rules or the error why it has none
Rules = Mapping[LogLocation, "CleaningRules | CompactionError"]


def pair_directories(fs: FileSystem, before: Rules, after: Sequence[LogLocation]) -> list[LogPair | LogCertificate]:
    """Pair the logs of two sets of log directories by name.

    :raises UsageError: a log is in two directories of one side
    """
    sources, results = _by_name(before, "before"), _by_name(after, "after")
    pairs: list[LogPair | LogCertificate] = []
    for name in sorted({**sources, **results}):
        if name not in results:
            pairs.append(LogCertificate.violated(name, _first_offset(fs, sources[name]), "log is missing"))
        elif name not in sources:
            pairs.append(LogCertificate.violated(name, _first_offset(fs, results[name]), "log is not in the source"))
        else:
            source = sources[name]
            pairs.append(_pair(source, before[source], partial(_sides, fs, source, results[name])))
    return pairs


def pair_in_place(fs: FileSystem, logs: Rules) -> list[LogPair | LogCertificate]:
    """Pair the logs of directories that were cleaned in place with the ``.deleted`` segments of the last run."""
    return [_pair(location, rules, partial(_sides_in_place, fs, location)) for location, rules in logs.items()]


def compared(pairs: list[LogPair | LogCertificate], log_dirs: Sequence[str]) -> list[LogPair | LogCertificate]:
    """The pairs in place, with a certificate for each log that would be compared with itself.

    :raises UsageError: there is nothing to compare
    """
    results = [_not_compared(pair) if isinstance(pair, LogPair) and not _is_replaced(pair) else pair for pair in pairs]
    if results and all(isinstance(pair, LogCertificate) and pair.status is Status.NOT_COMPARED for pair in results):
        problem = f"nothing to compare: no log here has {DELETED} files of the last run"
        hint = "the next run, a broker's start or file.delete.delay.ms=0 removes them; give --before a copy of the state before"
        raise UsageError(problem, path=", ".join(log_dirs), hint=hint)
    return results


def _is_replaced(pair: LogPair) -> bool:
    return any(segment.suffix for segment in pair.before.segments)


def _not_compared(pair: LogPair) -> LogCertificate:
    name = pair.topic_partition
    return LogCertificate(name.topic, name.partition, Status.NOT_COMPARED, f"it has no {DELETED} files of the last run")


def _pair(
    source: LogLocation, rules: CleaningRules | CompactionError, read: Callable[[], tuple[Side, Side]]
) -> LogPair | LogCertificate:
    name = source.topic_partition
    if isinstance(rules, CompactionError):
        return LogCertificate.failed(name, str(rules))
    try:
        return LogPair(name, *read(), rules)
    except Exception as error:
        return LogCertificate.failed(name, str(as_log_error(error, source.path)))


def _sides(fs: FileSystem, source: LogLocation, result: LogLocation) -> tuple[Side, Side]:
    return _side(fs, source, segments_in(fs, source.path)), _side(fs, result, segments_in(fs, result.path))


def _sides_in_place(fs: FileSystem, location: LogLocation) -> tuple[Side, Side]:
    present = segments_in(fs, location.path)
    replaced = segments_in(fs, location.path, DELETED)
    bases = {segment.base_offset for segment in replaced}
    untouched = (segment for segment in present if segment.base_offset not in bases)
    segments = sorted([*replaced, *untouched], key=lambda segment: segment.base_offset)
    segments = [replace(segment, last=segment is segments[-1]) for segment in segments]
    after = _side(fs, location, present)
    # the deletion of segments moves the log start to the first one that remains: before, it was that of the first segment
    start = segments[0].base_offset if after.log_start_offset == present[0].base_offset else after.log_start_offset
    return Side(tuple(segments), start, None), after


def segments_in(fs: FileSystem, path: str, suffix: str = "") -> tuple[SegmentFiles, ...]:
    """The segments of a partition directory whose files end with ``suffix``, ascending.

    :raises CorruptLogError: a swap is unfinished
    """
    names = fs.listdir(path)
    unfinished = [name for name in names if name == JOURNAL or name.endswith(LOG + SWAP)]
    if unfinished:
        hint = "finish it first: run compact on this directory, or start a broker on it"
        raise CorruptLogError("a segment swap is unfinished", path=join(path, unfinished[0]), hint=hint)
    files = [file for file in map(parse_segment_file, names) if file is not None and file.kind == LOG and file.suffix == suffix]
    bases = sorted(file.base_offset for file in files)
    segments = []
    for base in bases:
        segment = SegmentFiles(path, base, 0, 0, suffix, last=base == bases[-1])
        stat = fs.stat(segment.path())
        if stat is not None:
            segments.append(replace(segment, size_bytes=stat.size, mtime_ms=stat.mtime_ns // 1_000_000))
    return tuple(segments)


def _side(fs: FileSystem, location: LogLocation, segments: tuple[SegmentFiles, ...]) -> Side:
    if not segments:
        raise CorruptLogError("directory has no segments", path=location.path, hint="give the directory that holds the log")
    checkpoints = read_checkpoints(fs, location.log_dir)
    checkpoints.require_valid()
    name = location.topic_partition
    start = max(checkpoints.log_starts.get(name, 0), segments[0].base_offset)
    return Side(segments, start, checkpoints.cleaner_offsets.get(name))


def _first_offset(fs: FileSystem, location: LogLocation) -> int:
    segments = segments_in(fs, location.path)
    return segments[0].base_offset if segments else 0


def _by_name(locations: Iterable[LogLocation], side: str) -> Mapping[TopicPartition, LogLocation]:
    by_name: dict[TopicPartition, LogLocation] = {}
    for location in locations:
        if location.topic_partition in by_name:
            problem = f"{location.topic_partition} is in two directories of --{side}"
            raise UsageError(problem, path=location.path, hint="verify one log directory at a time")
        by_name[location.topic_partition] = location
    return by_name
