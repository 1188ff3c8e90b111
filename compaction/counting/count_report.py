"""The result of ``count``: figures by topic and by log, with the largest keys on request.

Where the bytes of logs are, as sections for text and page, and as JSON: the part of a count's result that ``count --bytes``
adds.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compaction.printable import printable
from compaction.results import PageResult
from compaction.screen.amounts import counted, size
from compaction.screen.text_table import Column, Line, Row, Style, table
from compaction.source.view_options import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from compaction.counting.byte_usage import Int64s, Usage
    from compaction.counting.count_logs import CountPlan, LogCount, TopicCount
    from compaction.counting.key_groups import KeyGroups
    from compaction.counting.key_totals import KeySummary
    from compaction.counting.task_totals import RecordCounts

#: longer keys are cut to the second number of characters
_KEY_CHARACTERS, _CUT_CHARACTERS = 48, 30
_CELL = ("records", "bytes", "stored_bytes")
#: the titles of these columns
CELL_TITLES = ("records", "keys and values", "stored")
#: the names of a topic, by their JSON fields
_TITLES = {"groups": "group of keys", "headers": "header", "producers": "producer id"}


def usage_json(usage: Usage) -> dict[str, Any]:
    """The JSON object of a log or topic."""
    from compaction.counting.byte_usage import AGES, CODECS, COMPONENTS, EMPTY_BATCHES, SIZES, STATES

    states = [
        {"state": STATES[state], "age": AGES[age] if state < EMPTY_BATCHES else None, **_cell(cell)}
        for state, ages in enumerate(usage.states) for age, cell in enumerate(ages) if cell.any()
    ]  # fmt: skip
    return {
        "file_bytes": usage.file_bytes,
        "components": dict(zip(COMPONENTS, usage.components.tolist(), strict=True)),
        "states": states,
        "value_sizes": [{"value": SIZES[size], **_cell(cell)} for size, cell in enumerate(usage.values) if cell.any()],
        "codecs": [
            {"codec": CODECS[codec], "uncompressed_bytes": plain, "stored_bytes": stored}
            for codec, (plain, stored) in enumerate(usage.codecs.tolist()) if plain
        ],
    }  # fmt: skip


def _cell(cell: Int64s) -> dict[str, int]:
    return dict(zip(_CELL, cell.tolist(), strict=True))


def topic_json(topic: TopicCount, group_by: KeyGroups | None) -> dict[str, Any]:
    """The JSON object of a topic: the sum over its logs; its groups of keys, headers and producers."""
    objects: dict[str, Any] = {}
    for names in list(_TITLES)[group_by is None :]:
        largest = []
        for entry in topic.named(names).largest:
            figures = dict(zip(_CELL, (entry.records, entry.bytes, entry.stored_bytes), strict=True))
            largest.append({**_name_json(entry.key, names, group_by), **figures})
        summary = topic.named(names)
        objects[names] = {"distinct": summary.keys, "total": summary.total._asdict(), "largest": largest}
    return {**usage_json(topic.usage), **objects}


def _name_json(name: bytes, names: str, group_by: KeyGroups | None) -> dict[str, Any]:
    if names == "producers":
        return {"producer_id": int(name)}
    if names == "groups" and group_by is not None and group_by.windowed:
        return {"window_start": window_start(name)}
    return {"header" if names == "headers" else "group": encoded(name)}


def window_start(start: bytes) -> str:
    """The start of a window (int64, ms) as a time."""
    return f"{np.datetime64(int.from_bytes(start, 'big', signed=True), 'ms')}Z"


#: a name, its numbers, and the total of which the last number is a share
SectionRow = tuple[str, Sequence[int], int]


class Section(NamedTuple):
    """A table: the titles of a name and of numbers; its rows, each with a name, as many numbers, and the total of which the
    last number is a share; a row for those that are not named, and one with the sums of the numbers, if there are such."""

    titles: tuple[str, ...]
    rows: Sequence[SectionRow]
    others: SectionRow | None = None
    total: SectionRow | None = None


def sections(name: str, usage: Mapping[str, Any]) -> Iterator[Section]:
    """Where the bytes are, of ``usage_json`` or ``topic_json``; ``name`` is that of the topic."""
    total = usage["file_bytes"]
    parts = [*((_words(part), size) for part, size in usage["components"].items() if size), (".log files", total)]
    yield Section((name, "bytes"), [(part, [size], total) for part, size in parts])
    states = [(", ".join(filter(None, (_words(row["state"]), row["age"]))), _numbers(row), total) for row in usage["states"]]
    yield _summed(("state and age", *CELL_TITLES), states, total)
    yield _summed(("value", *CELL_TITLES), [(row["value"], _numbers(row), total) for row in usage["value_sizes"]], total)
    codecs = [(row["codec"], _numbers(row), row["uncompressed_bytes"]) for row in usage["codecs"]]
    yield _summed(("codec", "uncompressed", "stored"), codecs, sum(numbers[0] for _, numbers, _ in codecs))
    for names in (names for names in _TITLES if names in usage):
        rows = [(_shown_name(row), _numbers(row), total) for row in usage[names]["largest"]]
        others = None
        if more := usage[names]["distinct"] - len(rows):
            rest = [whole - shown for whole, shown in zip(usage[names]["total"].values(), _sums(rows), strict=True)]
            others = f"and {more:,} more", rest, total
        titles = ("headers", "names and values", "stored") if names == "headers" else CELL_TITLES
        yield _summed((_TITLES[names], *titles), rows, total, others)


def _summed(titles: tuple[str, ...], rows: Sequence[SectionRow], whole: int, others: SectionRow | None = None) -> Section:
    """A section whose last number is a share of ``whole`` in the row of the total."""
    all_rows = [*rows, others] if others else rows
    return Section(titles, rows, others, ("total", _sums(all_rows), whole) if len(all_rows) > 1 else None)


def _sums(rows: Sequence[SectionRow]) -> list[int]:
    return [sum(numbers) for numbers in zip(*(numbers for _, numbers, _ in rows), strict=True)]


def usage_lines(topic: TopicCount, group_by: KeyGroups | None, style: Style) -> Iterator[Line]:
    """Where the bytes of a topic are, as text."""
    for titles, rows, others, total_row in sections(topic.topic, topic_json(topic, group_by)):
        if not rows:
            continue
        columns = [Column(titles[0], right=False), *map(Column, titles[1:]), Column("share")]
        shown = [*rows, *(row for row in (others, total_row) if row is not None)]
        lines = [[name, *(f"{number:,}" for number in numbers), *_share(numbers, total)] for name, numbers, total in shown]
        yield Line("")
        yield from table(columns, [Row([*cells, *[""] * (len(columns) - len(cells))]) for cells in lines], style)


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [number for name, number in row.items() if name == "records" or name.endswith("bytes")]


def _share(numbers: Sequence[int], total: int) -> list[str]:
    return [f"{100 * numbers[-1] / total:.1f} %"] if numbers and total else []


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown_name(row: Mapping[str, Any]) -> str:
    match next(iter(row.values())):
        case {"text": text}:
            return shown(text.encode())
        case {"base64": text}:
            return shown(b64decode(text))
        case name:
            return str(name) if name != -1 else "none"


def shown_key(key: bytes, group_by: KeyGroups | None) -> str:
    """A key on one line; that of a windowed key with the start of its window, if keys are grouped by windows."""
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

#: topics of their own on the page, the largest ones; keys and other names of all topics
MOST_TOPICS, _MOST_NAMES = 200, 20

_COLUMNS = (
    Column("topic", right=False),
    *(Column(title) for title in ("records", "keys", "deleted keys", "tombstones", "no key", "data")),
)


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

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``: all topics, and each of them, or as many of the largest ones as fit."""
        topics = [topic for topic in self.plan.topics if not topic.failed]
        largest = sorted(topics, key=lambda topic: (-self._size(topic), topic.topic))[:MOST_TOPICS]
        about = f"{counted(len(self.plan.topics), 'topic')} of {counted(len(self.plan.logs), 'log')}, which were only read."
        if len(topics) > len(largest):
            about += f" The {MOST_TOPICS} largest topics can be chosen; the result as JSON has the others."
        views = [self._view(topic.topic, [topic], self._sections(topic)) for topic in largest]
        if len(topics) != 1:
            views.insert(0, self._view(f"all of {counted(len(topics), 'topic')}", topics, self._all_sections(topics, largest)))
        notes = [f"{log.location.topic_partition}: {log.error}" for log in self.failed]
        return {"as_of_ms": self.as_of_ms, "stored": self.stored, "about": about, "notes": notes, "views": views}

    def _view(self, name: str, topics: Sequence[TopicCount], found: Iterable[Section]) -> dict[str, Any]:
        """Sums over topics, and the sections of their bytes."""
        states, usage = Counter[str](), usage_json(_usage(topics))
        for row in usage["states"]:
            states[row["state"]] += row["stored_bytes"]
        counts = sum((Counter(asdict(topic.counts)) for topic in topics), Counter())
        return {
            "name": name,
            **dict.fromkeys(("records", "bytes", "tombstones", "keyless"), 0), **counts,
            "keys": sum(topic.keys.keys for topic in topics),
            "file_bytes": usage["file_bytes"], "states": states, "sections": [section for section in found if section.rows],
        }  # fmt: skip

    def _size(self, topic: TopicCount) -> int:
        return topic.usage.file_bytes if self.stored else topic.counts.bytes

    def _numbers(self, *numbers: int) -> tuple[int, ...]:
        """Records, bytes and stored bytes; without the last if they were not counted."""
        return numbers if self.stored else numbers[:2]

    def _sections(self, topic: TopicCount) -> Iterator[Section]:
        """Those of the text, and the largest keys."""
        total = self._size(topic)
        if self.stored:
            yield from sections(topic.topic, topic_json(topic, self.group_by))
        keys = [
            (shown_key(entry.key, self.group_by), self._numbers(entry.records, entry.bytes, entry.stored_bytes), total)
            for entry in topic.keys.largest
        ]
        yield Section(("largest key", *self._titles), keys)

    @property
    def _titles(self) -> tuple[str, ...]:
        return CELL_TITLES if self.stored else CELL_TITLES[:2]

    def _all_sections(self, topics: Sequence[TopicCount], largest: Sequence[TopicCount]) -> Iterator[Section]:
        """Those of all topics together, then the topics, and the largest keys and other names with their topics."""
        total = sum(map(self._size, topics))
        together = [*sections("", usage_json(_usage(topics)))] if self.stored else []
        rows: list[SectionRow] = []
        for topic in largest:
            numbers = self._numbers(topic.counts.records, topic.counts.bytes, self._size(topic))
            rows.append((topic.topic, numbers, total))
        more = len(topics) - len(largest)
        others: SectionRow | None = (f"and {more:,} more", (), total) if more else None
        yield from [*together[:1], Section(("topic", *self._titles), rows, others), *together[1:]]
        named: dict[tuple[str, ...], list[SectionRow]] = {}
        for topic in largest:
            for section in list(self._sections(topic))[len(together) :]:
                of_topic = ((f"{topic.topic}: {name}", each, total) for name, each, _ in section.rows)
                named.setdefault(section.titles, []).extend(of_topic)
        for titles, found in named.items():
            yield Section(titles, sorted(found, key=lambda row: -row[1][-1])[:_MOST_NAMES])

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
                yield Line(f"{size(amount):>9}  {key_count.records:>10,} records  {shown_key(key_count.key, report.group_by)}")
        if report.stored:
            yield Line(_STORED)


def _total(topics: Sequence[TopicCount]) -> Row:
    """The sums over topics; a key of several topics counts in each."""
    total, *others = (topic.counts for topic in topics)
    for counts in others:
        total.add(counts)
    return _row("total", total, sum(topic.keys.keys for topic in topics), sum(map(_deleted, topics)), failed=False)


def _usage(topics: Sequence[TopicCount]) -> Usage:
    from compaction.counting.byte_usage import Usage

    total = Usage()
    for topic in topics:
        total.add(topic.usage)
    return total


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
