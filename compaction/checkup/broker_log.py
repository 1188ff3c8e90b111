"""Finds in a broker's log which partitions its cleaner gave up, and whether cleaner threads ended.

Since Kafka 1.1 a cleaner marks a partition uncleanable when cleaning fails, keeps that in memory only, and writes one warning
(``LogCleaner.CleanerThread``, the same words from 2.8 to 4.4). Before, the thread ended with the first error. A restart of the
broker forgets both, and so does its start in this file: what precedes the last start does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from compaction.names import TopicPartition, parse_partition_dir

_MARKED = re.compile(r"Marking its partition \((?P<name>[^)]+)\) as uncleanable")
_ENDED = re.compile(r"kafka-log-cleaner-thread-(?P<number>\d+)\]?: (?:Error due to|Stopped)")
#: a thread that a shutdown stops is none that died
_SHUTDOWN = re.compile(r"Shutting down the log cleaner")
_STARTED = re.compile(r"Starting the log cleaner")
_CAUSE = re.compile(r"^(?:Caused by: )?(?P<cause>[\w.$]+(?:Exception|Error)\b.*)")
#: lines of a stack trace after the warning, among which its cause is
_CAUSE_LINES = 60
_CAUSE_CHARACTERS = 300


@dataclass
class CleanerLog:
    """Uncleanable partitions with the first line of their errors, and the numbers of cleaner threads that died."""

    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)
    dead_threads: set[int] = field(default_factory=set)


def read_broker_log(lines: Iterable[str]) -> CleanerLog:
    """What the lines of ``log-cleaner.log`` or ``server.log`` say about the broker's last run."""
    found, marked, remaining, stopping = CleanerLog(), None, 0, False
    for line in lines:
        match = _MARKED.search(line)
        if match is not None:
            marked, remaining = parse_partition_dir(match["name"]), _CAUSE_LINES
            if marked is not None:
                found.uncleanable[marked] = ""
            continue
        cause = _CAUSE.match(line.strip())
        if cause is not None and marked is not None and remaining > 0:
            # the last one of a chain is the first cause
            found.uncleanable[marked] = cause["cause"][:_CAUSE_CHARACTERS]
        remaining -= 1
        if _STARTED.search(line):
            found, marked, stopping = CleanerLog(), None, False
        stopping = stopping or _SHUTDOWN.search(line) is not None
        ended = _ENDED.search(line)
        if ended is not None and not stopping:
            found.dead_threads.add(int(ended["number"]))
    return found
