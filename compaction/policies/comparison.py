"""A comparison of policies over logs, as ``dry_run`` returns it. As JSON, ``schema_version`` 1, it has never a key or a value
of a record.

| field | meaning |
| --- | --- |
| ``schema_version``, ``run_id``, ``as_of_ms``, ``status`` | as in the report of a run; ``dry_run`` is always true |
| ``seconds`` | the elapsed time of the comparison |
| ``kafka_versions``, ``tool``, ``command``, ``options``, ``settings`` | as in the report of a run |
| ``age_bounds_ms``, ``places`` | the bounds of counts by age, the number of counts by place: see below |
| ``policies`` | one object per policy, in the order given: the sums over all logs |
| ``logs`` | one object per log: ``before``, ``spread``, ``keys``, and ``policies``, one object per policy in the same order |

Counts by age are nine numbers: records with a timestamp in the future, then by age from each of ``age_bounds_ms`` to the next,
then records without a timestamp. Counts by place are fifty numbers, one for each of fifty equal offset ranges from the first
base offset to the log end offset.

As text it is a line per log or topic with the share that each policy frees, or the reason, in a word, why the log would not
change; then the legend and the totals. Policies have letters, as on the page, because their names are long.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from compaction.config.sources import CONFIGURED
from compaction.metrics import Family, Metric, document, labels_of, outcomes
from compaction.printable import printable_json
from compaction.report import LogReport, LogStatus, RunStatus, VersionUsed
from compaction.results import PageResult, Result
from compaction.screen.amounts import change, counted, elapsed, share_freed, size
from compaction.screen.text_table import Column, Line, Row, Screen, Style, letter, log_table, table, wrapped

SCHEMA_VERSION = 1
#: with more logs the page omits the conditions
MOST_EXPLAINED = 300
#: reasons that are shown in place of a figure, and their meanings
_MEANINGS = {
    "failed": "it cannot be read or cleaned",
    "refused": "many of its records have no key: a run needs --allow-keyless",
    "unknown": "no source has its cleanup.policy",
    "ratio": "too little is dirty for min.cleanable.dirty.ratio",
    "clean": "nothing was appended since it was cleaned",
    "active": "all dirty records are in the active segment; for an export, --include-active cleans it",
    "held": "all dirty records are in an open transaction, or above the high watermark",
    "lag": "min.compaction.lag.ms has not passed",
    "empty": "it has no bytes",
    "policy": "its policy neither compacts nor deletes",
    "retention": "nothing in it has expired",
    "tiered": "its segments are in tiered storage, too",
    "future": "its oldest record is in the future",
}
_OF_TOTALS = tuple(
    Family(f"policy_log_{name}", f"{name.capitalize()} of a log under a policy.", unit, "", {"": name})
    for name, unit in (("bytes", "bytes"), ("records", ""), ("segments", ""), ("tombstones", ""))
)
_ROUNDS = Family("policy_log_broker_rounds", "Rounds of a broker's cleaner under a policy.", "", "", {"": "broker_rounds"})
#: a policy's column, with the gap before it
_POLICY_CELLS = 11
_OTHER_CELLS = 27
#: the columns of totals before the last one
_TOTALS_CELLS = 40


@dataclass(frozen=True)
class LogTotals:
    """The size of a log."""

    #: bytes of its ``.log`` files
    bytes: int = 0
    #: its segments
    segments: int = 0
    #: its records, with transaction markers, as in Kafka's own statistics
    records: int = 0
    #: bytes of its records when uncompressed
    record_bytes: int = 0
    #: its records with a key and without a value
    tombstones: int = 0
    #: its data records without a key
    keyless_records: int = 0

    def __add__(self, other: LogTotals) -> LogTotals:
        return LogTotals(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(LogTotals)))


@dataclass(frozen=True)
class Distribution:
    """Records by age and by place."""

    #: records by age, between the bounds of ``age_bounds_ms``
    by_age: tuple[int, ...] = ()
    #: their uncompressed bytes by age
    bytes_by_age: tuple[int, ...] = ()
    #: records by place, in equal ranges of offsets
    by_place: tuple[int, ...] = ()

    def __add__(self, other: Distribution) -> Distribution:
        return Distribution(*(_added(getattr(self, field.name), getattr(other, field.name)) for field in fields(Distribution)))


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    if not first or not second:
        return first or second
    return tuple(a + b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class RepetitionRange:
    """The keys whose number of records is in a range."""

    #: the least number of records that such a key has
    at_least: int
    #: the greatest number of records that such a key has
    at_most: int
    #: the number of such keys
    keys: int
    #: the number of their records
    records: int


@dataclass(frozen=True)
class KeyFigures:
    """The keys of a log's data records."""

    #: distinct keys
    distinct: int = 0
    #: the number of records of the most frequent key
    most_repeated: int = 0
    #: keys by the number of their records
    repetition: tuple[RepetitionRange, ...] = ()


