"""Which rows a table of logs has: one per log, or one per topic if there are more logs than fit on a screen; the largest effect
first, and of many only the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from compaction.screen.amounts import counted

#: rows that are shown unless all are asked for
MOST_ROWS = 20


class LogGroup(NamedTuple):
    """A row: its name, and the numbers of its logs."""

    name: str
    logs: Sequence[int]


class TopRows(NamedTuple):
    """The rows of a table, the title of their names, and what is said of those that are not shown."""

    title: str
    rows: Sequence[LogGroup]
    hidden: str = ""


def top_rows(
    names: Sequence[tuple[str, int]], rank: Callable[[Sequence[int]], Any], ellipsis: str, *, all_rows: bool
) -> TopRows:
    """The rows to show.

    :param names: the topic and the partition of each log
    :param rank: the sort key of a row, from the numbers of its logs; the row with the least one is first
    """
    if all_rows or len(names) <= MOST_ROWS:
        logs = [LogGroup(f"{topic}-{partition}", [number]) for number, (topic, partition) in enumerate(names)]
        return TopRows("log", sorted(logs, key=lambda row: rank(row.logs)))
    topics: dict[str, list[int]] = {}
    for number, (topic, _) in enumerate(names):
        topics.setdefault(topic, []).append(number)
    rows = [_of_topic(topic, logs, names) for topic, logs in topics.items()]
    rows.sort(key=lambda row: rank(row.logs))
    others = len(rows) - MOST_ROWS
    hidden = f"{ellipsis} and {counted(others, 'more topic')}, in the report (--all shows every log)" if others > 0 else ""
    return TopRows("topic (partitions)", rows[:MOST_ROWS], hidden)


def _of_topic(topic: str, logs: Sequence[int], names: Sequence[tuple[str, int]]) -> LogGroup:
    """All partitions of a topic, named by their number, or by the partition if it is only one."""
    return LogGroup(f"{topic}-{names[logs[0]][1]}" if len(logs) == 1 else f"{topic} ({len(logs)})", logs)
