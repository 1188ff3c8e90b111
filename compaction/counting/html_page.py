"""Where the bytes are, as one self-contained HTML page: all topics, and as many of the largest topics as fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compaction.counting.usage_report import CELL_TITLES, Section, sections, shown_key, topic_json, usage_json
from compaction.errors import UsageError
from compaction.printable import printable
from compaction.screen.amounts import counted
from compaction.screen.html_page import html_page

if TYPE_CHECKING:
    from compaction.counting.count_logs import TopicCount
    from compaction.counting.count_report import CountReport

#: topics of their own, the largest ones
MOST_TOPICS = 200


def to_html(report: CountReport) -> str:
    if not report.stored:
        raise UsageError("the page shows where the bytes are, which were not counted", hint="add --bytes")
    return html_page("compaction.counting", f"Bytes of {counted(len(report.plan.topics), 'topic')}", model(report))


def model(report: CountReport) -> dict[str, Any]:
    """The data of the script."""
    topics = [topic for topic in report.plan.topics if not topic.failed]
    largest = sorted(topics, key=lambda topic: (-topic.usage.file_bytes, topic.topic))[:MOST_TOPICS]
    about = f"{counted(len(report.plan.topics), 'topic')} of {counted(len(report.plan.logs), 'log')}, which were only read."
    about += " Records and keys are those that a consumer with read_committed reads, bytes those of all stored records."
    if len(topics) > len(largest):
        about += f" The {MOST_TOPICS} largest topics can be chosen; the result as JSON has the others."
    views = [_topic(topic, report) for topic in largest]
    return {
        "asOf": report.as_of_ms,
        "about": about,
        "notes": [printable(f"{log.location.topic_partition}: {log.error}") for log in report.failed],
        "views": [_all(topics, largest), *views] if len(topics) != 1 else views,
    }


def _topic(topic: TopicCount, report: CountReport) -> dict[str, Any]:
    usage = topic_json(topic, report.group_by)
    keys = [
        (shown_key(entry.key, report.group_by), (entry.records, entry.bytes, entry.stored_bytes), usage["file_bytes"])
        for entry in topic.keys.largest
    ]
    found = *sections(topic.topic, usage), Section(("largest key", *CELL_TITLES), keys)
    return _view(topic.topic, usage, [topic], found)


def _all(topics: Sequence[TopicCount], largest: Sequence[TopicCount]) -> dict[str, Any]:
    from compaction.counting.byte_usage import Usage

    total = Usage()
    for topic in topics:
        total.add(topic.usage)
    usage = usage_json(total)
    rows: list[tuple[str, Sequence[int], int]] = [
        (printable(topic.topic), (topic.counts.records, topic.counts.bytes, topic.usage.file_bytes), usage["file_bytes"])
        for topic in largest
    ]
    if more := len(topics) - len(largest):
        rows.append((f"and {more:,} more", (), usage["file_bytes"]))
    found = Section(("topic", *CELL_TITLES), rows), *sections("", usage)
    return _view(f"all of {counted(len(topics), 'topic')}", usage, topics, found)


def _view(name: str, usage: Mapping[str, Any], topics: Sequence[TopicCount], found: Sequence[Section]) -> dict[str, Any]:
    states: dict[str, int] = {}
    for row in usage["states"]:
        states[row["state"]] = states.get(row["state"], 0) + row["stored_bytes"]
    return {
        "name": printable(name),
        "bytes": usage["file_bytes"],
        "records": sum(topic.counts.records for topic in topics),
        "keys": sum(topic.keys.keys for topic in topics),
        "tombstones": sum(topic.counts.tombstones for topic in topics),
        "keyless": sum(topic.counts.keyless for topic in topics),
        "states": states,
        "sections": [section for section in found if section.rows],
    }