class OutcomeStatus(str, enum.Enum):
    """The effect of a policy on a log.

    ``refused``: a run would fail and require ``--allow-keyless``. The log's figures assume this option; in totals the log is
    unchanged. ``policy_unknown``: the log's ``cleanup.policy`` is not known. A run would not change the log, and the figures
    are those of the unchanged log.
    """

    #: a run would clean it
    CLEANED = "cleaned"
    #: a run would not change it
    SKIPPED = "skipped"
    #: a run would fail it, because many records have no key
    REFUSED = "refused"
    #: a run would not change it, because nothing is deleted on a guess
    POLICY_UNKNOWN = "policy_unknown"
    #: it cannot be read, or a run would fail it
    FAILED = "failed"

    @property
    def would(self) -> str:
        """The status in a sentence about a run that has not been made."""
        return "would be cleaned" if self is OutcomeStatus.CLEANED else self.value.replace("_", " ")


@dataclass(frozen=True)
class Outcome:
    """One log after cleaning under one policy."""

    #: the policy
    policy: str
    #: the effect of a run on the log, see the reason codes
    status: OutcomeStatus
    #: why, in a sentence
    reason: str
    #: the report of a real run
    run: LogReport
    #: the log after the run
    after: LogTotals = LogTotals()
    #: the segments that the delete policy removes
    expired: LogTotals = LogTotals()
    #: the removed records
    gone: Distribution = Distribution()
    #: of the removed records, those that the delete policy removes, by age
    expired_by_age: tuple[int, ...] = ()
    #: the rounds that a broker's cleaner needs with its dedupe buffer, 0 if the log is not compacted
    broker_rounds: int = 0
    #: a line of text per condition
    why: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The outcome as shown to users: a log that only loses expired segments is not cleaned."""
        if self.status is not OutcomeStatus.CLEANED:
            return self.status.would
        return self.run.effects or "cleaned"

    @property
    def fails(self) -> bool:
        """Whether a run would fail the log. A refusal under a policy that is only compared is a result, not a failure."""
        refused = self.status is OutcomeStatus.REFUSED and self.policy == CONFIGURED
        return refused or self.status is OutcomeStatus.FAILED

    @property
    def changes(self) -> bool:
        return self.status in (OutcomeStatus.CLEANED, OutcomeStatus.SKIPPED)


@dataclass(frozen=True)
class ComparedLog:
    """One log under all policies."""

    #: name of the topic
    topic: str
    #: number of the partition
    partition: int
    #: the log directory that has the log
    log_dir: str
    #: the log as it is
    before: LogTotals = LogTotals()
    #: its records
    spread: Distribution = Distribution()
    #: its keys
    keys: KeyFigures = KeyFigures()
    #: the log under each policy, in the order of ``policies``; in the document this field is called ``policies``
    outcomes: tuple[Outcome, ...] = ()
    #: why it has no figures; ``null`` if it has
    error: str | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def fails(self) -> bool:
        """Whether the log failed, or would fail in a run with one of the policies."""
        return self.error is not None or any(outcome.fails for outcome in self.outcomes)

    def remaining(self, policy: int) -> LogTotals:
        """The log after a run with a policy, by the policy's number: unchanged if the run fails or refuses it."""
        if self.error is not None or not self.outcomes[policy].changes:
            return self.before
        return self.outcomes[policy].after


