"""The requests of verifications, and the logs that they name: each before and after its cleaning, with the rules that it had
to follow. The values are sent to tasks.

The sides come from two log directories, or from one that was cleaned in place. There, the replaced segments remain as
``.deleted`` until the next run. A cleaned segment has the base offset of the first segment of its group. So ``before`` consists
of every ``.deleted`` segment, and of every other segment whose base offset no ``.deleted`` one has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compaction.certifier.certificate import LogCertificate, Status
from compaction.config.entries import to_long
from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.errors import CompactionError, CorruptLogError, UsageError, as_log_error
from compaction.files.filesystem import FileSystem, join
from compaction.files.mixed import file_system
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.discover import Selector, discover
from compaction.log.settings import Settings, read_settings
from compaction.names import DELETED, LOG, SNAPSHOT, SWAP, LogLocation, TopicPartition, parse_segment_file, segment_file
from compaction.output.finished import layout
from compaction.output.journal import JOURNAL
from compaction.report import LogStatus, RunReport

LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class SegmentFiles:
    """One segment on disk. ``suffix`` is ``.deleted`` for a segment that cleaning replaced."""

    directory: str
    base_offset: int
    size_bytes: int
    mtime_ms: int
    suffix: str = ""
    last: bool = False

    def path(self, kind: str = LOG) -> str:
        return join(self.directory, segment_file(self.base_offset, kind, self.suffix))


@dataclass(frozen=True)
class Side:
    """A log before or after cleaning; its segments are in order, ``cleaned_to`` is its cleaner checkpoint."""

    segments: tuple[SegmentFiles, ...]
    log_start_offset: int
    cleaned_to: int | None


@dataclass(frozen=True)
class CleaningRules:
    """The rules that a cleaning had to follow.

    ``now_ms``: the time of the round if ``exact``, else the latest time it can have had. ``deletes``: ``cleanup.policy``
    includes ``delete``. ``include_active``: the active segment was cleaned too. ``several_rounds``: there may have been more
    than one round between the two sides. ``strict``: retained superseded records are violations. ``mtime_only``: the mtime of
    segments decides when tombstones and markers may be dropped, and batches have no delete horizon (Kafka up to 3.0).
    ``keeps_magic``: batches of magic 0 and 1 do not become v2 (up to 3.9). ``kafka_version``: the version that has these rules,
    and why it applies.

    ``erases``: keys were erased, and nothing was cleaned (``erased_keys``); ``refused``: the erasure refused the log.
    ``producer_expiration_ms``: a producer that is idle for this time at ``now_ms`` has expired.
    """

    now_ms: int
    exact: bool = False
    delete_retention_ms: int = 86_400_000
    deletes: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    include_active: bool = False
    several_rounds: bool = False
    strict: bool = False
    mtime_only: bool = False
    keeps_magic: bool = False
    kafka_version: str = ""
    erases: bool = False
    refused: bool = False
    producer_expiration_ms: int = 86_400_000


@dataclass(frozen=True)
class LogPair:
    """One log before and after cleaning."""

    topic_partition: TopicPartition
    before: Side
    after: Side
    rules: CleaningRules

    @property
    def compared_from(self) -> int:
        """Batches that end below this offset are not compared: an earlier round may have joined segments that were deleted from
        ``before`` since, as they are below the log start."""
        return self.before.segments[0].base_offset if self.rules.several_rounds else 0

    @property
    def changed_to(self) -> int:
        """No record at or past this offset may be missing: the cleaner checkpoint, or the end of the erased segments."""
        if self.rules.refused:
            return self.before.segments[0].base_offset
        if self.rules.erases:
            return LONG_MAX if self.rules.include_active else self.before.segments[-1].base_offset
        return self.after.log_start_offset if self.after.cleaned_to is None else self.after.cleaned_to


def legacy_delete_horizon_ms(pair: LogPair) -> int:
    """The modification time of the last clean segment less ``delete.retention.ms``, as in ``Cleaner.doClean``. If
    the first dirty offset is unknown, everything below the checkpoint counts as clean; in several rounds, each of its segments
    may have been the last."""
    is_recorded = pair.before.cleaned_to is not None and not pair.rules.several_rounds
    first_dirty = pair.before.cleaned_to if is_recorded else pair.after.cleaned_to
    start = pair.before.log_start_offset
    first_dirty = start if first_dirty is None or first_dirty < start else first_dirty
    clean = [segment.mtime_ms for segment in pair.before.segments if segment.base_offset < first_dirty]
    if not clean:
        return 0
    newest = max(clean) if pair.rules.several_rounds else clean[-1]
    return to_long(newest - pair.rules.delete_retention_ms)


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
    rules = {
        location: _rules(request, settings) if isinstance(settings, Settings) else settings
        for location, settings in zip(sources, read_settings(fs, sources, run), strict=True)
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
        if name in sources and name in results:
            pairs.append(_pair(fs, sources[name], before[sources[name]], results[name]))
            continue
        segments = segments_in(fs, (sources.get(name) or results[name]).path)
        message = "log is missing" if name in sources else "log is not in the source"
        pairs.append(LogCertificate.violated(name, segments[0].base_offset if segments else 0, message))
    return pairs


def pair_in_place(fs: FileSystem, logs: Rules) -> list[LogPair | LogCertificate]:
    """Pair the logs of directories that were cleaned in place with the ``.deleted`` segments of the last run."""
    return [_pair(fs, location, rules) for location, rules in logs.items()]


def compared(pairs: list[LogPair | LogCertificate], log_dirs: Sequence[str]) -> list[LogPair | LogCertificate]:
    """The pairs in place, with a certificate for each log that would be compared with itself.

    :raises UsageError: there is nothing to compare
    """
    reason, results = f"it has no {DELETED} files of the last run", pairs.copy()
    for number, pair in enumerate(pairs):
        if isinstance(pair, LogPair) and not any(segment.suffix for segment in pair.before.segments):
            results[number] = LogCertificate(*pair.topic_partition, Status.NOT_COMPARED, reason)
    if results and all(isinstance(pair, LogCertificate) and pair.status is Status.NOT_COMPARED for pair in results):
        problem = f"nothing to compare: no log here has {DELETED} files of the last run"
        hint = "the next run, a broker's start or file.delete.delay.ms=0 removes them; give --before a copy of the state before"
        raise UsageError(problem, path=", ".join(log_dirs), hint=hint)
    return results


def _pair(
    fs: FileSystem, source: LogLocation, rules: CleaningRules | CompactionError, result: LogLocation | None = None
) -> LogPair | LogCertificate:
    """The sides of a log, in place without a ``result``."""
    name = source.topic_partition
    if isinstance(rules, CompactionError):
        return LogCertificate.failed(name, str(rules))
    try:
        if result is None:
            return LogPair(name, *_sides_in_place(fs, source), rules)
        before, after = (_side(fs, location, segments_in(fs, location.path)) for location in (source, result))
        return LogPair(name, before, after, rules)
    except Exception as error:
        return LogCertificate.failed(name, str(as_log_error(error, source.path)))


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


def snapshot_offsets(fs: FileSystem, path: str) -> set[int]:
    """The offsets of the producer snapshots of a partition directory."""
    files = map(parse_segment_file, fs.listdir(path))
    return {file.base_offset for file in files if file is not None and (file.kind, file.suffix) == (SNAPSHOT, "")}


def _side(fs: FileSystem, location: LogLocation, segments: tuple[SegmentFiles, ...]) -> Side:
    if not segments:
        raise CorruptLogError("directory has no segments", path=location.path, hint="give the directory that holds the log")
    checkpoints = read_checkpoints(fs, location.log_dir)
    checkpoints.require_valid()
    name = location.topic_partition
    start = max(checkpoints.log_starts.get(name, 0), segments[0].base_offset)
    return Side(segments, start, checkpoints.cleaner_offsets.get(name))


def _by_name(locations: Iterable[LogLocation], side: str) -> Mapping[TopicPartition, LogLocation]:
    by_name: dict[TopicPartition, LogLocation] = {}
    for location in locations:
        if location.topic_partition in by_name:
            problem = f"{location.topic_partition} is in two directories of --{side}"
            raise UsageError(problem, path=location.path, hint="verify one log directory at a time")
        by_name[location.topic_partition] = location
    return by_name


def require_sources(request: CompactionRequest) -> None:
    """:raises UsageError: the run of ``request`` would retain no sources to verify against"""
    if request.dry_run:
        raise UsageError("--verify: a dry run writes nothing to verify", hint="drop one of the two options")
    if request.output_dir is not None:
        return
    fs = file_system(request.log_dirs)
    for location, settings in zip(request.logs, read_settings(fs, request.logs, request), strict=True):
        if isinstance(settings, Settings) and settings.topic.file_delete_delay_ms == 0:
            source = settings.topic.source("file.delete.delay.ms")
            problem = f"{location.topic_partition} has file.delete.delay.ms=0 ({source}), which deletes the sources at once"
            raise UsageError(f"--verify: {problem}", hint="set another delay, or write to --output-dir")


def requests(request: CompactionRequest, report: RunReport) -> Iterator[VerifyRequest]:
    """One request per log directory: in a copy for every log that did not fail, in place for the changed logs."""
    targets = {} if request.output_dir is None else layout(request.output_dir, request.log_dirs)
    done = [log for log in report.logs if log.status is not LogStatus.FAILED]
    done = [log for log in done if targets or log.status is LogStatus.CLEANED or log.expired_segments]
    for log_dir in request.log_dirs:
        logs = frozenset(TopicPartition(log.topic, log.partition) for log in done if log.log_dir == log_dir)
        if logs:
            yield of_logs(request, log_dir, logs, targets.get(log_dir))


def of_logs(request: CompactionRequest, log_dir: str, logs: frozenset[TopicPartition], copy: str | None) -> VerifyRequest:
    """The request for logs of one log directory of a run, in place or in its ``copy``."""
    return VerifyRequest(
        before=() if copy is None else (log_dir,),
        after=(log_dir if copy is None else copy,),
        now_ms=request.as_of_ms,
        exact=True,
        logs=logs,
        resolver=request.resolver,
        metadata_dirs=request.metadata_dirs,
        kafka_version=request.kafka_version,
        include_active=request.include_active,
        several_rounds=request.since is not None,
    )
