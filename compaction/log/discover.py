"""Finds the logs of log directories and selects those given by the command's options.

Mirrors ``LogManager.loadLogs`` and ``LocalLog.parseTopicPartitionName``: a log is a directory named
``<topic>-<partition>``. Directories being moved or deleted (``…-delete``, ``…-future``, ``…-stray``) and the KRaft metadata log
are skipped. A broker refuses to start on other names; this package skips them, as in a backup.

A partition that is in several log directories of a call is refused: its records would be read, counted and kept twice. A
broker refuses to start on such directories (``LogManager.loadLog``). They arise when it moves a partition to another disk: the
copy, ``…-future``, takes the partition's name, the cleaner checkpoint's entry moves to its log directory, and the old one is
marked ``-delete`` (``LogManager.replaceCurrentWithFutureLog``). If a disk fails in between, both have the name; the broker
would have kept the one whose log directory has the entry. Copies of the directories of several brokers have the same
partitions, too: these are replicas, and a call reads one of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.errors import CorruptLogError, LogError, StorageError, UnsupportedLogError, UsageError
from compaction.files.filesystem import FileStat, FileSystem, base_name, join, storage_of
from compaction.files.object_store import require_store
from compaction.files.uri import is_layout, resolved
from compaction.log.checkpoint_store import read_offsets
from compaction.log.metadata_logs import read_identity
from compaction.names import (
    CLEANER_OFFSETS,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    LogLocation,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
)

_MAX_PARTITION = 2**31 - 1
#: a directory with one of these files is a log directory, even if its logs have no segments
_OF_BROKERS = frozenset((META_PROPERTIES, RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS))


@dataclass(frozen=True)
class Selector:
    """The selected logs: topics fully matched by a pattern, and single partitions. An empty selector matches every log.

    :ivar option: the option that names the partitions, for messages
    """

    topics: tuple[re.Pattern[str], ...] = ()
    partitions: frozenset[TopicPartition] = frozenset()
    option: str = "--partition"

    @classmethod
    def parse(cls, topics: Sequence[str] = (), partitions: Sequence[str] = (), option: str = "--partition") -> Selector:
        """From the options ``--topic`` and ``--partition``, or another ``option`` that names partitions.

        :raises UsageError: a pattern is not a regular expression, or a partition is not ``TOPIC-N``
        """
        named = frozenset(_partition(name, option) for name in partitions)
        return cls(tuple(_pattern(topic) for topic in topics), named, option)

    def matches(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is selected."""
        if not self.topics and not self.partitions:
            return True
        return topic_partition in self.partitions or any(p.fullmatch(topic_partition.topic) for p in self.topics)


def check_log_dirs(fs: FileSystem, log_dirs: Sequence[str]) -> tuple[str, ...]:
    """The log directories without duplicates, absolute, links resolved.

    :raises UsageError: one is missing, not a directory, or a partition's directory
    :raises StorageError: its store cannot be reached, or lacks its bucket
    """
    checked: dict[tuple[object, ...], str] = {}
    for log_dir in log_dirs:
        require_store(log_dir)
        status = fs.stat(log_dir)
        if status is None:
            raise UsageError("no such log directory", path=log_dir, hint="give one of the broker's log.dirs, or a copy of it")
        if not status.is_dir:
            raise UsageError("not a directory", path=log_dir, hint="give one of the broker's log.dirs, or a copy of it")
        path = resolved(log_dir)
        if _is_log(fs, path):
            raise UsageError("this is one partition's directory", path=log_dir, hint="give the log directory that holds it")
        checked.setdefault(identity(status, path), path)
    return tuple(checked.values())


def identity(status: FileStat, path: str) -> tuple[object, ...]:
    """The identity of a directory under any name: device and inode, or its URI in a store."""
    return (status.device, status.inode) if status.inode else (path,)


def discover(fs: FileSystem, log_dirs: Iterable[str], selector: Selector) -> tuple[LogLocation, ...]:
    """The selected logs, ordered by log directory as given, then topic, then partition.

    A directory with several names (links, mounts) is returned once.

    :param log_dirs: as :func:`check_log_dirs` returns them
    :raises UsageError: a partition given by name is missing, or a selected one is in two log directories
    """
    directories = tuple(log_dirs)
    selected = [entry for log_dir in directories for entry in _logs_of(fs, log_dir, selector)]
    # a directory's own name has precedence over links to it, in any log directory
    own: dict[tuple[object, ...], LogLocation] = {}
    for location, key in sorted(selected, key=lambda entry: _is_link(entry[0].path)):
        own.setdefault(key, location)
    locations = [location for location, key in selected if own[key] is location]
    missing = sorted(selector.partitions - {location.topic_partition for location in locations})
    if missing:
        near = difflib.get_close_matches(str(missing[0]), _names(fs, directories), n=1)
        hint = f"did you mean {near[0]}?" if near else "check its name and the log directories"
        raise UsageError(f"{selector.option}: no such partition: {missing[0]}", hint=hint)
    require_one_directory(fs, locations)
    return tuple(locations)


