"""The result of ``count``: figures by topic and by log, with the largest keys on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from compaction.counting.html_page import to_html
from compaction.counting.usage_report import encoded, shown_key, topic_json, usage_json, usage_lines, window_start
from compaction.printable import printable
from compaction.results import Result
from compaction.screen.amounts import size
from compaction.screen.text_table import Column, Line, Row, Style, table
from compaction.source.view_options import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from compaction.counting.count_logs import CountPlan, LogCount, TopicCount
    from compaction.counting.key_groups import KeyGroups
    from compaction.counting.key_totals import KeySummary
    from compaction.counting.task_totals import RecordCounts
#: the records that a count by an isolation level, and one of stored bytes, is of
_RULES = {
    READ_COMMITTED: "rule: read_committed (log start to last stable offset, no aborted data)",
    READ_UNCOMMITTED: "rule: read_uncommitted (log start to high watermark, with aborted data)",
}
_STORED = "rule: all stored records (also aborted ones, and those below the log start)"
_COLUMNS = (
    Column("topic", right=False),
    *(Column(title) for title in ("records", "keys", "deleted keys", "tombstones", "no key", "data")),
)


@dataclass(frozen=True)
class CountReport(Result):
    """The counts of a call.

    :ivar plan: the topics with their logs
    :ivar isolation_level: of the consumer that would read the counted records; bytes are those of all stored records
    :ivar partitions: whether the text has a line for each partition
    :ivar in_use: the log directories that a broker or another run held: their figures are a snapshot
    :ivar stored: the bytes of all stored records were counted; ``group_by``: how their keys are grouped; ``as_of_ms``: up to
        when their ages were counted, ms since the epoch
    """

    plan: CountPlan
    isolation_level: str
    partitions: bool = False
    stored: bool = False
    group_by: KeyGroups | None = None
    as_of_ms: int = 0
    in_use: frozenset[str] = frozenset()

    @property
    def exit_code(self) -> int:
        """1 if a log could not be read; the others were counted."""
        return 1 if self.failed else 0

    @property
    def failed(self) -> Sequence[LogCount]:
        """The logs that could not be read."""
        return [log for log in self.plan.logs if log.error is not None]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        topics = [_topic_json(topic, self) for topic in self.plan.topics]
        return {"schema_version": 1, "isolation_level": self.isolation_level, "topics": topics}

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The logs."""
        return [{"topic": topic["topic"], **log} for topic in self.to_dict()["topics"] for log in topic["partitions"]]

    def to_html(self) -> str:
        """Where the bytes are, as one HTML page.

        :raises UsageError: the bytes were not counted
        """
        return to_html(self)

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        return _lines(self, style or Style())


def _lines(report: CountReport, style: Style) -> Iterator[Line]:
    """The result as text."""
    plan, rows = report.plan, []
    for topic in plan.topics:
        rows.append(_row(topic.topic, topic.counts, topic.keys.keys, _deleted(topic), failed=topic.failed))
        for log in topic.logs if report.partitions else ():
            name = f"  {log.location.topic_partition.partition}"
            rows.append(_row(name, log.counts, log.keys.keys, log.keys.deleted, failed=log.error is not None))
    counted = [topic for topic in plan.topics if not topic.failed]
    if len(counted) > 1:
        rows.append(_total(counted))
    yield from table(_COLUMNS, rows, style)
    yield Line(_RULES[report.isolation_level])
    for log_dir in sorted(report.in_use):
        yield Line(f"in use; figures are a snapshot: {printable(log_dir)}")
    for topic in plan.topics:
        if topic.failed:
            continue
        if report.stored:
            yield from usage_lines(topic, report.group_by, style)
        if topic.keys.largest:
            yield Line("")
            yield Line(f"largest keys of {printable(topic.topic)}:")
            for key_count in topic.keys.largest:
                amount = key_count.stored_bytes if report.stored else key_count.bytes
                yield Line(f"{size(amount):>12}  {key_count.records:>12,} records  {shown_key(key_count.key, report.group_by)}")
        if report.stored:
            yield Line(_STORED)


def _total(topics: Sequence[TopicCount]) -> Row:
    """The sums over topics; a key of several topics counts in each."""
    total, *others = (topic.counts for topic in topics)
    for counts in others:
        total.add(counts)
    return _row("total", total, sum(topic.keys.keys for topic in topics), sum(map(_deleted, topics)), failed=False)


def _deleted(topic: TopicCount) -> int:
    return sum(log.keys.deleted for log in topic.logs)


def _row(name: str, counts: RecordCounts, keys: int, deleted: int, *, failed: bool) -> Row:
    if failed:
        return Row([name, "failed", *[""] * (len(_COLUMNS) - 2)], "bold red")
    figures = (counts.records, keys, deleted, counts.tombstones, counts.keyless)
    return Row([name, *(f"{figure:,}" for figure in figures), size(counts.bytes)])


def _topic_json(topic: TopicCount, report: CountReport) -> dict[str, Any]:
    logs = [_log_json(log, report) for log in topic.logs]
    if topic.failed:
        return {"topic": topic.topic, "status": "failed", "partitions": logs}
    figures = {**asdict(topic.counts), "keys": topic.keys.keys, "deleted_keys": _deleted(topic)}
    largest = {"largest_keys": _keys_json(topic.keys, report.stored, report.group_by)}
    usage = {"usage": topic_json(topic, report.group_by)} if report.stored else {}
    return {"topic": topic.topic, "status": "counted", **figures, **largest, **usage, "partitions": logs}


def _log_json(log: LogCount, report: CountReport) -> dict[str, Any]:
    log_dir = log.location.log_dir
    identity = {"partition": log.location.topic_partition.partition, "log_dir": log_dir, "in_use": log_dir in report.in_use}
    if log.error is not None:
        return {**identity, "status": "failed", "reason": log.error}
    figures = {**asdict(log.counts), "keys": log.keys.keys, "deleted_keys": log.keys.deleted}
    usage = {} if log.usage is None else {"usage": usage_json(log.usage)}
    largest = _keys_json(log.keys, log.usage is not None, report.group_by)
    return {**identity, "status": "counted", **figures, "largest_keys": largest, **usage}


def _keys_json(keys: KeySummary, with_bytes: bool, group_by: KeyGroups | None) -> list[dict[str, Any]]:
    rows = []
    for entry in keys.largest:
        found = None if group_by is None else group_by.windowed_key(entry.key)
        window = {} if found is None else {"window_start": window_start(found[1])}
        rows.append({**entry._asdict(), "key": encoded(entry.key), **window})
    # without a count of bytes, they are 0
    return [{name: row[name] for name in row if with_bytes or name != "stored_bytes"} for row in rows]