@dataclass(frozen=True)
class PolicyTotals:
    """The sums over all logs with figures under one policy; a log that its run would not change counts as it is."""

    #: the policy; in the document this field is called ``name``
    policy: str
    #: the logs as they are
    before: LogTotals
    #: the logs after the run
    after: LogTotals
    #: the segments that the delete policy removes
    expired: LogTotals
    #: the removed records
    gone: Distribution
    #: the number of logs by status, ``cleaned``, ``skipped``, ``refused``, ``policy_unknown`` and ``failed``; in the document
    #: this field is called ``logs``
    statuses: dict[str, int]


@dataclass(frozen=True)
class Comparison(PageResult):
    """All logs under all policies, named in the order given; ``kafka_versions`` and ``origin`` as in ``RunReport``."""

    page = "compare"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"run", "bytes_by_age", "settings", "options"})

    run_id: str
    as_of_ms: int
    policies: tuple[str, ...]
    logs: tuple[ComparedLog, ...]
    age_bounds_ms: tuple[int, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict)

    @property
    def status(self) -> RunStatus:
        """Failed if any log fails; else done if any policy would change any log."""
        if any(log.fails for log in self.logs):
            return RunStatus.FAILED
        outcomes = [outcome for log in self.logs for outcome in log.outcomes]
        worked = any(outcome.run.status is LogStatus.CLEANED or outcome.run.expired_segments for outcome in outcomes)
        return RunStatus.DONE if worked else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """1 if a log failed, or would fail in a run; else 0."""
        return int(self.status is RunStatus.FAILED)

    @property
    def refused(self) -> int:
        """The number of logs that a run with one of the policies would refuse."""
        return sum(any(outcome.status is OutcomeStatus.REFUSED for outcome in log.outcomes) for log in self.logs)

    def errors(self) -> Iterator[str]:
        """See ``Result``: the logs that cannot be read, then those on which a run would fail."""
        yield from (f"{log.name}: {log.error}" for log in self.logs if log.error is not None)
        yield from (text for outcome, text in self._reasons() if outcome.fails)

    def refusals(self) -> Iterator[str]:
        """The other logs that a run would refuse, a line each."""
        refused = ((outcome, text) for outcome, text in self._reasons() if outcome.status is OutcomeStatus.REFUSED)
        yield from (f"refused: {text}" for outcome, text in refused if not outcome.fails)

    def _reasons(self) -> Iterator[tuple[Outcome, str]]:
        return ((each, f"{log.name}, {each.policy}: {each.reason}") for log in self.logs for each in log.outcomes)

    def totals(self) -> tuple[PolicyTotals, ...]:
        """The sums per policy, in the order of ``policies``."""
        return tuple(self._totals(number, policy) for number, policy in enumerate(self.policies))

    def _totals(self, number: int, policy: str) -> PolicyTotals:
        pairs = [(log, log.outcomes[number]) for log in self.logs if log.error is None]
        statuses = {status.value: sum(outcome.status is status for _, outcome in pairs) for status in OutcomeStatus}
        changed = [outcome for _, outcome in pairs if outcome.changes]
        before, after = _sum(log.before for log, _ in pairs), _sum(log.remaining(number) for log, _ in pairs)
        gone = sum((outcome.gone for outcome in changed), Distribution())
        return PolicyTotals(policy, before, after, _sum(outcome.expired for outcome in changed), gone, statuses)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": True,
            "status": self.status.value,
            "seconds": round(self.seconds, 3),
            **self.origin,
            "age_bounds_ms": list(self.age_bounds_ms),
            "places": max((len(log.spread.by_place) for log in self.logs), default=0),
            "kafka_versions": [asdict(kafka_version) for kafka_version in self.kafka_versions],
            "policies": [_totals_json(asdict(totals)) for totals in self.totals()],
            "logs": [_log_json(asdict(log)) for log in self.logs],
        }

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``; with very many logs without the conditions of each."""
        if len(self.logs) <= MOST_EXPLAINED:
            return self.to_dict()
        logs = (replace(log, outcomes=tuple(replace(outcome, why=()) for outcome in log.outcomes)) for log in self.logs)
        return replace(self, logs=tuple(logs)).to_dict()

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        """See ``Result``: each log under each policy, the legend, and the totals."""
        used = style or Style()
        for number, name in enumerate(self.policies):
            # a long name is broken after a comma
            spaced = name.replace(",", ", ") if len(name) + 3 > used.width else name
            yield from wrapped(f"{letter(number)}  {spaced}", used, hanging=3, colour="bold")
        yield Line("")
        # the policies of each table, as many as fit the width
        most = max(1, (used.width - _OTHER_CELLS) // _POLICY_CELLS)
        numbers = range(len(self.policies))
        for first in numbers[::most]:
            yield from _table(self.logs, numbers[first : first + most], used)
        yield from _meanings(self, used)
        yield from _totals(self, used)
        yield Line("")
        yield from (line for kafka_version in self.kafka_versions for line in wrapped(str(kafka_version), used))
        yield from wrapped(self.summary(), used)

    def summary(self) -> str:
        """The number of logs and failures, and the bytes that each policy frees."""
        totals = enumerate(self.totals())
        policies = [f"{letter(number)} {change(total.before.bytes, total.after.bytes)}" for number, total in totals]
        failed = sum(log.fails for log in self.logs)
        tail = f", {failed} failed" if failed else ""
        time = f"in {elapsed(self.seconds)} without start-up"
        return f"dry run, nothing written: {counted(len(self.logs), 'log')}{tail}; {', '.join(policies)} on disk, {time}"


def _sum(totals: Iterable[LogTotals]) -> LogTotals:
    return sum(totals, LogTotals())


@dataclass(frozen=True)
class Explanation(Result):
    """All conditions of each policy for each log, without figures."""

    logs: Sequence[ComparedLog]
    as_of_ms: int
    origin: Mapping[str, object] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return int(any(log.error is not None for log in self.logs))

    def to_json(self) -> str:
        """The JSON document: for each policy ``status``, ``reason`` and ``why``."""
        logs = []
        for log in self.logs:
            policies = [
                {"policy": each.policy, "status": each.status.value, "reason": each.reason, "why": list(each.why)}
                for each in log.outcomes
            ]
            head = {name: getattr(log, name) for name in ("topic", "partition", "log_dir", "error")}
            logs.append({**head, "policies": policies})
        document = {"schema_version": SCHEMA_VERSION, "as_of_ms": self.as_of_ms, "dry_run": True, **self.origin, "logs": logs}
        return printable_json(json.dumps(document, indent=1, ensure_ascii=False)) + "\n"

    def print_on(self, screen: Screen) -> None:
        screen.print(self.lines(screen.style))

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        used = style or Style()
        for log in self.logs:
            yield from wrapped(f"{log.name} in {log.log_dir}", used, hanging=2)
            if log.error is not None:
                yield from wrapped(f"failed: {log.error}", used, indent=2, hanging=2)
            for outcome in log.outcomes:
                head = f"{outcome.policy}: {outcome.status.would}: {outcome.reason}"
                yield from wrapped(head, used, indent=2, hanging=2)
                for text in (line for why in outcome.why for line in why.split("\n")):
                    # a remedy is indented
                    indent, hanging = (10, 0) if text.startswith(" ") else (4, 6)
                    yield from wrapped(text.strip(), used, indent=indent, hanging=hanging)


def _totals_json(totals: dict[str, Any]) -> dict[str, Any]:
    return {"name": totals.pop("policy"), "logs": totals.pop("statuses"), **totals}


def _log_json(log: dict[str, Any]) -> dict[str, Any]:
    outcomes = log.pop("outcomes")
    for outcome in outcomes:
        run = outcome["run"]
        outcome["status"], run["status"] = outcome["status"].value, run["status"].value
        run["seconds"] = round(run["seconds"], 3)
    return {**log, "policies": outcomes}


def _table(logs: Sequence[ComparedLog], policies: range, style: Style) -> list[Line]:
    def row(name: str, own: Sequence[ComparedLog]) -> Row:
        texts = [text for log in own if style.details for text in _details(log, policies, named=len(own) > 1)]
        return _row(name, own, policies, "bold red" if any(log.fails for log in own) else "", texts)

    columns = [Column("on disk"), Column("records", rank=2), Column("keys", rank=1)]
    columns += [Column(f"{letter(number)} freed") for number in policies]
    total = _row(f"total, {counted(len(logs), 'log')}", logs, policies, "bold", ())
    return [*log_table(columns, logs, _rank, row, total, style), Line("")]


def _row(name: str, logs: Sequence[ComparedLog], policies: range, colour: str, details: Sequence[str]) -> Row:
    before, keys = _sum(log.before for log in logs), sum(log.keys.distinct for log in logs)
    cells = [name, size(before.bytes), f"{before.records:,}", f"{keys:,}"]
    if all(log.error is not None for log in logs):
        cells[1:] = ["", "", ""]
    return Row([*cells, *(_cell(logs, number) for number in policies)], colour, details)


def _cell(logs: Sequence[ComparedLog], number: int) -> str:
    """The share that the policy frees, or the reason why none of the logs would change."""
    before = sum(log.before.bytes for log in logs)
    after = sum(log.remaining(number).bytes for log in logs)
    reasons = {_reason(log, number) for log in logs}
    return next(iter(reasons)) if len(reasons) == 1 and "" not in reasons else share_freed(before, after)


def _reason(log: ComparedLog, number: int) -> str:
    """Why a policy would not change a log, in a word; empty if it would."""
    if log.error is not None:
        return "failed"
    outcome = log.outcomes[number]
    if outcome.status is OutcomeStatus.POLICY_UNKNOWN:
        return "unknown"
    if outcome.status is OutcomeStatus.SKIPPED:
        return outcome.run.reason_code or "skipped"
    return "" if outcome.status is OutcomeStatus.CLEANED else outcome.status.value


def _rank(logs: Sequence[ComparedLog]) -> tuple[bool, int, int, str, int]:
    """Failed logs first, then the most bytes freed by any policy, then the most bytes."""
    before = sum(log.before.bytes for log in logs)
    policies = range(min((len(log.outcomes) for log in logs if log.error is None), default=0))
    least_bytes = min((sum(log.remaining(number).bytes for log in logs) for number in policies), default=before)
    return not any(log.fails for log in logs), least_bytes - before, -before, logs[0].topic, logs[0].partition


def _details(log: ComparedLog, policies: range, *, named: bool) -> Iterator[str]:
    prefix = f"{log.name}: " if named else ""
    if log.error is not None:
        yield f"{prefix}failed: {log.error}"
        return
    for number in policies:
        outcome = log.outcomes[number]
        rounds = f", {outcome.broker_rounds} rounds of a broker" if outcome.broker_rounds > 1 else ""
        counts = ", ".join(counted(getattr(outcome.after, f"{name}s"), name) for name in ("segment", "record", "tombstone"))
        without_figures = outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.POLICY_UNKNOWN)
        remaining = "" if without_figures else f": {size(outcome.after.bytes)} in {counts} remaining{rounds}"
        yield f"{prefix}{letter(number)} {outcome.status.would}{remaining}; {outcome.reason}"


def _meanings(comparison: Comparison, style: Style) -> list[Line]:
    numbers = range(len(comparison.policies))
    used = {_reason(log, number) for log in comparison.logs for number in numbers}
    lines = [
        line
        for word, text in _MEANINGS.items()
        if word in used
        for line in wrapped(f"{word + ':':<10} {text}", style, hanging=11, colour="dim")
    ]
    return [*lines, Line("")] if lines else []


def _totals(comparison: Comparison, style: Style) -> list[Line]:
    """The totals of each policy; a log that would not be changed counts as it is."""
    columns = [Column("policy", right=False), *(Column(title) for title in ("on disk", "after", "freed"))]
    logs = comparison.logs
    failed = Counter({"failed": sum(log.error is not None for log in logs)})
    counts = [
        Counter(log.outcomes[number].words for log in logs if log.error is None) + failed
        for number in range(len(comparison.policies))
    ]
    would = [", ".join(f"{count} {words}" for words, count in of_policy.most_common()) for of_policy in counts]
    in_rows = max(map(len, would), default=0) <= style.width - _TOTALS_CELLS
    if in_rows:
        columns.append(Column("logs would be", right=False))
    rows = []
    for number, total in enumerate(comparison.totals()):
        before, after = total.before.bytes, total.after.bytes
        figures = [size(before), size(after), share_freed(before, after)]
        outcome_cells, details = ([would[number]], []) if in_rows else ([], [f"logs would be: {would[number]}"])
        rows.append(Row([letter(number), *figures, *outcome_cells], details=details))
    return table(columns, rows, style)


def comparison_metrics(comparison: Comparison) -> str:
    """A comparison's figures as OpenMetrics text; see ``compaction.metrics`` for the rules and labels.

    | metric | meaning |
    | --- | --- |
    | ``kafka_log_compaction_run_info`` | 1, with ``run_id``, ``status`` and ``dry_run`` |
    | ``kafka_log_compaction_run_seconds``, ``…_as_of_timestamp_seconds``,
      ``…_last_success_timestamp_seconds`` | as of a run |
    | ``kafka_log_compaction_log_failed`` | 1 if the log could not be read |
    | ``kafka_log_compaction_policy_logs`` | readable logs by ``policy`` and ``status`` |
    | ``kafka_log_compaction_policy_outcome_logs`` | the same by ``policy`` and ``outcome``, as of a run |
    | ``kafka_log_compaction_policy_log_bytes``, ``…_records``, ``…_segments``, ``…_tombstones`` | the size of a log under a
      ``policy``, by ``state``: ``before``, ``after`` and ``expired`` |
    | ``kafka_log_compaction_policy_log_broker_rounds`` | the rounds that a broker's cleaner needs |
    """
    return document(comparison, _of_policies(comparison), status=comparison.status.value, dry_run=True)


def _of_policies(comparison: Comparison) -> Iterator[Metric]:
    failed = [(labels_of(log), int(log.error is not None)) for log in comparison.logs]
    yield Metric("log_failed", "Whether a log failed.", "", failed)
    readable = [log for log in comparison.logs if log.error is None]
    totals = comparison.totals()
    by_status = ((total.policy, status, count) for total in totals for status, count in total.statuses.items())
    counts = [({"policy": policy, "status": status}, count) for policy, status, count in by_status]
    yield Metric("policy_logs", "Logs by their status under a policy.", "", counts)
    words = {policy: [log.outcomes[number].words for log in readable] for number, policy in enumerate(comparison.policies)}
    yield outcomes("policy_outcome_logs", [({"policy": policy}, each) for policy, each in words.items()])
    pairs = [(log, outcome) for log in readable for outcome in log.outcomes]
    states = [
        (labels_of(log) | {"policy": outcome.policy, "state": state}, totals)
        for log, outcome in pairs
        for state, totals in _states(log, outcome).items()
    ]
    yield from (family.of(states) for family in _OF_TOTALS)
    yield _ROUNDS.of((labels_of(log) | {"policy": outcome.policy}, outcome) for log, outcome in pairs)


def _states(log: ComparedLog, outcome: Outcome) -> dict[str, LogTotals]:
    if not outcome.changes:
        return {"before": log.before, "after": log.before, "expired": LogTotals()}
    return {"before": log.before, "after": outcome.after, "expired": outcome.expired}
