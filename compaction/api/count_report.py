"""The result of ``count``: figures by topic and by log, with the largest keys on request."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from compaction.printable import printable
from compaction.results import Result
from compaction.screen.amounts import size
from compaction.screen.text_table import Column, Line, Row, Style, table

if TYPE_CHECKING:
    from compaction.source.count_logs import CountPlan, LogCount, TopicCount
    from compaction.source.key_totals import KeyCount, RecordCounts

_COLUMNS = (
    Column("topic", right=False),
    *(Column(title) for title in ("records", "keys", "deleted keys", "tombstones", "no key", "data")),
)
_KEY_CHARACTERS = 48


@dataclass(frozen=True)
class CountReport(Result):
    """The counts of a call.

    :ivar plan: the topics with their logs
    :ivar partitions: whether the text has a line for each partition
    """

    plan: CountPlan
    isolation_level: str
    partitions: bool = False

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
        topics = [_topic_json(topic) for topic in self.plan.topics]
        return {"schema_version": 1, "isolation_level": self.isolation_level, "topics": topics}

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The logs."""
        return [{"topic": topic["topic"], **log} for topic in self.to_dict()["topics"] for log in topic["partitions"]]

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        return _lines(self.plan, style or Style(), partitions=self.partitions)


def _lines(plan: CountPlan, style: Style, *, partitions: bool) -> Iterator[Line]:
    """The result as text."""
    rows = []
    for topic in plan.topics:
        deleted = sum(log.deleted_keys for log in topic.logs)
        rows.append(_row(topic.topic, topic.counts, topic.keys, deleted, failed=topic.failed))
        for log in topic.logs if partitions else ():
            name = f"  {log.location.topic_partition.partition}"
            rows.append(_row(name, log.counts, log.keys, log.deleted_keys, failed=log.error is not None))
    yield from table(_COLUMNS, rows, style)
    for topic in plan.topics:
        if topic.largest and not topic.failed:
            yield Line("")
            yield Line(f"largest keys of {printable(topic.topic)}:")
            for key_count in topic.largest:
                yield Line(f"{size(key_count.bytes):>12}  {key_count.records:>12,} records  {_shown(key_count.key)}")


def _row(name: str, counts: RecordCounts, keys: int, deleted: int, *, failed: bool) -> Row:
    if failed:
        return Row([name, "failed", *[""] * (len(_COLUMNS) - 2)], "bold red")
    figures = (counts.records, keys, deleted, counts.tombstones, counts.keyless)
    return Row([name, *(f"{figure:,}" for figure in figures), size(counts.bytes)])


def _shown(key: bytes) -> str:
    """A key on one line: text, or hexadecimal if it is not UTF-8."""
    try:
        text = printable(key.decode())
    except UnicodeDecodeError:
        text = f"0x{key.hex()}"
    return text if len(text) <= _KEY_CHARACTERS else f"{text[:_KEY_CHARACTERS]}… ({len(key):,} bytes)"


def _topic_json(topic: TopicCount) -> dict[str, Any]:
    logs = [_log_json(log) for log in topic.logs]
    if topic.failed:
        return {"topic": topic.topic, "status": "failed", "partitions": logs}
    figures = {**asdict(topic.counts), "keys": topic.keys, "deleted_keys": sum(log.deleted_keys for log in topic.logs)}
    return {"topic": topic.topic, "status": "counted", **figures, "largest_keys": _keys_json(topic.largest), "partitions": logs}


def _log_json(log: LogCount) -> dict[str, Any]:
    identity = {"partition": log.location.topic_partition.partition, "log_dir": log.location.log_dir}
    if log.error is not None:
        return {**identity, "status": "failed", "reason": log.error}
    figures = {**asdict(log.counts), "keys": log.keys, "deleted_keys": log.deleted_keys}
    return {**identity, "status": "counted", **figures, "largest_keys": _keys_json(log.largest)}


def _keys_json(keys: Sequence[KeyCount]) -> list[dict[str, Any]]:
    return [{**key._asdict(), "key": _encoded(key.key)} for key in keys]


def _encoded(key: bytes) -> dict[str, str]:
    try:
        return {"text": key.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(key).decode()}