def require_logs(fs: FileSystem, logs: Sequence[LogLocation], log_dirs: Sequence[str], selector: Selector) -> None:
    """:raises UsageError: no log is selected, or these are directories of something else with such names"""
    if any(_is_log(fs, location.path) for location in logs):
        return
    if logs and any(_OF_BROKERS.intersection(fs.listdir(log_dir)) for log_dir in log_dirs):
        return
    where = ", ".join(log_dirs)
    patterns = [pattern.pattern for pattern in selector.topics]
    hint = "or give --allow-empty if that is to be expected"
    if patterns and not logs:
        message = f"--topic: no topic here matches {' or '.join(map(repr, patterns))}"
        partition = next((name for name in _names(fs, log_dirs) if name in patterns), None)
        if partition is not None:
            raise UsageError(message, path=where, hint=f"{partition} is a partition: give --partition {partition}")
        raise UsageError(message, path=where, hint=f"a pattern matches the whole name of a topic; correct it, {hint}")
    message = "no logs here: no directory is named TOPIC-N and has segments"
    raise UsageError(message, path=where, hint=f"give one of the broker's log.dirs, or a copy of it, {hint}")


def require_topics(logs: Sequence[LogLocation], selector: Selector, paths: Sequence[str]) -> None:
    """:raises UsageError: there are no logs, or a pattern matches the topic of none of them"""
    topics = {location.topic_partition.topic for location in logs}
    unknown = next((pattern.pattern for pattern in selector.topics if not any(map(pattern.fullmatch, topics))), None)
    if unknown is not None:
        hint = "a pattern matches the whole name of a topic; correct it"
        if parse_partition_dir(unknown) is not None:
            hint = "a partition is selected by the option partition"
        raise UsageError(f"topic: no topic here matches {unknown!r}", path=", ".join(paths), hint=hint)
    if not logs:
        hint = "give one of the broker's log.dirs, a copy of it, or a partition's directory"
        raise UsageError("no logs here: no directory is named TOPIC-N", path=", ".join(paths), hint=hint)


def _logs_of(fs: FileSystem, log_dir: str, selector: Selector) -> list[tuple[LogLocation, tuple[object, ...]]]:
    """The selected logs of a directory, with the identities of their directories. Others are only listed by name."""
    logs = []
    for topic_partition, path in _named(fs, log_dir):
        status = fs.stat(path) if selector.matches(topic_partition) else None
        if status is not None and status.is_dir:
            logs.append((LogLocation(topic_partition, log_dir, path), identity(status, path)))
    return logs


def _named(fs: FileSystem, log_dir: str) -> list[tuple[TopicPartition, str]]:
    """The entries of a directory whose names are those of logs, ordered, with their paths."""
    parsed = ((parse_partition_dir(name), join(log_dir, name)) for name in fs.listdir(log_dir))
    return sorted(
        (name, path)
        for name, path in parsed
        if name is not None and name.partition <= _MAX_PARTITION and name.topic != CLUSTER_METADATA_TOPIC
    )


def _names(fs: FileSystem, log_dirs: Iterable[str]) -> list[str]:
    return [str(name) for log_dir in log_dirs for name, _ in _named(fs, log_dir)]


def _is_link(path: str) -> bool:
    return storage_of(path).attributes and Path(path).is_symlink()


def _is_log(fs: FileSystem, path: str) -> bool:
    if parse_partition_dir(base_name(path)) is None:
        return False
    try:
        parsed = [parse_segment_file(name) for name in fs.listdir(path)]
    except (CorruptLogError, UnsupportedLogError):
        # reported when the log is read
        return True
    except StorageError:
        # as above: listing a log of an export reads its objects
        if not is_layout(path):
            raise
        return True
    return any(file is not None and file.kind == LOG for file in parsed)


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic)
    except re.error as error:
        raise UsageError(f"--topic {topic!r} is not a regular expression: {error}", hint="escape special characters") from None


def _partition(name: str, option: str) -> TopicPartition:
    parsed = parse_partition_dir(name)
    if parsed is None:
        raise UsageError(f"{option} {name!r} is not TOPIC-N", hint=f"e.g. {option} orders-0")
    return parsed


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
    identity = read_identity(fs, log_dir)
    # with damage it is unknown which broker's this is, and the error is another one
    return None if isinstance(identity, LogError) else identity.node_id


def _has_checkpoint(fs: FileSystem, log: LogLocation) -> bool:
    try:
        return log.topic_partition in read_offsets(fs, log.log_dir, CLEANER_OFFSETS)
    except LogError:
        # a malformed checkpoint says nothing
        return False
