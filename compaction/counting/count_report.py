"""The result of ``count``: figures by topic and by log, with the largest keys on request.

As text, as JSON, and as a page, whose script reads the objects of the JSON document. ``count --bytes`` adds where the bytes
are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from compaction.printable import printable
from compaction.results import PageResult
from compaction.screen.amounts import counted, size
from compaction.screen.text_table import Column, Line, Row, Style, table
from compaction.source.read_columns import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from compaction.counting.count_logs import CountPlan, LogCount, TopicCount
    from compaction.counting.key_totals import KeyGroups, KeySummary

#: longer keys are cut to the second number of characters
_KEY_CHARACTERS, _CUT_CHARACTERS = 48, 30
_CELL = ("records", "bytes", "stored_bytes")
#: the titles of these columns
_CELL_TITLES = ("records", "keys and values", "stored")
#: the names of a topic, by their JSON fields
_TITLES = {"groups": "group of keys", "headers": "header", "producers": "producer id"}


def topic_json(topic: TopicCount, group_by: KeyGroups | None) -> dict[str, Any]:
    """The JSON object of a topic: the sum over its logs; its groups of keys, headers and producers."""
    objects: dict[str, Any] = {}
    for names in list(_TITLES)[group_by is None :]:
        summary = topic.named(names)
        largest = [
            {**_name_json(entry.key, names, group_by), **{name: getattr(entry, name) for name in _CELL}}
            for entry in summary.largest
        ]
        objects[names] = {"distinct": summary.keys, "total": summary.total._asdict(), "largest": largest}
    return {**topic.usage.to_dict(), **objects}


def _name_json(name: bytes, names: str, group_by: KeyGroups | None) -> dict[str, Any]:
    if names == "producers":
        return {"producer_id": int(name)}
    if names == "groups" and group_by is not None and group_by.windowed:
        return {"window_start": window_start(name)}
    return {"header" if names == "headers" else "group": encoded(name)}


def window_start(start: bytes) -> str:
    """The start of a window (int64, ms) as a time."""
    return f"{np.datetime64(int.from_bytes(start, 'big', signed=True), 'ms')}Z"


#: a row of a table: a name, its numbers, and the total of which the last number is a share
_UsageRow = tuple[str, Sequence[int], int]


def _usage_tables(name: str, usage: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Sequence[_UsageRow]]]:
    """Where the bytes of the topic ``name`` are, by ``topic_json``: the titles of each table, and its rows."""
    total = usage["file_bytes"]
    parts = [(part.replace("_", " "), size) for part, size in usage["components"].items() if size]
    yield (name, "bytes"), [(part, [size], total) for part, size in (*parts, (".log files", total))]
    states = [
        (", ".join(filter(None, (row["state"].replace("_", " "), row["age"]))), _numbers(row), total) for row in usage["states"]
    ]
    yield ("state and age", *_CELL_TITLES), _summed(states, total)
    yield ("value", *_CELL_TITLES), _summed([(row["value"], _numbers(row), total) for row in usage["value_sizes"]], total)
    codecs = [(row["codec"], _numbers(row), row["uncompressed_bytes"]) for row in usage["codecs"]]
    yield ("codec", "uncompressed", "stored"), _summed(codecs, sum(numbers[0] for _, numbers, _ in codecs))
    for names in (names for names in _TITLES if names in usage):
        rows = [(_shown_name(row), _numbers(row), total) for row in usage[names]["largest"]]
        if more := usage[names]["distinct"] - len(rows):
            rest = [whole - shown for whole, shown in zip(usage[names]["total"].values(), _sums(rows), strict=True)]
            rows.append((f"and {more:,} more", rest, total))
        titles = ("headers", "names and values", "stored") if names == "headers" else _CELL_TITLES
        yield (_TITLES[names], *titles), _summed(rows, total)


def _summed(rows: Sequence[_UsageRow], whole: int) -> Sequence[_UsageRow]:
    """Several rows with their sums, whose last number is a share of ``whole``."""
    return [*rows, ("total", _sums(rows), whole)] if len(rows) > 1 else rows


def _sums(rows: Sequence[_UsageRow]) -> list[int]:
    return [sum(numbers) for numbers in zip(*(numbers for _, numbers, _ in rows), strict=True)]


def _usage_lines(topic: TopicCount, group_by: KeyGroups | None, style: Style) -> Iterator[Line]:
    """Where the bytes of a topic are, as text."""
    for titles, rows in _usage_tables(topic.topic, topic_json(topic, group_by)):
        if not rows:
            continue
        columns = [Column(titles[0], right=False), *map(Column, titles[1:]), Column("share")]
        cells = [
            [name, *(f"{number:,}" for number in numbers), f"{100 * numbers[-1] / total:.1f} %" if total else ""]
            for name, numbers, total in rows
        ]
        yield Line("")
        yield from table(columns, map(Row, cells), style)


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [number for name, number in row.items() if name == "records" or name.endswith("bytes")]


def _shown_name(row: Mapping[str, Any]) -> str:
    name = next(iter(row.values()))
    if isinstance(name, dict):
        return shown(name["text"].encode() if "text" in name else b64decode(name["base64"]))
    return str(name) if name != -1 else "none"


def shown_key(key: bytes, group_by: KeyGroups | None) -> str:
    """A key on one line, with the start of its window if keys are grouped by windows."""
    found = None if group_by is None else group_by.windowed_key(key)
    return shown(key) if found is None else f"{shown(found[0])} @ {window_start(found[1])}"


def shown(key: bytes) -> str:
    """A key on one line: text, or hexadecimal if it is not UTF-8."""
    try:
        text = printable(key.decode())
    except UnicodeDecodeError:
        text = f"0x{key.hex()}"
    return text if len(text) <= _KEY_CHARACTERS else f"{text[:_CUT_CHARACTERS]}… ({len(key):,} bytes)"


def encoded(key: bytes) -> dict[str, str]:
    """A key in JSON."""
    try:
        return {"text": key.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(key).decode()}


#: the records that a count by an isolation level, and one of stored bytes, is of
_RULES = {
    READ_COMMITTED: "rule: read_committed (log start to last stable offset, no aborted data)",
    READ_UNCOMMITTED: "rule: read_uncommitted (log start to high watermark, with aborted data)",
}
_STORED = "rule: all stored records (also aborted ones, and those below the log start)"

#: topics of their own on the page, the largest ones
MOST_TOPICS = 200

#: the figures of a topic and of a log, by their JSON fields, and their titles
_FIGURES = ("records", "keys", "deleted_keys", "tombstones", "keyless", "bytes")
_COLUMNS = (Column("topic", right=False), *map(Column, ("records", "keys", "deleted keys", "tombstones", "no key", "data")))


@dataclass(frozen=True)
class CountReport(PageResult):
    """The counts of a call.

    :ivar plan: the topics with their logs
    :ivar isolation_level: of the consumer that would read the counted records; bytes are those of all stored records
    :ivar partitions: whether the text has a line for each partition
    :ivar in_use: the log directories that a broker or another run held: their figures are a snapshot
    :ivar stored: the bytes of all stored records were counted; ``group_by``: how their keys are grouped; ``as_of_ms``: up to
        when their ages were counted, ms since the epoch
    """

    page = "count"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"partitions"})

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

    def errors(self) -> Iterator[str]:
        """See ``Result``."""
        return (f"{log.location.topic_partition}: {log.error}" for log in self.failed)

    def to_dict(self) -> dict[str, Any]:
        topics = [_topic_json(topic, self) for topic in self.plan.topics]
        return {"schema_version": 1, "isolation_level": self.isolation_level, "topics": topics}

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{"topic": topic["topic"], **log} for topic in self.to_dict()["topics"] for log in topic["partitions"]]

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``: all topics together, and each of them, or as many of the largest ones as fit."""
        topics = [topic for topic in self.plan.topics if not topic.failed]
        largest = sorted(topics, key=lambda topic: (-self._size(topic), topic.topic))[:MOST_TOPICS]
        about = f"{counted(len(self.plan.topics), 'topic')} of {counted(len(self.plan.logs), 'log')}, which were only read."
        if len(topics) > len(largest):
            about += f" The {MOST_TOPICS} largest topics can be chosen; the result as JSON has the others."
        total, keys = self.plan.counted, sum(topic.keys.keys for topic in topics)
        return {
            "as_of_ms": self.as_of_ms,
            "stored": self.stored,
            "about": about,
            "notes": [*self.errors()],
            "total": {"topics": len(topics), **asdict(total.counts), "keys": keys, "usage": total.usage.to_dict()},
            "topics": [self._named(topic) for topic in largest],
        }

    def _size(self, topic: TopicCount) -> int:
        return topic.usage.file_bytes if self.stored else topic.counts.bytes

    def _named(self, topic: TopicCount) -> dict[str, Any]:
        """The JSON object of a topic, with the names of keys, groups, headers and producers as they are shown."""
        document = _topic_json(topic, self)
        for row, entry in zip(document["largest_keys"], topic.keys.largest, strict=True):
            row["name"] = shown_key(entry.key, self.group_by)
        for row in (row for names in _TITLES for row in document.get("usage", {}).get(names, {}).get("largest", ())):
            row["name"] = _shown_name(row)
        return document

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        used, rows, counted_topics = style or Style(), [], []
        for topic in self.plan.topics:
            figures = _figures(topic, topic.logs)
            rows.append(_row(topic.topic, figures))
            counted_topics += [] if figures is None else [figures]
            for log in topic.logs if self.partitions else ():
                rows.append(_row(f"  {log.location.topic_partition.partition}", _figures(log, [log])))
        if len(counted_topics) > 1:
            # a key of several topics counts in each
            rows.append(_row("total", {name: sum(figures[name] for figures in counted_topics) for name in _FIGURES}))
        yield from table(_COLUMNS, rows, used)
        yield Line(_RULES[self.isolation_level])
        for log_dir in sorted(self.in_use):
            yield Line(f"in use; figures are a snapshot: {printable(log_dir)}")
        for topic in self.plan.topics:
            if topic.failed:
                continue
            if self.stored:
                yield from _usage_lines(topic, self.group_by, used)
            if topic.keys.largest:
                yield Line("")
                yield Line(f"largest keys of {printable(topic.topic)}:")
                for key in topic.keys.largest:
                    amount = key.stored_bytes if self.stored else key.bytes
                    yield Line(f"{size(amount):>9}  {key.records:>10,} records  {shown_key(key.key, self.group_by)}")
            if self.stored:
                yield Line(_STORED)


