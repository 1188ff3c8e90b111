"""Refuses a partition that lies in several log directories of a call: its records would be read, counted and kept twice.

A broker refuses to start on such directories (``LogManager.loadLog``, Kafka 4.4.0). They arise when it moves a partition to
another disk: the copy, ``…-future``, takes the partition's name, the cleaner checkpoint's entry moves to its log directory, and
the old one is marked ``-delete`` (``LogManager.replaceCurrentWithFutureLog``). If a disk fails in between, both have the name,
and the one whose log directory has the entry is the one that the broker would have kept. Copies of the directories of several
brokers have the same partitions, too: these are replicas, of which a call reads one.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction.errors import LogError, UsageError
from compaction.formats.properties import parse_meta_properties
from compaction.logdir.checkpoint_store import read_offsets
from compaction.names import CLEANER_OFFSETS, META_PROPERTIES, LogLocation, TopicPartition
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.text_files import read_small_text


def require_one_directory(fs: FileSystem, logs: Sequence[LogLocation]) -> None:
    """:raises UsageError: a partition is in two log directories; both are named, and which one a broker would keep, if known"""
    first: dict[TopicPartition, LogLocation] = {}
    for log in logs:
        other = first.setdefault(log.topic_partition, log)
        if other is not log:
            raise UsageError(f"this partition is also in {log.path}", path=other.path, hint=_hint(fs, other, log))


def _hint(fs: FileSystem, *logs: LogLocation) -> str:
    nodes = [_node(fs, log.log_dir) for log in logs]
    if None not in nodes and nodes[0] != nodes[1]:
        return f"they are replicas of brokers {nodes[0]} and {nodes[1]}: give the directories of one broker in a call"
    kept = [log for log in logs if _has_checkpoint(fs, log)]
    if len(kept) == 1:
        (other,) = (log for log in logs if log is not kept[0])
        why = f"a broker that moved it would keep {kept[0].path}, whose {CLEANER_OFFSETS} has it"
        return f"{why}: move {other.path} away, or leave out its log directory"
    return "a broker starts on neither: move away the one whose disk has failed or whose log is older, or leave it out"


def _node(fs: FileSystem, log_dir: str) -> int | None:
    path = join(log_dir, META_PROPERTIES)
    try:
        return None if fs.stat(path) is None else parse_meta_properties(read_small_text(fs, path, "", "latin-1"), path).node_id
    except LogError:
        # it is unknown which broker's this is, and the error is another one
        return None


def _has_checkpoint(fs: FileSystem, log: LogLocation) -> bool:
    try:
        return log.topic_partition in read_offsets(fs, log.log_dir, CLEANER_OFFSETS)
    except LogError:
        # a malformed checkpoint says nothing
        return False
