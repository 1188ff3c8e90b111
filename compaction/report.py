"""The report of a run, as JSON. It never contains a record's key or value.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | the run, its "now" in milliseconds, whether nothing was written |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``schema_version`` | 1; fields are added, never renamed or removed |
| ``totals`` | ``logs`` is their number, ``cleaned``, ``skipped`` and ``failed`` those of each status, ``policy_unknown`` those
    with an unknown policy; the others are the sums of the counts below; ``seconds`` is the elapsed time of the run |
| ``waves`` | one object per wave: the fields of ``WaveReport`` |
| ``kafka_versions`` | the versions whose rules applied, with the number of logs: the fields of ``VersionUsed`` |
| ``erasure`` | only of a run that erased keys: the given and found keys, by salted hashes |
| ``logs`` | one object per log: the fields of ``LogReport`` |
| ``tool``, ``command``, ``options``, ``settings`` | the call and its environment (``compaction.commands.runs``) |

There are two kinds of bytes and of records. ``disk_bytes_*`` are the bytes of all segments of a log, ``stored_records_*`` and
``removed_records`` the stored records of the cleaned range and those that it has lost; text output shows these. ``bytes_*`` and
``records_*`` count the batches that were read in the cleaned range, and their output, as Kafka's ``CleanerStats`` does. The
figures of a dry run equal those of the real run.
Bytes of a name that are not UTF-8 are escaped (``compaction.printable``).

As text it is a line per log or topic, the largest effect first, then totals, then the summary.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypedDict

from compaction.results import PageResult
from compaction.screen.amounts import change, counted, elapsed, share_freed, size
from compaction.screen.text_table import Column, Line, Row, Style, log_table, wrapped

SCHEMA_VERSION = 1
#: the status of the certificate of a complete erasure
HOLDS = "holds"
#: that of one that leaves records of the keys where it does not reach
INCOMPLETE = "incomplete"
#: the fields of a log that are times
_TIMES = ("seconds", "task_seconds")
#: reason codes as shown
_CAUSES = {"error": "", "policy_unknown": "unknown", "no_match": "no match", "last_segment": "last segment"}
#: logs that a note names
_MOST_NAMES = 5
_RELEASE = "the next run or a broker's start removes them, or at once:"
#: notes at the end of reasons, if another process was at work in the log directory
CHANGED, IN_USE = "the log changed while it was read", "in use; figures are a snapshot"
#: in the metadata of a field: why the records that it counts were removed, as metrics name it
REASON = "reason"


class LogStatus(str, enum.Enum):
    """The outcome of one log. In a run of the delete policy, a log that loses segments is ``CLEANED``."""

    #: it was compacted, or lost segments to the delete policy
    CLEANED = "cleaned"
    #: there was nothing to do; ``reason`` says why
    SKIPPED = "skipped"
    #: an error, which ``reason`` describes; the log is unchanged
    FAILED = "failed"


class Since(str, enum.Enum):
    """How a log of a copy with ``--since`` was copied."""

    #: all of its segments are those of the previous copy
    UNCHANGED = "unchanged"
    #: it has new segments; the others are those of the previous copy
    GROWN = "grown"
    #: all of its segments are those of the source
    FULL = "full"


class RunStatus(str, enum.Enum):
    """The outcome of a run."""

    #: at least one log was changed, or would be
    DONE = "done"
    #: no log needed work
    NOTHING_TO_DO = "nothing_to_do"
    #: at least one log failed; the others are done
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LogReport:
    """The outcome of one log.

    In a run of the delete policy alone, the offsets are those of the deleted segments, ``bytes_*`` and ``segments_*`` those of
    the whole log, and records are not counted.
    """

    #: name of the topic
    topic: str
    #: number of the partition
    partition: int
    #: the log directory that has the log
    log_dir: str
    #: ``cleaned``, ``skipped`` or ``failed``
    status: LogStatus
    #: why it was cleaned, skipped or failed; that of a failure has file and position
    reason: str
    #: first offset of the cleaned range, ``null`` if the log was not planned
    first_dirty_offset: int | None = None
    #: end of the cleaned range, exclusive, ``null`` if the log was not planned
    end_offset: int | None = None
    #: bytes of the batches that were read in the cleaned segments, as Kafka's ``CleanerStats``
    bytes_before: int = 0
    #: bytes of the batches in the output, as Kafka's ``CleanerStats``
    bytes_after: int = 0
    #: records of the batches that were read, as Kafka's ``CleanerStats``: aborted data and markers are dropped unread
    records_before: int = 0
    #: records in the output, as Kafka's ``CleanerStats``
    records_after: int = 0
    #: cleaned segments
    segments_before: int = 0
    #: segments in the output
    segments_after: int = 0
    #: records dropped because a later one has their key
    superseded_records: int = field(default=0, metadata={REASON: "superseded"})
    #: tombstones dropped because their delete horizon has passed
    tombstones_removed: int = field(default=0, metadata={REASON: "tombstone"})
    #: records dropped because they have no key
    invalid_records: int = field(default=0, metadata={REASON: "keyless"})
    #: records dropped because their transaction was aborted
    aborted_records: int = field(default=0, metadata={REASON: "aborted"})
    #: transaction markers dropped
    markers_removed: int = field(default=0, metadata={REASON: "marker"})
    #: distinct keys of the dirty section
    keys: int = 0
    #: segments that the delete policy deleted, before the others were cleaned
    expired_segments: int = 0
    #: bytes of their ``.log`` files
    expired_bytes: int = 0
    #: ``task_seconds``, and the time of the replacement of its segments, during which other logs may be replaced, too: more
    #: than the run takes if its tasks run at the same time; 0 in a comparison, which reads a log once for all policies
    seconds: float = 0.0
    #: whether the topic's ``cleanup.policy`` is not known, so that the log was not changed; ``reason`` says what to do
    policy_unknown: bool = False
    #: why it was skipped or failed, in a word (see the reason codes); empty if it was cleaned
    reason_code: str = ""
    #: whether it was cleaned, not only shortened by the delete policy
    compacted: bool = False
    #: bytes of all ``.log`` files before the run, 0 if the log could not be read
    disk_bytes_before: int = 0
    #: bytes of all ``.log`` files after the run, without ``.deleted`` ones
    disk_bytes_after: int = 0
    #: bytes that remain in ``.deleted`` files, with their indexes, until the next run or a broker's start removes them
    deleted_bytes: int = 0
    #: the topic-level entries that are not Kafka's defaults, each with its ``value`` and its ``source``
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    #: records that were dropped, or became tombstones, because their keys were to be erased
    erased_records: int = field(default=0, metadata={REASON: "erased"})
    #: bytes that it was expected to free before it was read, of a log that was cleaned or deferred (see ``--order benefit``)
    estimated_freed_bytes: int = 0
    #: all records that the cleaned range has lost, whether their batches were read or not, with transaction markers
    removed_records: int = 0
    #: records that were stored in the cleaned range, whether their batches were read or not, with transaction markers
    stored_records_before: int = 0
    #: records that are stored in the cleaned range now, with transaction markers
    stored_records_after: int = 0
    #: time of the tasks that read and wrote the log, summed over tasks that run at the same time
    task_seconds: float = field(default=0.0, compare=False)
    #: records with such a key in the last segment, which was not erased from
    remaining_records: int = 0
    #: records of the expired segments, with transaction markers; ``null`` if there is none, if one of them is damaged, and in a
    #: run of the delete policy alone, which reads no segment
    expired_records: int | None = field(default=None, metadata={REASON: "expired"})
    #: ``unchanged``, ``grown`` or ``full``: how much of it is taken from the previous copy; empty without ``--since``
    since: str = ""
    #: why it was copied in full, although the run was given ``--since``
    since_reason: str = ""
    #: bytes of the ``.log`` files of the previous copy that were used in place of the source's
    previous_bytes: int = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def effects(self) -> str:
        """The changes to the log in words: one that only loses expired segments is not cleaned. Empty if there are none."""
        cleaned = "erased from" if self.erased_records else "cleaned"
        return " and ".join(word for word, holds in (("expired", self.expired_segments), (cleaned, self.compacted)) if holds)


@dataclass(frozen=True)
class WaveReport:
    """Logs that were cleaned together. Their results were in place before the next wave began. A run has several waves if the
    outputs of all logs do not fit into the free space at once."""

    #: the number of logs, with those that were not compacted in the first wave
    logs: int
    #: bytes of the files that replaced segments, with their indexes; 0 in a dry run
    bytes_written: int
    #: bytes of the files of replaced and expired segments that the run has removed; the others remain as ``.deleted`` files
    bytes_freed: int
    #: elapsed time
    seconds: float


@dataclass(frozen=True)
class VersionUsed:
    """A Kafka version whose rules applied to logs of the run."""

    #: the version, ``X.Y``
    version: str
    #: why its rules applied
    source: str
    #: the number of logs
    logs: int
    #: the values of the rules that differ between versions (``compaction.rules.kafka_rules``)
    rules: Mapping[str, str | int | bool]

    def __str__(self) -> str:
        """One line."""
        logs = f"{self.logs} log" if self.logs == 1 else f"{self.logs} logs"
        return f"rules of Kafka {self.version} for {logs}: {self.source}"


#: the fields of a log that are summed for the run
_COUNTS = tuple(count.name for count in fields(LogReport) if count.type == "int" and count.default == 0)
_COLOURS = {LogStatus.FAILED: "bold red", LogStatus.CLEANED: "green", LogStatus.SKIPPED: "dim"}


class ErasedKey(TypedDict):
    """A key by its salted hash, and the number of its records."""

    sha256: str
    records: int


class ErasureDocument(TypedDict, total=False):
    """The ``erasure`` of a run's report, see ``compaction.erasure.erasure_report``."""

    on_match: str
    salt: str
    keys_given: int
    patterns_given: int
    keys_found: int
    keys: list[ErasedKey]
    resumed: list[str]
    notes: list[str]
    keys_not_found: int
    not_found: list[dict[str, object]]
    left_files: list[str]
    logs_not_searched: int
    remaining_records: int
    remaining_accepted: bool
    certificate: dict[str, str]