def _figures(counted_logs: TopicCount | LogCount, logs: Sequence[LogCount]) -> dict[str, int] | None:
    """The figures of a topic or a log, ``None`` if it failed. Deleted keys are the sum over the ``logs``."""
    if any(log.error is not None for log in logs):
        return None
    deleted = sum(log.keys.deleted for log in logs)
    return {**asdict(counted_logs.counts), "keys": counted_logs.keys.keys, "deleted_keys": deleted}


def _row(name: str, figures: Mapping[str, int] | None) -> Row:
    if figures is None:
        return Row([name, "failed", *[""] * (len(_COLUMNS) - 2)], "bold red")
    *numbers, data = (figures[each] for each in _FIGURES)
    return Row([name, *(f"{number:,}" for number in numbers), size(data)])


def _topic_json(topic: TopicCount, report: CountReport) -> dict[str, Any]:
    logs, figures = [_log_json(log, report) for log in topic.logs], _figures(topic, topic.logs)
    if figures is None:
        return {"topic": topic.topic, "status": "failed", "partitions": logs}
    usage = {"usage": topic_json(topic, report.group_by)} if report.stored else {}
    largest = _keys_json(topic.keys, report)
    return {"topic": topic.topic, "status": "counted", **figures, "largest_keys": largest, **usage, "partitions": logs}


def _log_json(log: LogCount, report: CountReport) -> dict[str, Any]:
    log_dir, figures = log.location.log_dir, _figures(log, [log])
    identity = {"partition": log.location.topic_partition.partition, "log_dir": log_dir, "in_use": log_dir in report.in_use}
    if figures is None:
        return {**identity, "status": "failed", "reason": log.error}
    usage = {} if log.usage is None else {"usage": log.usage.to_dict()}
    return {**identity, "status": "counted", **figures, "largest_keys": _keys_json(log.keys, report), **usage}


def _keys_json(keys: KeySummary, report: CountReport) -> list[dict[str, Any]]:
    rows = []
    for entry in keys.largest:
        found = None if report.group_by is None else report.group_by.windowed_key(entry.key)
        rows.append(
            {**entry._asdict(), "key": encoded(entry.key)} | ({"window_start": window_start(found[1])} if found else {})
        )
        if not report.stored:
            del rows[-1]["stored_bytes"]
    return rows