@dataclass(frozen=True)
class RunReport(PageResult):
    """The outcome of one run.

    ``seconds`` is its elapsed time. ``origin`` has the call and its environment, see ``compaction.commands.runs``.
    ``erasure`` is that of a run that erased keys, see ``compaction.erasure.erasure_report``.
    ``copied``: the result is, or would be, a copy beside the unchanged source.
    """

    page = "run"
    #: the page has no key, not even a salted hash
    not_on_page: ClassVar[frozenset[str]] = frozenset({"options", "erasure"})

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict)
    erasure: ErasureDocument = field(default_factory=ErasureDocument)
    copied: bool = False
    #: the place and size of a copy in another layout than a log directory's
    written: str = ""
    #: the output directory, if an earlier run of the same request wrote it
    done_before: str = ""
    #: the certificates of ``verify``, one for each log directory
    verified: tuple[PageResult, ...] = ()
    waves: tuple[WaveReport, ...] = ()
    #: the number of logs that a run in progress has not done
    remaining_logs: int = 0

    @property
    def status(self) -> RunStatus:
        """Failed if any log failed, else done if any log was cleaned or lost segments to the delete policy."""
        if any(log.status is LogStatus.FAILED for log in self.logs):
            return RunStatus.FAILED
        changed = any(log.status is LogStatus.CLEANED or log.expired_segments for log in self.logs)
        return RunStatus.DONE if changed else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: at least one log failed, an erasure is incomplete or its certificate does not hold, or
        the verification found a violation."""
        failed = self.status is RunStatus.FAILED or not self._erased
        return 1 if failed or any(verification.exit_code for verification in self.verified) else 0

    @property
    def is_private(self) -> bool:
        """An erasure has salted hashes of keys, and short keys can be guessed from them."""
        return bool(self.erasure)

    def errors(self) -> Iterator[str]:
        """See ``Result``: each reason with a log that failed for it; records of erased keys that remain, with the remedy."""
        failed: dict[str, list[str]] = {}
        for log in self.logs:
            if log.status is LogStatus.FAILED:
                failed.setdefault(log.reason, []).append(log.name)
        for reason, (name, *others) in failed.items():
            yield f"{name}{f' and {len(others):,} more' if others else ''}: {reason}"
        if not self.exit_code:
            return
        hint = "--include-active erases from the last segments, --accept-remaining accepts what remains"
        certificate = self.erasure.get("certificate", {})
        if certificate.get("status") == INCOMPLETE:
            message = "records of the keys remain in the log directories"
            yield f"{certificate['path']}: certificate: {message}; see the notes; {hint}"
        elif remaining := self.erasure.get("remaining_records", 0):
            logs = counted(sum(log.remaining_records > 0 for log in self.logs), "log")
            verb = "remains" if remaining == 1 else "remain"
            yield f"{counted(remaining, 'record')} of these keys {verb} in the last segment of {logs}; {hint}"

    @property
    def _erased(self) -> bool:
        """Whether an erasure has done all that the call demands; a dry run demands nothing."""
        certified = self.erasure.get("certificate", {}).get("status", HOLDS)
        if self.erasure.get("remaining_accepted", False):
            return certified in (HOLDS, INCOMPLETE)
        remaining = 0 if self.dry_run else self.erasure.get("remaining_records", 0)
        return certified == HOLDS and not remaining

    @property
    def totals(self) -> dict[str, int | float]:
        """Logs by status, and the sums of their counts."""
        by_status = {status.value: sum(log.status is status for log in self.logs) for status in LogStatus}
        sums = {name: sum(getattr(log, name) for log in self.logs) for name in _COUNTS}
        unknown = sum(log.policy_unknown for log in self.logs)
        return {"logs": len(self.logs), **by_status, "policy_unknown": unknown, **sums, "seconds": round(self.seconds, 3)}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": self.dry_run,
            "status": self.status.value,
            **self.origin,
            "totals": self.totals,
            "waves": [{**asdict(wave), "seconds": round(wave.seconds, 3)} for wave in self.waves],
            "kafka_versions": [asdict(kafka_version) for kafka_version in self.kafka_versions],
            **({"erasure": dict(self.erasure)} if self.erasure else {}),
            "logs": [
                {**asdict(log), "status": log.status.value} | {name: round(getattr(log, name), 3) for name in _TIMES}
                for log in self.logs
            ],
        }

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        """See ``Result``."""
        used_style = style or Style()
        if self.done_before:
            yield from wrapped(self.summary(), used_style)
        else:
            yield from [*_table(self, used_style), Line("")] if self.logs else []
            yield from (line for note in _notes(self) for line in wrapped(note, used_style))
            yield from wrapped(self.summary(), used_style)
        yield from (Line(self.written),) if self.written else ()
        for verification in self.verified:
            yield from verification.lines(used_style)

    def summary(self) -> str:
        """The number of logs, their outcomes, bytes on disk."""
        if self.done_before:
            return f"{self.done_before}: done already by the same request; nothing was written"
        start = "dry run, nothing written: " if self.dry_run else ""
        unknown = sum(log.policy_unknown for log in self.logs)
        tail = f", cleanup.policy of {unknown} unknown" if unknown else ""
        logs = f"{counted(len(self.logs), 'log')}: {_outcomes(self.logs, dry_run=self.dry_run)}{tail}"
        remaining = sum(log.remaining_records for log in self.logs)
        would = "would " if self.dry_run else ""
        verb = "remains" if remaining == 1 and not would else "remain"
        left = f"{counted(remaining, 'record')} of these keys {would}{verb} in last segments; " if remaining else ""
        return f"{start}{logs}; {left}{_effect(self)}in {elapsed(self.seconds)} without start-up"


def _effect(report: RunReport) -> str:
    """Bytes before and after, and the effect of .deleted files."""
    before, after = _disk(report.logs)
    share, deleted = share_freed(before, after), sum(log.deleted_bytes for log in report.logs)
    if report.copied:
        return f"{change(before, after)} in the copy, {share} smaller, "
    if not deleted:
        return f"{change(before, after)} on disk, {share} freed, "
    later = f"once .deleted files are removed; {size(after + deleted)} until then"
    return f"{change(before, after)} on disk, {share} freed, {later}; "


def outcome(log: LogReport) -> str:
    if log.status is not LogStatus.FAILED and log.effects:
        return log.effects
    cause = _CAUSES.get(log.reason_code, log.reason_code)
    return f"{log.status.value}: {cause}" if cause else log.status.value


def _disk(logs: Sequence[LogReport]) -> tuple[int, int]:
    """Bytes on disk before and after."""
    return sum(log.disk_bytes_before for log in logs), sum(log.disk_bytes_after for log in logs)


def _outcomes(logs: Sequence[LogReport], *, dry_run: bool) -> str:
    """The number of logs by outcome: ``3 cleaned, 2 expired, 13 skipped (12 policy, 1 ratio)``."""
    counts = Counter(outcome(log).partition(": ")[::2] for log in logs)
    parts = []
    for word in sorted({word for word, _ in counts}, key=lambda word: (word in ("failed", "skipped"), word)):
        causes = sorted((cause, count) for (name, cause), count in counts.items() if name == word)
        causes_text = ", ".join(f"{count} {cause}" for cause, count in causes if cause not in ("", "unknown"))
        would = "" if not dry_run or word in ("failed", "skipped") else "would be "
        parts.append(f"{sum(count for _, count in causes)} {would}{word}" + (f" ({causes_text})" if causes_text else ""))
    return ", ".join(parts) or "nothing to do"


def _notes(report: RunReport) -> Iterator[str]:
    """Facts that the table does not have."""
    compacted = [log for log in report.logs if log.compacted]
    before, after = sum(log.bytes_before for log in compacted), sum(log.bytes_after for log in compacted)
    if compacted and (before, after) != _disk(report.logs):
        yield f"in the cleaned range of {counted(len(compacted), 'log')}: {change(before, after)}"
    expired = sum(log.expired_segments for log in report.logs)
    if expired:
        sizes = size(sum(log.expired_bytes for log in report.logs))
        records = _expired_records(report.logs)
        contents = "" if records is None else f" with {counted(records, 'record')}"
        partly = ", whose records are not all counted" if records is None and any(_records(report.logs)) else ""
        yield f"{counted(expired, 'segment')} of {sizes}{contents} {'would expire' if report.dry_run else 'expired'}{partly}"
    yield from _since(report.logs)
    for note in (IN_USE, CHANGED):
        names = [log.name for log in report.logs if log.reason.endswith(f"({note})")]
        if names:
            tail = ", ..." if names[_MOST_NAMES:] else ""
            yield f"{counted(len(names), 'log')} ({note}): {', '.join(names[:_MOST_NAMES])}{tail}"
    if report.erasure:
        erased = counted(sum(log.erased_records for log in report.logs), "record")
        yield f"{erased} of {counted(report.erasure['keys_found'], 'key')} {'would be' if report.dry_run else 'were'} erased"
        yield from _not_found(report.erasure)
        yield from report.erasure["notes"]
        if certificate := report.erasure.get("certificate"):
            yield f"certificate: {certificate['status']}, {certificate['path']}"
    yield from map(str, report.kafka_versions)
    if len(report.waves) > 1:
        written, freed = (sum(getattr(wave, name) for wave in report.waves) for name in ("bytes_written", "bytes_freed"))
        yield f"{counted(len(report.waves), 'wave')}, one after the other: {size(written)} written, {size(freed)} given back"
    deleted = sum(log.deleted_bytes for log in report.logs)
    if deleted:
        verb = "would remain" if report.dry_run else "remain"
        early = compacted and not report.erasure and not report.verified
        option = "--release-early" if early else "--set file.delete.delay.ms=0"
        yield f"{size(deleted)} {verb} on disk as .deleted files: {_RELEASE} {option}"


def _since(logs: Sequence[LogReport]) -> Iterator[str]:
    """The logs of an incremental copy by what was taken from the previous one."""
    counts = Counter(log.since for log in logs)
    words = ((Since.UNCHANGED, "unchanged"), (Since.GROWN, "grown"), (Since.FULL, "copied in full"))
    parts = [f"{counts[kind.value]:,} {word}" for kind, word in words if counts[kind.value]]
    if parts:
        yield f"since the previous copy: {', '.join(parts)}; {size(sum(log.previous_bytes for log in logs))} taken from it"
    full = [f"{log.name}: {log.since_reason}" for log in logs if log.since_reason]
    yield from (f"copied in full: {reason}" for reason in full[:_MOST_NAMES])
    if full[_MOST_NAMES:]:
        yield f"copied in full: {len(full) - _MOST_NAMES:,} more; --verbose names them"


def _not_found(erasure: ErasureDocument) -> Iterator[str]:
    """Missing keys, by their lines in the given files."""
    missing: int = erasure.get("keys_not_found", 0)
    if missing:
        listed = [f"line {key['line']} of {key['file']}" for key in erasure["not_found"][:_MOST_NAMES]]
        remaining = [f"{missing - len(listed):,} more"] if listed and missing > len(listed) else []
        places = f": {', '.join([*listed, *remaining])}" if listed else ""
        verb = "was" if missing == 1 else "were"
        unread = erasure.get("logs_not_searched", 0)
        elsewhere = f"; {counted(unread, 'log')} {'was' if unread == 1 else 'were'} not searched" if unread else ""
        yield f"{missing:,} of {counted(erasure['keys_given'], 'key')} {verb} not found{places}{elsewhere}"


def _table(report: RunReport, style: Style) -> list[Line]:
    def row(name: str, logs: Sequence[LogReport]) -> Row:
        colour = next(colour for status, colour in _COLOURS.items() if any(log.status is status for log in logs))
        details = [text for log in logs if style.details for text in _details(log, named=len(logs) > 1)]
        return Row([name, *_figures(logs), _result(logs)], colour, details)

    columns = [
        Column("on disk"),
        Column("after", rank=5),
        Column("smaller"),
        Column("stored", rank=3),
        Column("records", rank=4),
        Column("segments", rank=2),
        Column("keys", rank=1),
        Column("would be" if report.dry_run else "result", right=False),
    ]
    total = Row([f"total, {counted(len(report.logs), 'log')}", *_figures(report.logs), ""], "bold")
    return log_table(columns, report.logs, _rank, row, total, style)


def _rank(logs: Sequence[LogReport]) -> tuple[bool, int, int, str, int]:
    """Failed logs first, then the most bytes freed, then the most bytes."""
    before, after = _disk(logs)
    without_failure = all(log.status is not LogStatus.FAILED for log in logs)
    return without_failure, after - before, -before, logs[0].topic, logs[0].partition


def _figures(logs: Sequence[LogReport]) -> list[str]:
    """The figures of a row; empty if nothing has changed."""
    changed = [log for log in logs if log.compacted or log.expired_segments]
    before, after = _disk(logs)
    if not changed:
        # the size of a log that failed may not be known
        unread = not before and all(log.status is LogStatus.FAILED for log in logs)
        return ["" if unread else size(before), *[""] * 6]
    merged = sum(log.segments_before - log.segments_after for log in changed if log.compacted)
    segments = merged + sum(log.expired_segments for log in changed)
    keys = sum(log.keys for log in changed)
    counts = (*_records(changed), f"-{segments:,}" if segments else "", f"{keys:,}" if keys else "")
    return [size(before), size(after), share_freed(before, after), *counts]


def _records(logs: Sequence[LogReport]) -> tuple[str, str]:
    """The stored records of the cleaned ranges and expired segments, and how many of them are lost: both at least, if those of
    some expired segments are not counted."""
    uncounted, expired = _expired_records(logs) is None, sum(log.expired_records or 0 for log in logs)
    stored = sum(log.stored_records_before for log in logs) + expired
    lost = sum(log.removed_records for log in logs) + expired
    return f"{'>' if uncounted else ''}{stored:,}" if stored else "", f"{'>' if uncounted else '-'}{lost:,}" if lost else ""


def _expired_records(logs: Iterable[LogReport]) -> int | None:
    """The records of expired segments; ``None`` if those of a log are not counted."""
    counts = [log.expired_records for log in logs if log.expired_segments]
    return None if None in counts else sum(filter(None, counts))


def _result(logs: Sequence[LogReport]) -> str:
    """The outcome of a row; of several the failures, else the most frequent."""
    counts = Counter(outcome(log).partition(": ")[0] for log in logs)
    if len(logs) == 1 or len(counts) == 1:
        causes = {outcome(log) for log in logs}
        return next(iter(causes if len(causes) == 1 else counts))
    word = "failed" if "failed" in counts else counts.most_common(1)[0][0]
    return f"{counts[word]} of {len(logs)} {word}"


def _details(log: LogReport, *, named: bool) -> Iterator[str]:
    prefix = f"{log.name}: " if named else ""
    if log.compacted:
        records = f"{log.stored_records_before:,} -> {counted(log.stored_records_after, 'record')}"
        segments = f"{log.segments_before:,} -> {counted(log.segments_after, 'segment')}"
        sizes = change(log.bytes_before, log.bytes_after)
        yield f"{prefix}offsets [{log.first_dirty_offset}, {log.end_offset}): {records}, {sizes}, {segments}"
    removed = _removed(log)
    if removed:
        yield f"{prefix}removed: {removed}"
    yield f"{prefix}{log.reason}"
    if log.since_reason:
        yield f"{prefix}copied in full: {log.since_reason}"


def _removed(log: LogReport) -> str:
    """The removed records and segments by cause; empty without any."""
    contents = "" if log.expired_records is None else f" with {counted(log.expired_records, 'record')}"
    expired = f"{counted(log.expired_segments, 'expired segment')} of {size(log.expired_bytes)}{contents}"
    parts = [
        (log.erased_records, f"{log.erased_records:,} erased"),
        (log.superseded_records, f"{log.superseded_records:,} superseded"),
        (log.tombstones_removed, counted(log.tombstones_removed, "tombstone")),
        (log.aborted_records, f"{log.aborted_records:,} aborted"),
        (log.invalid_records, f"{log.invalid_records:,} without a key"),
        (log.markers_removed, counted(log.markers_removed, "transaction marker")),
        (log.expired_segments, expired),
    ]
    return ", ".join(text for count, text in parts if count)
